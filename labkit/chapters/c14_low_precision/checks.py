"""What the checks of chapter 14 give to its first two programs, and how they judge what came back.

Inputs are small whole numbers times powers of two, and thirds of them. What ranks must return is computed on one
device that has the numbers of all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from labkit import cost
from labkit.grading.checks.student import Evidence, Slips, Student
from labkit.grading.known import Answers
from labkit.optim.precision import E4M3

answers = Answers("14_low_precision")  # what only instructors can compute

Draw = Callable[..., Tensor]
Steps = list[list[Tensor]]  # of a rank: its tensors, step by step


def ranks(n: int) -> str:
    return f"With {n} rank{'s' * (n != 1)}"


def two_tensors(student: Student, run: Evidence, names: str) -> None:
    """Every rank returned a list of two tensors."""
    for rank, result in enumerate(run.results):
        fine = isinstance(result, (list, tuple)) and len(result) == 2 and all(isinstance(x, Tensor) for x in result)
        student.expect(fine, f"{ranks(len(run.results))}: rank {rank} returned no list of two tensors: {names}.")


# Scales that remember -------------------------------------------------------------------------------------------------

MEMORY_SLIPS = {
    "current": "the scale of a step has seen the amax of the same step. That one is found while casting, and serves "
    "from the next step on.",
    "own": "each rank has looked at its own numbers only. The largest of all ranks decides.",
    "for ever": "the history never forgets: it has the amaxes of all steps, and not of the last `history` good ones.",
    "last": "only the last amax counts. The largest of the last `history` ones should.",
    "one more": "the history has one amax too many.",
    "one fewer": "the history has one amax too few.",
    "bad": "a step that nobody takes has left amaxes in the histories. It should leave nothing behind.",
    "inverse": "the scale is turned around. What is the amax to be multiplied by?",
    "signed": "the largest number is not the amax: a negative one may be larger in size.",
}


def shards(
    draw: Draw, n: int, steps: int, tensors: int, wrong: Sequence[tuple[int, int, int, float]] = (), empty: int = -1
) -> list[Steps]:
    """By rank, for each step its shards of so many tensors. wrong: (step, rank, tensor, number) for what is not finite.

    Tensor 1 is all zeros at first. empty: a rank that has no numbers of tensor 2.
    """
    found: list[Steps] = []
    for rank in range(n):
        mine: Steps = []
        for step in range(steps):
            power = draw(tensors, dtype=torch.float64) / 2
            if step == 1 or any(step == one[0] for one in wrong):
                power = torch.full((tensors,), 4.0)  # the largest numbers are those that should be forgotten
            lengths = [0 if rank == empty and i == 2 else 2 + (rank + i) % 3 for i in range(tensors)]
            mine.append([draw(few) * 2.0 ** power[i].item() for i, few in enumerate(lengths)])
            mine[step][1] *= step > 3
        found.append(mine)
    for step, rank, tensor, number in wrong:
        found[rank][step][tensor][-1] = number
    return found


def spoilt(inputs: Sequence[Steps], step: int) -> list[int]:
    """The ranks with a number that is not finite."""
    return [rank for rank, mine in enumerate(inputs) if not all(bool(x.isfinite().all()) for x in mine[step])]


def expect_memory(student: Student, run: Evidence, inputs: Sequence[Steps], history: int) -> None:
    """Every rank has the scales of each step, and has taken the same steps as all others."""
    two_tensors(student, run, "scales, taken")
    n, steps, tensors = len(inputs), len(inputs[0]), len(inputs[0][0])
    for rank, (scales, taken) in enumerate(run.results):
        who = f"{ranks(n)}: on rank {rank}"
        fine = list(scales.shape) == [steps, tensors]
        student.expect(fine, "{who} `scales` has the shape {got}; it should have a row for each step and a column for "
                       "each tensor: {want}.", who=who, got=list(scales.shape), want=[steps, tensors])  # fmt: skip
        fine = taken.dtype == torch.bool and list(taken.shape) == [steps]
        student.expect(fine, "{who} `taken` should be a tensor of {steps} booleans.", who=who, steps=steps)
        for step in range(steps):
            for bad in spoilt(inputs, step):
                why = "" if bad == rank else "Ask all of them, and not this one alone."
                text = "{who} step {step} was taken, though rank {bad} has a number that is not finite. {why}"
                student.expect(not taken[step], text, who=who, step=step, bad=bad, why=why)
            text = "{who} step {step} was not taken, though all numbers of all ranks are finite."
            student.expect(taken[step] or spoilt(inputs, step), text, who=who, step=step)
        strange = (~scales.isfinite() | (scales == 0)).nonzero().tolist()
        if strange:
            step, tensor = strange[0]
            why = "A history without any number above 0 gives a scale of 1, and an amax that is not finite never gets "\
                  "into a history."  # fmt: skip
            text = "{who} the scale of tensor {tensor} in step {step} is {scale}. {why}"
            student.expect(False, text, who=who, tensor=tensor, step=step, scale=scales[step, tensor].item(), why=why)
    told = [list(mine) for mine in inputs]
    right = answers.remembered(told, history, E4M3.max)
    slips: Slips = {
        f"{ranks(n)}: {why}": answers.remembered(told, history, E4M3.max, mistake)
        for mistake, why in MEMORY_SLIPS.items()
    }
    student.expect_results(run, right, slips, within=1e-6)


def expect_one_message(student: Student, run: Evidence, steps: int, tensors: int) -> None:
    """In each step no rank took part in more than one all-reduce, of one number for each tensor and one more."""
    n = len(run.results)
    most, got = steps * cost.ring_all_reduce_rounds(n), max(run.messages)
    text = "{who} a rank sent {got} messages in {steps} steps, and one all-reduce in each step has {most}. Let the "\
           "amaxes of all tensors travel together, and let them say whether they are finite."  # fmt: skip
    student.expect(got <= most, text, who=ranks(n), got=got, steps=steps, most=most)
    due = [steps * nbytes for nbytes in cost.ring_all_reduce_bytes_by_rank(tensors + 1, 4, n)]
    rank = max(range(n), key=lambda r: run.bytes_sent[r] - due[r])
    text = "{who} rank {rank} sent {got:bytes} in {steps} steps; all-reduces of {numbers} numbers of 4 bytes, one in "\
           "each step, are {due:bytes}."  # fmt: skip
    student.expect(run.bytes_sent[rank] <= due[rank], text, who=ranks(n), rank=rank, got=run.bytes_sent[rank],
                   steps=steps, numbers=tensors + 1, due=due[rank])  # fmt: skip


# Parts of unequal length ----------------------------------------------------------------------------------------------

PARTS_SLIPS = {
    "forget": "what was lost by rounding is forgotten. Add it to the gradient of the next step.",
    "own": "a rank's own part was packed as well. It does not travel, so it stays as it is.",
    "one scale": "the gradient was packed as a whole, with one scale. Each part has its own.",
    "sign": "what was left has the wrong sign: it is what should have been sent, minus what was sent.",
    "mean": "that is the average. The sum is asked for.",
    "exact": "the parts were not rounded to 8 bits on their way.",
    "gradient": "what was left was computed from the gradient alone. What is packed is the gradient *and* what was "
    "left before.",
}


def gradients(draw: Draw, sizes: Sequence[int], steps: int) -> list[list[Tensor]]:
    """By rank so many gradients. The numbers of each part are 16 times as large as those of the part before."""
    power = torch.cat([torch.full((few,), 16.0**part) for part, few in enumerate(sizes)])
    return [[draw(sum(sizes)) / 3 * power for _ in range(steps)] for _ in sizes]


def expect_parts(student: Student, run: Evidence, inputs: Sequence[list[Tensor]], sizes: Sequence[int]) -> None:
    """Every rank has the sums of its part, step by step, and what it still owes to the others."""
    two_tensors(student, run, "sums, left")
    n = len(sizes)
    told = [list(mine) for mine in inputs]

    def both(mistake: str = "") -> tuple[list[Any], list[Any]]:
        sums, left = zip(*answers.in_parts(told, list(sizes), mistake), strict=True)
        return list(sums), list(left)

    right = both()
    wrong = {f"{ranks(n)}: {why}": both(mistake) for mistake, why in PARTS_SLIPS.items()}
    for which in (0, 1):  # the order of a sum is free, but what was left has no rounding of its own
        slips: Slips = {why: pair[which] for why, pair in wrong.items()}
        mine = Evidence(results=[result[which] for result in run.results])
        student.expect_results(mine, right[which], slips, within=0.0 if which else 1e-6)


def bytes_of_parts(sizes: Sequence[int], steps: int, each: int = 1, scale: int = 4, empty: bool = False) -> list[int]:
    """Bytes that each rank sends: a message for each part of the others that has numbers. empty: for all of them."""
    n = len(sizes)
    return [
        steps * sum(scale + each * few for s, few in enumerate(sizes) if s != r and (few or empty)) for r in range(n)
    ]


def expect_bytes_of_parts(student: Student, run: Evidence, sizes: Sequence[int], steps: int) -> None:
    """Every rank sent a byte for each number, and 4 for each message, to the byte."""
    n, right = len(sizes), bytes_of_parts(sizes, steps)
    causes = {
        "The numbers travel in 32 bits. `pack` each part first.": bytes_of_parts(sizes, steps, 4, 0),
        "A part without numbers has sent a scale. It should send nothing.": bytes_of_parts(sizes, steps, empty=True),
        "Every part goes to every rank. Only rank r needs the parts with number r.": [
            (n - 1) * steps * sum(4 + few for few in sizes if few)
        ] * n,
        "The scales are missing.": bytes_of_parts(sizes, steps, scale=0),
    }  # fmt: skip
    for cause, wrong in causes.items():
        text = "{who} the ranks sent {got:bytes} together, in place of {want:bytes}. {cause}"
        student.expect(run.bytes_sent != wrong or wrong == right, text, who=ranks(n), got=sum(wrong), want=sum(right),
                       cause=cause)  # fmt: skip
    text = "{who} rank {rank} sent {got:bytes}; a byte for each number of the others' parts, and 4 for each message, "\
           "are {expected:bytes}."  # fmt: skip
    student.expect_by_rank(run.bytes_sent, right, text, who=ranks(n))
