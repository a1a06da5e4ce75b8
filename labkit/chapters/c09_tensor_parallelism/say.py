"""How the checks of chapter 9 say what is wrong: the rank, the name, the number, and the likely cause."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from labkit import cost
from labkit.grading.checks.order import Order
from labkit.grading.checks.student import Evidence, Student, near_is_equal, same
from labkit.grading.checks.wording import difference, short

Causes = Mapping[str, Mapping[str, Sequence[Any]]]  # by name: a wrong value of each rank, under its cause


def expect_named(
    student: Student,
    run: Evidence,
    names: Sequence[str],
    right: Sequence[Sequence[Any]],
    causes: Causes | None = None,
    only: Sequence[str] = (),
    within: float = 1e-9,
) -> None:
    """Every rank returned the list of `names`, with the values of `right` (by rank), as far as `only` asks for.

    The sentence names the rank, the entry, what stands there and should, and the cause, if a wrong value is known.
    """
    n = len(right)
    ranks = f"With {n} rank{'s' * (n != 1)}"
    for rank, result in enumerate(run.results):
        text = (
            f"{ranks}: rank {rank} returned {short(result)}; it should be a list of {len(names)}: {', '.join(names)}."
        )
        fine = isinstance(result, (list, tuple)) and len(result) == len(names)
        student.expect(fine, text)
    for place, name in enumerate(names):
        if only and name not in only:
            continue
        for rank in range(n):
            got, want = run.results[rank][place], right[rank][place]
            if same(near_is_equal(got, want, within), want):
                continue
            cause = _likely(run.results[rank], names, name, rank, causes or {}, within)
            student.expect(False, f"{ranks}: {_difference(name, rank, got, want)} {cause}".strip())


def _likely(result: Sequence[Any], names: Sequence[str], name: str, rank: int, causes: Causes, within: float) -> str:
    """The cause whose wrong values this rank returned: of several that fit, the one that fits most of the names."""

    def fits(name: str, cause: str) -> bool:
        wrong = causes.get(name, {}).get(cause)
        return wrong is not None and same(near_is_equal(result[names.index(name)], wrong[rank], within), wrong[rank])

    found = [cause for cause in causes.get(name, {}) if fits(name, cause)]
    return max(found, key=lambda cause: sum(fits(other, cause) for other in names), default="")


def _difference(name: str, rank: int, got: object, want: object) -> str:
    both = isinstance(got, Tensor) and isinstance(want, Tensor)
    if not both or got.shape != want.shape or got.dtype != want.dtype:  # type: ignore[attr-defined]
        return f"{name}: {difference(rank, got, want)}"
    assert isinstance(got, Tensor) and isinstance(want, Tensor)
    off = (got - want).abs().nan_to_num(torch.inf)
    at = [int(i) for i in torch.unravel_index(off.argmax(), want.shape)]
    entry = f"entry {at}" if at else "it"
    here, there = got[tuple(at)].item(), want[tuple(at)].item()
    if f"{here:g}" != f"{there:g}":
        return f"{name} of rank {rank} is wrong: {entry} is {here:g} and should be {there:g}."
    why = "Was something computed in 32 bits on the way? (A bool over a whole number is float32.)"
    return f"{name} of rank {rank} is nearly right: {entry} is {here:.12g} and should be {there:.12g}. {why}"


def expect_calls(
    student: Student, run: Evidence, sums: Sequence[int], what: str, itemsize: int = 8, gathers: Sequence[int] = (),
    scatters: Sequence[int] = (), lines: int = 1, why: str = "", announced: bool = False,
) -> None:  # fmt: skip
    """Every rank made the calls that it must, and sent what they take by ring, to the byte.

    sums: entries of each all-reduce. gathers, scatters: rows, of `lines` entries each, of all-gathers and
    reduce-scatters. A reduce-scatter and the all-gather that follows it count as the all-reduce that they are.
    what: what these calls are, in words. why: the cause to be named, where the calls do not show one. announced: the
    ranks announce something (labkit.parallel.announce), and those messages do not count.
    """
    n = len(run.results)
    if n == 1:
        return
    due = [
        sum(cost.ring_all_reduce_bytes_by_rank(size, itemsize, n)[rank] for size in sums)
        + sum(cost.ring_all_gather_bytes_by_rank(rows, lines * itemsize, n)[rank] for rows in gathers)
        + sum(cost.ring_reduce_scatter_bytes_by_rank(rows, lines * itemsize, n)[rank] for rows in scatters)
        for rank in range(n)
    ]
    want = Counter(all_reduce=len(sums), all_gather=len(gathers), reduce_scatter=len(scatters))
    text = "With {n} ranks rank {rank} called {made} and sent {got:bytes}; {what} take {due:bytes}. {why}"
    for rank, order in enumerate(run.order):
        names = [call.name for call in order.calls]
        called = Counter(names) if gathers or scatters else Counter(_joined(names))
        got = run.bytes_sent[rank] - announced * sum(mark.number for mark in order.marks)
        cause = why or _cause(called, want, got, due[rank])
        halves = called != Counter(names) and sum(run.bytes_sent) == sum(due)  # ring all-reduces share parts otherwise
        fine = (got == due[rank] or halves) and +called == +want
        made = _listed(Counter(names))
        student.expect(fine, text, n=n, rank=rank, made=made, got=got, what=what, due=due[rank], why=cause)


def _joined(names: Sequence[str]) -> list[str]:
    """A reduce-scatter and an all-gather, one after the other, are an all-reduce."""
    out: list[str] = []
    for name in names:
        if name == "all_gather" and out and out[-1] == "reduce_scatter":
            out[-1] = "all_reduce"
        else:
            out.append(name)
    return out


def _listed(called: Counter[str]) -> str:
    parts = [f"{times} {name}" for name, times in sorted(called.items())]
    return " and ".join(parts) or "no collective"


def _words(names: Sequence[str]) -> str:
    return " or ".join(names)


def _cause(called: Counter[str], want: Counter[str], got: int, due: int) -> str:
    if set(called) - set(want):
        return f"Only {_words(sorted(name for name in want if want[name]))} is needed here, with algorithm='ring'."
    if not called and got:
        return "Is that sent by hand? Use the collectives, with algorithm='ring'."
    if not called:
        return "Nothing is summed: how does a rank know the partial sums of the others?"
    if called["all_gather"] > want["all_gather"]:
        return "What is made whole there: weights, or the wide activations? Neither has to be."
    if called["reduce_scatter"] < want["reduce_scatter"] and called["all_reduce"] > want["all_reduce"]:
        return "Is something all-reduced of which each rank keeps its part only? A reduce-scatter does that."
    if called["all_reduce"] > want["all_reduce"]:
        return "Which of these sums something that is whole already, on every rank?"
    if called["all_reduce"] < want["all_reduce"]:
        return "One direction has no sum: forward or backward?"
    if sum(called.values()) < sum(want.values()):
        return "Which of them is left out?"
    if got > due:
        return "Is something wider summed than needed? Use algorithm='ring'."
    return "Is something left out? Use algorithm='ring'."


def expect_hidden(student: Student, order: Order, rank: int, n: int, layers: int) -> None:
    """The sum had begun before the first of `layers` announcements, and was not over before it.

    That it lasts until the last one cannot be asked: behind a switch its messages arrive while the first is made.
    """
    text = "With {n} ranks rank {rank} announced the gradients of weights {got}; it should be each of {layers} once."
    fine = sorted(order.announced) == list(range(1, layers + 1))
    student.expect(fine, text, n=n, rank=rank, got=[number - 1 for number in order.announced], layers=layers)
    first = order.announced[0]
    text = "With {n} ranks rank {rank} had begun {got} sums when it came to the first gradient of weights. {why}"
    begun = len(order.begun_by(first))
    student.expect(begun, text, n=n, rank=rank, got=begun, why="Compute the input's gradient first, and begin its sum.")
    text = (
        "With {n} ranks rank {rank} had waited for {got} of {begun} sums before the first gradient of weights. "
        "Nothing is hidden: begin with async_op=True, and call wait() at the end."
    )
    over = len(order.over_by(first))
    student.expect(over == 0, text, n=n, rank=rank, got=over, begun=begun)


def expect_finite(student: Student, run: Evidence) -> None:
    """No rank's loss or gradient is infinite or not a number."""
    text = (
        "With {n} ranks: rank {rank} returned {what} that is not finite, for logits in the thousands. Their "
        "exponentials are too large for any number: subtract the largest score of all ranks first."
    )
    for rank, result in enumerate(run.results):
        if isinstance(result, list) and len(result) == 2:
            for what, value in zip(("a loss", "a gradient"), result, strict=True):
                fine = not isinstance(value, Tensor) or bool(value.isfinite().all())
                student.expect(fine, text, n=len(run.results), rank=rank, what=what)


def expect_three_numbers(student: Student, run: Evidence, positions: int, vocab: int, itemsize: int = 8) -> None:
    """All ranks together sent at most three numbers a position, by ring."""
    n = len(run.results)
    most = sum(cost.vocabulary_parallel_loss_bytes_by_rank(1, positions, n, itemsize))
    got = sum(run.bytes_sent)
    gathered = sum(cost.ring_all_gather_bytes_by_rank(vocab, positions * itemsize, n))
    made = [call.name for call in run.order[0].calls]
    why = "Is more than the largest score, the sum and the target's score sent? Does the gradient need a message?"
    if got >= gathered or "all_gather" in made:
        why = "Are logits gathered? They need not leave their rank."
    text = (
        "With {n} ranks all together sent {got:bytes} for {positions} positions, and rank 0 called {made}; three "
        "numbers a position are {most:bytes}. {why}"
    )
    student.expect(
        got <= most, text, n=n, got=got, positions=positions, made=_listed(Counter(made)), most=most, why=why
    )
    text = "With {n} ranks nothing was sent: how does rank 0 know the sum of exponentials of the others?"
    student.expect(got > 0, text, n=n)


def expect_columns(student: Student, run: Evidence, n: int, k: int, heads: int, kv_heads: int) -> None:
    """The columns that each rank returned are as many as its heads have."""
    each, keys = heads // n, max(kv_heads // n, 1)
    text = (
        "With {n} ranks: rank {rank} has {got} columns; {each} heads of queries and {keys} of keys and values each, of "
        "{k} columns, are {want}. {why}"
    )
    want = (each + 2 * keys) * k
    likely = {
        (each + 2 * kv_heads) * k: "Keys and values are cut, too: a rank has those that its queries read.",
        each * k: "Where are keys and values?",
        (heads + 2 * kv_heads) * k: "Those are all columns.",
        (heads + 2 * kv_heads) * k // n: "That is a plain part of all columns. How many keys do its queries read?",
        (each + keys) * k: "Keys are here or values, and not both.",
        3 * each * k: "Keys and values have fewer heads.",
    }
    for rank, result in enumerate(run.results):
        if isinstance(result, list) and len(result) == 2 and isinstance(result[0], Tensor) and result[0].dim() == 2:
            got = result[0].shape[1]
            student.expect(got == want, text, n=n, rank=rank, got=got, each=each, keys=keys, k=k, want=want,
                           why=likely.get(got, ""))  # fmt: skip


def expect_sequence_calls(student: Student, run: Evidence, positions: int, d: int) -> None:
    """A gather and a scatter each way, perhaps one gather again, and one sum for the norm's two vectors."""
    counts = Counter(call.name for call in run.order[0].calls)
    gathers = 3 if counts["all_gather"] == 3 else 2
    why = ""
    if counts["all_reduce"] == 2 and counts["reduce_scatter"] == 2:
        why = "dgain and dshift go side by side in one message."
    elif not counts["all_reduce"]:
        why = "Where are dgain and dshift summed? Or does every rank norm all positions? It should norm its own."
    what = "a gather and a scatter each way, and one sum of dgain and dshift,"
    expect_calls(student, run, [2 * d], what, gathers=[positions] * gathers, scatters=[positions] * 2, lines=d, why=why)
