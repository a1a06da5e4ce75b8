"""What the checks of chapter 8 give to two of its programs, a server and a sparse sum, and how they judge them.

Inputs are whole numbers, so that sums are exact in every order. What ranks must return is computed on one device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from labkit.grading.checks.student import Evidence, Slips, Student
from labkit.grading.known import Answers

answers = Answers("08_loose_synchrony")  # what only instructors can compute

Draw = Callable[..., Tensor]
Inputs = list[dict[str, Tensor]]


def ranks(n: int) -> str:
    return f"With {n} rank{'s' * (n != 1)}"


# A server and its queue -----------------------------------------------------------------------------------------------

NUMBERS = 3  # of the weights
QUEUE_SLIPS = {
    "free": "nobody ever waits. A worker gets new weights only if its clock is at most s above the smallest.",
    "strict": "a worker who is ahead by exactly s has to wait. It may go on.",
    "one more": "workers go on with a lead of s + 1. Compare the clock *after* the update with the smallest clock.",
    "old": "a worker that was held up gets the weights of the moment at which it came. It gets those of the moment at "
    "which it may go on, and its staleness counts from there.",
    "since": "the answer to a worker that was held up carries the time of its own push. It carries the time of the "
    "update that let it go on, for earlier it cannot begin.",
    "high": "of two gradients with the same time, that of the higher rank is applied first. The lower rank is first.",
    "own": "a gradient's own update is counted in its staleness. Count those in between.",
}


def shift(draw: Draw, n: int, clocks: int, slow: int = 4) -> Inputs:
    """For the server its first weights, and for each worker how long its gradients take, in ms, and their data.

    The last worker is `slow` times as slow.
    """
    found = [{"weights": draw(NUMBERS, dtype=torch.float64)}]
    for rank in range(1, n):
        takes = draw(clocks, dtype=torch.int64).abs() * (slow if rank == n - 1 else 1)
        found.append({"takes": takes, "x": draw(clocks, NUMBERS, dtype=torch.float64)})
    return found


def _served(inputs: Inputs, s: int, mistake: str = "") -> list[Any]:
    takes = [mine["takes"].tolist() for mine in inputs[1:]]
    found: list[Any] = answers.served(inputs[0]["weights"], takes, [mine["x"] for mine in inputs[1:]], s, mistake)
    return found


def expect_queue(student: Student, run: Evidence, inputs: Inputs, s: int) -> None:
    """The server's log: every update in its order, with its time, worker, clock and staleness."""
    n, told = len(inputs), f"{ranks(len(inputs))} and s = {s}"
    result = run.results[0]
    fine = isinstance(result, (list, tuple)) and len(result) == 2 and all(isinstance(x, Tensor) for x in result)
    student.expect(fine, f"{told}: rank 0 returned no list of two tensors: weights, log.")
    log, right = result[1], _served(inputs, s)[0][1]
    shape = tuple(log.shape) == tuple(right.shape) and not log.is_floating_point()
    text = "{told}: the log is {kind} of the shape {got}. It is int64, with a row of 4 for each of {rows} updates."
    student.expect(shape, text, told=told, got=tuple(log.shape), kind=str(log.dtype), rows=len(right))
    log = log.long()
    for mistake, why in QUEUE_SLIPS.items():
        wrong = _served(inputs, s, mistake)[0][1]
        student.expect(torch.equal(wrong, right) or not torch.equal(log, wrong), f"{told}: {why}")
    for number, (got, want) in enumerate(zip(log.tolist(), right.tolist(), strict=True)):
        text = (
            "{told}: update {number} of your log is the gradient of worker {worker} from {ms} ms. It should be that of "
        )
        text += "worker {want} from {at} ms, the earliest that was not applied yet."
        student.expect(got[:2] == want[:2], text, told=told, number=number, worker=got[1], ms=got[0], want=want[1],
                       at=want[0])  # fmt: skip
        text = "{told}: update {number}, of worker {worker}, has the {what} {got} in your log, in place of {want}."
        for what, place in (("clock", 2), ("staleness", 3)):
            student.expect(got[place] == want[place], text, told=told, number=number, worker=want[1], what=what,
                           got=got[place], want=want[place])  # fmt: skip
    assert n == len(run.results)


def expect_served(student: Student, run: Evidence, inputs: Inputs, s: int) -> None:
    """The log, the weights to the bit of the order of updates, and for how long each worker waited."""
    expect_queue(student, run, inputs, s)
    right, told = _served(inputs, s), f"{ranks(len(inputs))} and s = {s}"
    for rank, (got, want) in enumerate(zip(run.results[1:], right[1:], strict=True), 1):
        fine = isinstance(got, (int, float)) and not isinstance(got, bool)
        student.expect(fine, "{told}: worker {rank} did not return its waiting time as a number.", told=told, rank=rank)
        text = (
            "{told}: worker {rank} says that it waited {got:g} ms. It waited {want} ms, from the times of its pushes "
        )
        text += "to those of the answers."
        student.expect(got == want, text, told=told, rank=rank, got=float(got), want=want)
    first = inputs[0]["weights"]
    got = run.results[0][0]
    fine = got.shape == first.shape and got.dtype == first.dtype
    student.expect(fine, f"{told}: the weights have the shape and dtype of `mine['weights']`.")
    near = torch.allclose(got, right[0][0], rtol=1e-9, atol=1e-9)
    text = (
        "{told}: the log is right, and the weights are not: off by up to {off:.2g}. Does each gradient belong to the "
    )
    text += "weights that its worker was sent, and does it move them by a quarter?"
    student.expect(near, text, told=told, off=float((got - right[0][0]).abs().max()))


def expect_one_message_each(student: Student, run: Evidence, inputs: Inputs) -> None:
    """One message for each gradient, and one for each time that weights are sent."""
    n, clocks = len(inputs), len(inputs[1]["takes"])
    each = clocks * 8 * (1 + NUMBERS)
    text = "{who} {name} was called. A server answers workers one by one, with plain messages."
    student.expect(not run.library, text, who=ranks(n), name=" and ".join(run.library))
    due, counts = [(n - 1) * each, *[each] * (n - 1)], [(n - 1) * clocks, *[clocks] * (n - 1)]
    for rank in range(n):
        who = "the server" if rank == 0 else f"worker {rank}"
        more = (
            "After its last gradient a worker gets nothing more." if rank == 0 else "A push also asks for the weights."
        )
        text = "{told} {who} sent {got} messages, and {want} are enough. {more}"
        student.expect(run.messages[rank] <= counts[rank], text, told=ranks(n), who=who, got=run.messages[rank],
                       want=counts[rank], more=more)  # fmt: skip
        text = "{told} {who} sent {got:bytes}, and {want:bytes} are enough: the time and {numbers} numbers each time."
        student.expect(run.bytes_sent[rank] <= due[rank], text, told=ranks(n), who=who, got=run.bytes_sent[rank],
                       want=due[rank], numbers=NUMBERS)  # fmt: skip
    text = "{who}: worker {rank} sent to worker {to}. Workers speak with the server only."
    for rank, row in enumerate(run.bytes_between[1:], 1):
        others = [to for to, nbytes in enumerate(row) if nbytes and to]
        student.expect(not others, text, who=ranks(n), rank=rank, to=others and others[0])


# A sum of the largest -------------------------------------------------------------------------------------------------

ENTRY, COUNT = 8, 8  # bytes of a place and a value; of a count
SPARSE_SLIPS = {
    "forgets": "what is not sent is forgotten. Add it to the next gradient.",
    "keeps": "what was sent is still in the residual. It is sent twice then.",
    "drops": "the owner's sums that are not among its largest are lost. They stay in the owner's own residual.",
    "everywhere": "every rank has kept what an owner's part had left. Only the owner keeps it, or it counts n times.",
    "all k": "each owner passes on k sums. All of them together pass on k: k // n each.",
    "signed": "you took the largest numbers and not those of largest size. -7 is larger in size than 5.",
    "high": "of equal sizes you took the higher place first, or left it to chance. The lower place comes first.",
    "mean": "the values are averaged. Here they are summed.",
}


def streams(draw: Draw, n: int, steps: int, part: int) -> list[Tensor]:
    """The gradients of each rank in all steps: (steps, n * part) whole numbers in float32."""
    return [draw(steps, n * part) for _ in range(n)]


def expect_sparse_sums(student: Student, run: Evidence, gradients: Sequence[Tensor], k: int) -> None:
    """Every rank returned the updates of all steps, and its residual in the end."""
    n = len(gradients)
    for rank, result in enumerate(run.results):
        fine = isinstance(result, (list, tuple)) and len(result) == 2 and all(isinstance(x, Tensor) for x in result)
        student.expect(fine, f"{ranks(n)}: rank {rank} returned no list of two tensors: updates, residual.")
    right = answers.thinned(list(gradients), k)[0]
    slips: Slips = {
        f"{ranks(n)}: {why}": answers.thinned(list(gradients), k, mistake)[0] for mistake, why in SPARSE_SLIPS.items()
    }
    student.expect_results(run, right, slips)


def expect_nothing_lost(student: Student, run: Evidence, gradients: Sequence[Tensor]) -> None:
    """All updates and all residuals add up to all gradients, to the bit, and all ranks have the same updates."""
    n, shape = len(gradients), tuple(gradients[0].shape)
    for rank, result in enumerate(run.results):
        fine = isinstance(result, (list, tuple)) and len(result) == 2 and all(isinstance(x, Tensor) for x in result)
        fine = fine and tuple(result[0].shape) == shape and tuple(result[1].shape) == shape[1:]
        student.expect(
            fine, f"{ranks(n)}: rank {rank} returned no [updates, residual] of the shapes {shape} and {shape[1:]}."
        )
        same = torch.equal(result[0], run.results[0][0])
        student.expect(same, f"{ranks(n)}: ranks 0 and {rank} have different updates, so their weights drift apart.")
    given = torch.stack(list(gradients)).double().sum((0, 1))
    moved, kept = run.results[0][0].double().sum(0), torch.stack([r[1].double() for r in run.results]).sum(0)
    off = (moved + kept - given).abs()
    text = "{who}: at place {i} all gradients add up to {given:g}, but updates and residuals together to {got:g}. "
    text += "Whatever is not in an update must be in exactly one residual."
    i = int(off.argmax())
    student.expect(not off.any(), text, who=ranks(n), i=i, given=float(given[i]), got=float((moved + kept)[i]))
    student.expect(bool(moved.any()), f"{ranks(n)}: no update moves anything.")


def expect_entries_only(student: Student, run: Evidence, gradients: Sequence[Tensor], k: int) -> None:
    """Counts, then each entry once to its owner, and from each owner its largest sums to all others."""
    n, steps = len(gradients), len(gradients[0])
    rows = answers.thinned(list(gradients), k)[1]
    ahead, behind = steps * (n - 1) * COUNT, steps * (n - 1) * (k // n) * ENTRY
    due = [ahead + ENTRY * int(rows[r].sum() - rows[r, r]) + behind for r in range(n)]
    gathered = steps * (n - 1) * k * ENTRY
    for rank, (got, most) in enumerate(zip(run.bytes_sent, due, strict=True)):
        why = "Is it 4 bytes for a place and 4 for a value, and does nothing go to a rank that does not own it?"
        if got >= gathered:
            why = "Every rank gets all of your k entries. An entry goes to the owner of its place only."
        text = "{who}: rank {rank} sent {got:bytes} in {steps} steps, and {most:bytes} are enough. {why}"
        student.expect(got <= most, text, who=ranks(n), rank=rank, got=got, steps=steps, most=most, why=why)
