"""What chapter 3 asks its reader to write: the two halves of the ring, and recursive doubling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from labkit.cost.units import format_bytes
from labkit.grading.checks.student import Evidence, Slips, Student, StudentError
from labkit.grading.writing import Reader, you_write
from labkit.wire import Group

Rows = list[list[Tensor]]
NOTHING: Slips = {}
MIXED = "numbers of different chunks were added up. What a rank sends, its right neighbour must add to the same chunk."
ONWARD = "In each round a rank passes on the chunk that it has just added to."
DOWN = "Both chunk numbers go down by one in each round."
ALONE = "A ready-made {name} did the work. Use `group.exchange` alone, so that you see what it does."
SMALLER = "Each message has another length than its chunk: was the chunk converted to another dtype?"


def finished_first(student: Reader) -> str:
    for n in (2, 3, 5):
        run = _on_views(student, "add_around", n, _coded(n))
        _as_a_ring_sends(student, run, n)
        for rank, row in enumerate(run.results):
            want = (rank + 1) % n
            why = _not_the_sum(row, want, rank)
            student.expect(not why, "With {n} ranks rank {rank} should end with the whole sum in chunk {want}: {why}",
                           n=n, rank=rank, want=want, why=why)  # fmt: skip
        expected = [sum(c.nbytes for c in row) - row[(rank + 1) % n].nbytes for rank, row in enumerate(_coded(n))]
        student.expect(run.bytes_sent == expected, SMALLER)
    return (
        "With 2, 3 and 5 ranks every rank ends with one chunk of the whole sum, and has sent each of its other chunks "
        "once."
    )


@you_write(finished_first)
def add_around(chunks: Sequence[Tensor], group: Group) -> None:
    """First half: add up around the ring, until rank r has the sum in chunk r + 1."""
    n, me = group.size, group.rank
    right, left = (me + 1) % n, (me - 1) % n
    for step in range(n - 1):
        out, into = chunks[(me - step) % n], chunks[(me - step - 1) % n]
        into += group.exchange(out, right, torch.empty_like(into), left)


def everyone_has_all(student: Reader) -> str:
    for n in (2, 3, 5):
        whole, mine = _fresh(student, n)[0], _fresh(student, n)
        for rank, row in enumerate(mine):
            row[(rank + 1) % n] = whole[(rank + 1) % n].clone()
        run = _on_views(student, "copy_around", n, mine)
        _as_a_ring_sends(student, run, n)
        pairs = [pair for row, had in zip(run.results, mine, strict=True) for pair in zip(row, had, strict=True)]
        student.expect(
            not all(torch.equal(a, b) for a, b in pairs),
            "Chunks were sent, but none has changed. What arrives is written into the third argument of `exchange`. If "
            "that is a new tensor, as `torch.empty_like(into)` is, the chunk stays as it was: give it `into` itself.",
        )
        for rank, row in enumerate(run.results):
            mixed = _not_all(row, mine[rank], whole, rank)
            student.expect(not mixed, "With {n} ranks, on rank {rank}: {mixed}", n=n, rank=rank, mixed=mixed)
        expected = [sum(c.nbytes for c in row) - row[(rank + 2) % n].nbytes for rank, row in enumerate(mine)]
        student.expect(run.bytes_sent == expected, SMALLER)
    return "With 2, 3 and 5 ranks every rank has every chunk of the sum, and each chunk came to it once."


@you_write(everyone_has_all)
def copy_around(chunks: Sequence[Tensor], group: Group) -> None:
    """Second half: pass complete chunks on, until every rank has all of them."""
    n, me = group.size, group.rank
    right, left = (me + 1) % n, (me - 1) % n
    for step in range(n - 1):
        out, into = chunks[(me - step + 1) % n], chunks[(me - step) % n]
        group.exchange(out, right, into, left)


def few_rounds(student: Student) -> str:
    for n in (2, 4, 8):
        x = [student.tensor(6) + 100 * rank for rank in range(n)]
        run = _with_hint(partial(student.run, "my_recursive_doubling", n, x))
        total, rounds = sum(x), n.bit_length() - 1
        pair = [x[r] + x[r ^ 1] for r in range(n)]
        student.expect(not run.library, ALONE, name=", ".join(run.library))
        student.expect(
            any(run.messages),
            "With {n} ranks nothing was sent. Begin with distance 1, and go on while it is smaller than `group.size`.",
            n=n,
        )
        student.expect(None not in run.results, "A rank returned None: return `x` when it holds the sum.")
        larger: Slips = {
            "Every rank has the sum over its pair: go on with partners 2, 4, ... ranks away.": pair,
            "Every rank has met the same partner in every round, so it has the sum of its pair several times. The "
            "distance must double in each round.": [(n // 2) * both for both in pair],
            "All hold the sum several times: the distance must double in each round, 1, 2, 4.": [total * (n // 2)] * n,
            "The numbers of one rank are missing: from the second round on, send the sum so far, and not your own "
            "numbers again.": [pair[r] + x[r ^ 2] for r in range(n)] if n > 2 else [],
        }
        student.expect_results(
            run,
            [total] * n,
            {
                "Every rank still has its own numbers: what arrives must be added to `x`.": x,
                "Every rank has the numbers of one partner only: what arrives must be added.": [
                    x[r ^ 1] for r in range(n)
                ],
                "Every rank has its partner's numbers twice, and its own not at all: `exchange` writes what arrives "
                "over the tensor that you receive into. Give it `torch.empty_like(x)`.": [
                    2 * x[r ^ 1] for r in range(n)
                ],
                "That is half of the sum, as an average of two would be. Only add up here: nothing is divided.": [
                    total / 2
                ]
                * n,
                **(larger if n > 2 else NOTHING),
            },
        )
        text = (
            "The sum is right. But with {n} ranks rank {rank} sent {got} bytes, and one tensor of {one} in each of "
            "{rounds} rounds is {expected}: does each round double the number of ranks whose numbers you have?"
        )
        one = format_bytes(x[0].nbytes)
        student.expect_by_rank(run.bytes_sent, [rounds * x[0].nbytes] * n, text, n=n, rounds=rounds, one=one)
        student.expect(
            run.rounds <= rounds,
            "The sum is right. But with {n} ranks {got} messages have to follow one another, where {rounds} would do: "
            "let both partners send at the same time.",
            n=n, got=run.rounds, rounds=rounds,
        )  # fmt: skip
    torch.manual_seed(student.seed)
    first, *others = student.run("my_recursive_doubling", 4, [torch.randn(2000) for _ in range(4)]).results
    away = [rank for rank, held in enumerate(others, 1) if not torch.equal(held, first)]
    student.expect(
        not away,
        "The sum is right up to rounding, but with 4 ranks rank {rank} does not hold the same bits as rank 0. In each "
        "round send to the rank from which you receive: then both add the same two tensors.",
        rank=away and away[0],
    )  # fmt: skip
    return "With 2, 4 and 8 ranks all hold the sum after 1, 2 and 3 rounds, and the same bits."


@you_write(few_rounds)
def my_recursive_doubling(x: Tensor, group: Group) -> Tensor:
    """Return the sum of all ranks' `x`. The number of ranks is a power of two."""
    distance = 1
    while distance < group.size:
        partner = group.rank ^ distance
        x += group.exchange(x, partner, torch.empty_like(x), partner)
        distance *= 2
    return x


def _fresh(student: Student, n: int) -> Rows:
    """For each rank its chunks, of two lengths if n is 5; no two ranks and no two chunks have the same numbers."""
    return [
        [student.tensor(2 + (n == 5 and c == 0)) + 100 * (rank + 1) + 1000 * c for c in range(n)] for rank in range(n)
    ]


def _coded(n: int) -> Rows:
    """As above, with numbers whose sums tell what is in them: rank r's chunk c has 10^r, and then (c + 2) 10^r."""
    return [
        [torch.tensor([1, *[c + 2] * (1 + (n == 5 and c == 0))], dtype=torch.float64) * 10**rank for c in range(n)]
        for rank in range(n)
    ]


def _not_the_sum(row: Sequence[Tensor], want: int, rank: int) -> str:
    """What is in this chunk of coded numbers in place of each rank's once; "" if nothing is."""
    n, ones, (first, second) = len(row), (10 ** len(row) - 1) // 9, row[want][:2].tolist()
    if first != int(first):
        return "something was divided. Here the ranks' numbers are only added up."
    times = [int(first) // 10**r % 10 for r in range(n)]
    if times == [int(r == rank) for r in range(n)]:
        found = [c for c in range(n) if row[c][:2].tolist() == [ones, ones * (c + 2)]]
        if found:
            return f"it has it in chunk {found[0]}. Which chunk does a rank send first?"
        again = [(c, r) for c in range(n) for r in range(n) if int(row[c][0]) // 10**r % 10 > 1]
        if again:
            return "nothing was added to it, and chunk {} has the numbers of rank {} twice. ".format(*again[0]) + ONWARD
        if any(row[c][1] != row[c][0] * (c + 2) for c in range(n)):
            return MIXED
        other = [c for c in range(n) if row[c][0] != 10**rank]
        if other:
            return f"nothing was added to it, but to chunk {other[0]}. {DOWN}"
        return (
            "nothing was added to it. Does what arrives change the chunk itself? `into += x` does, but "
            "`into = into + x` and `chunks[c] = x` make another tensor."
        )
    if second != first * (want + 2):
        return MIXED
    if times == [1] * n:
        return ""
    if not times[rank] and max(times) > 1:
        return (
            "its own numbers are gone, and what arrived is in it twice. `exchange` writes over the tensor that you "
            "receive into, so receive into a new tensor, `torch.empty_like` of that chunk."
        )
    if not times[rank]:
        return "its own numbers are gone. What arrives must be added to the chunk, and not written over it."
    if min(times) > 1:
        return f"every rank's numbers are in it {min(times)} times or more. Add what arrives once."
    twice = [r for r in range(n) if times[r] > 1]
    if twice:
        return f"the numbers of rank {twice[0]} are in it {times[twice[0]]} times. {ONWARD}"
    missing = " and ".join(str(r) for r in range(n) if not times[r])
    return f"the numbers of rank {missing} are missing. {ONWARD}"


def _not_all(row: Sequence[Tensor], had: Sequence[Tensor], whole: Sequence[Tensor], rank: int) -> str:
    """What is wrong with the chunks of a rank that should all be those of `whole`; "" if nothing is."""
    own = (rank + 1) % len(row)
    if not torch.equal(row[own], whole[own]):
        return (
            f"chunk {own} was complete at the beginning, and is not any more, because something was written over it. "
            f"Which chunk does a rank send first, and which one arrives? {DOWN}"
        )
    for c, (now, before, right) in enumerate(zip(row, had, whole, strict=True)):
        if torch.equal(now, right):
            continue
        if torch.equal(now, before):
            return f"chunk {c} never arrived. {DOWN}"
        if torch.equal(now, before + right):
            return f"the sum was added to chunk {c}. Here what arrives replaces what was there."
        if torch.equal(now, 2 * right):
            return f"chunk {c} has the sum twice. `exchange` has written it there already, so nothing is left to add."
        if other := [k for k, one in enumerate(whole) if torch.equal(now, one)]:
            return (
                f"chunk {c} has what belongs into chunk {other[0]}. The chunk that a rank sends and the chunk into "
                "which its right neighbour receives must have the same number."
            )
        return f"chunk {c} is not the sum. A rank may only pass on what is complete, so chunk r + 1 comes first."
    return ""


def _on_views(student: Reader, name: str, n: int, rows: Rows) -> Evidence:
    """Run it on views of one tensor on each rank, as the chapter does; results are the chunks of that tensor."""

    def call(fn: Callable[..., Any], row: list[Tensor], group: Group) -> list[Tensor]:
        whole, lengths = torch.cat(row), [len(chunk) for chunk in row]
        fn(list(whole.split(lengths)), group)
        return [chunk.clone() for chunk in whole.split(lengths)]

    return _with_hint(lambda: student.through(name, n, [[chunk.clone() for chunk in row] for row in rows], call))


def _with_hint(run: Callable[[], Evidence]) -> Evidence:
    """What `run` gives; where ranks wait for each other, or a number is out of range, with the likely cause."""
    try:
        return run()
    except StudentError as error:
        raise StudentError(f"{error} {_likely(str(error), error.detail)}".rstrip(), error.detail) from None


def _likely(said: str, detail: str) -> str:
    if "wait for each other" in said:
        if "send" in detail and "receive" in detail:
            return "Does each rank receive from the one that sends to it? Look at the two ranks in your `exchange`."
        what = "send before anybody receives" if "send" in detail else "wait for a message before anybody has sent"
        return f"All of them {what}. `group.exchange` does both at the same time."
    if "IndexError" in said:
        return "Take the numbers of chunks modulo n: after the last chunk comes chunk 0."
    if "is not in this group" in said or "to itself" in said:
        return "The partner is `group.rank ^ distance`, with distances 1, 2, 4, ... smaller than `group.size`."
    return ""


def _as_a_ring_sends(student: Student, run: Evidence, n: int) -> None:
    """Each rank sends n - 1 messages, and all of them to its right neighbour."""
    student.expect(not run.library, ALONE, name=", ".join(run.library))
    for rank, row in enumerate(run.bytes_between):
        others = [to for to, nbytes in enumerate(row) if nbytes and to != (rank + 1) % n]
        student.expect(
            not others,
            "With {n} ranks rank {rank} sent to rank {to}, which is not its right neighbour. Chunks travel to the "
            "right: send to `right`, and receive from `left`.",
            n=n, rank=rank, to=others and others[0],
        )  # fmt: skip
    student.expect(
        any(run.messages), "With {n} ranks nothing was sent. The loop has n - 1 rounds, with one exchange in each.", n=n
    )
    student.expect_by_rank(
        run.messages, [n - 1] * n,
        "The loop has n - 1 rounds with one message in each. With {n} ranks that is {expected}, but rank {rank} sent "
        "{got}: does the loop {cause}?",
        n=n, cause=lambda got, expected: "end too early" if got < expected else "make a round too many",
    )  # fmt: skip
