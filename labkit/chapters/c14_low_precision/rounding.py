"""What the checks of chapter 14 give to its last two programs: numbers that are rounded by chance, and blocks that lie
on several ranks; and how they judge what came back.

Chance is judged by what it must do on average, with limits that a right program passes but for one run in a billion.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from labkit import cost
from labkit.chapters.c14_low_precision.checks import Draw, answers, ranks, two_tensors
from labkit.grading.checks.fresh import number_from
from labkit.grading.checks.student import Evidence, Slips, Student

# By chance ------------------------------------------------------------------------------------------------------------

STEP, GRAIN, RATE = 2.0**-10, 2.0**-7, 0.25  # of gradients, of weights; the learning rate
PARTS = (0.0, 0.25, 0.3125, 0.8125)  # of a step that are left over, in turn
FAR = 6.5  # standard deviations
Inputs = list[dict[str, Tensor]]


def dice(*numbers: int) -> torch.Generator:
    """Random numbers that follow from these whole numbers and their order, on whatever rank."""
    return torch.Generator().manual_seed(number_from(*numbers) % 2**31)


def alike(draw: Draw, n: int, numel: int, whole: bool = False) -> Inputs:
    """The same weights and gradients on n ranks. whole: gradients are whole steps, and no chance is needed."""
    parts = torch.tensor([0.0] if whole else PARTS).repeat(numel)[:numel]
    gradient, weights = (draw(numel) + parts) * STEP, draw(numel) * GRAIN
    return [{"gradient": gradient.clone(), "weights": weights.clone()} for _ in range(n)]


def expect_fair_sums(student: Student, run: Evidence, inputs: Inputs) -> None:
    """`total` is the sum of gradients that each rank has rounded by its own chance."""
    two_tensors(student, run, "total, weights")
    n, exact = len(inputs), inputs[0]["gradient"].double() / STEP
    for rank, (total, _) in enumerate(run.results):
        text = "{who} rank {rank} returned a total of {dtype}, of shape {shape}; it should be int16, of shape {want}."
        fine = total.dtype == torch.int16 and total.shape == exact.shape
        student.expect(fine, text, who=ranks(n), rank=rank, dtype=str(total.dtype).removeprefix("torch."),
                       shape=list(total.shape), want=list(exact.shape))  # fmt: skip
        text = "{who} rank {rank} has another total than rank 0. Is it summed over all ranks?"
        student.expect(torch.equal(total, run.results[0][0]), text, who=ranks(n), rank=rank)
    total = run.results[0][0].double()
    named = {
        "to the nearest whole step": exact.round(), "always down": exact.floor(), "always towards 0": exact.trunc(),
        "always up": exact.ceil(),
    }  # fmt: skip
    for how, fixed in named.items():
        text = "{who} each number was rounded {how}, and nothing was left to chance."
        student.expect(not torch.equal(total, n * fixed), text, who=ranks(n), how=how)
    low, high = n * exact.floor(), n * exact.ceil()
    outside = ((total < low) | (total > high)).double().mean().item()
    text = "{who} {share:.0%} of the totals are no sums of neighbours: a number of 2.3 steps becomes 2 or 3 on each "\
           "rank, and -2.3 becomes -2 or -3."  # fmt: skip
    student.expect(outside < 0.01, text, who=ranks(n), share=outside)  # 0.01: k + rand may round up to k + 1
    part = exact - exact.floor()
    for sign, name in ((1, "positive"), (-1, "negative")):
        for share in sorted(set(part.tolist()) - {0.0}):
            here = (exact.sign() == sign) & (part == share)
            off = total[here] / n - exact[here]
            far = (off.sum() * (n / (len(off) * share * (1 - share))) ** 0.5).item() if len(off) else 0.0
            text = "{who} {name} numbers that are {share} above a whole step are {off:+.2f} steps off on average. The "\
                   "mean should be right: up with the probability of what is cut off, and down otherwise."  # fmt: skip
            student.expect(abs(far) < FAR, text, who=ranks(n), name=name, share=share, off=off.mean().item())
    loose = part > 0
    spread = ((total - n * exact).square()[loose] / (n * part * (1 - part))[loose]).mean().item()
    text = "{who} the errors of the totals are {times:.1f} times as large as they need to be: do all ranks draw the "\
           "same numbers? Then their errors add up, and do not cancel."  # fmt: skip
    student.expect(spread < 1.4, text, who=ranks(n), times=spread**0.5)
    text = "{who} the totals spread less than chance would have them. Each number needs a draw of its own."
    student.expect(spread > 0.6, text, who=ranks(n))


def expect_new_draws(student: Student, now: Evidence, later: Evidence, whole: bool) -> None:
    """The same inputs in another step. whole: gradients have no chance, so look at the weights, and else at totals."""
    two_tensors(student, now, "total, weights")
    two_tensors(student, later, "total, weights")
    which, what = int(whole), "weights" if whole else "gradients"
    for rank, (mine, other) in enumerate(zip(now.results, later.results, strict=True)):
        text = "{who} the {what} of rank {rank} are rounded alike in the steps `t` and `t + 1`. A number that was "\
               "unlucky would be so in every step: draw anew in each."  # fmt: skip
        fine = not torch.equal(mine[which], other[which])
        student.expect(fine, text, who=ranks(len(now.results)), what=what, rank=rank)


def expect_fair_weights(student: Student, run: Evidence, inputs: Inputs) -> None:
    """All ranks have the same weights: the exact ones after the step, rounded by chance to whole grains."""
    two_tensors(student, run, "total, weights")
    n, before = len(inputs), inputs[0]["weights"]
    for rank, (_, weights) in enumerate(run.results):
        text = "{who} the weights of rank {rank} are no float32 of shape {shape}."
        fine = weights.dtype == torch.float32 and weights.shape == before.shape
        student.expect(fine, text, who=ranks(n), rank=rank, shape=list(before.shape))
        text = "{who} rank {rank} has other weights than rank 0. They began alike, and all ranks must round them alike."
        student.expect(torch.equal(weights, run.results[0][1]), text, who=ranks(n), rank=rank)
    total, weights = (x.double() for x in run.results[0])
    exact = (before.double() - RATE * STEP * total / n) / GRAIN
    grains = weights / GRAIN
    text = "{who} the weights are no whole grains of {grain:g}."
    student.expect(torch.equal(grains, grains.round()), text, who=ranks(n), grain=GRAIN)
    text = "{who} no weight has moved. The updates are less than half a grain, so rounding to the nearest loses them."
    student.expect(not torch.equal(weights, before.double()), text, who=ranks(n))
    off = grains - exact
    text = "{who} a weight is {off:.1f} grains away from where the mean gradient takes it. Only its two neighbours "\
           "are possible."  # fmt: skip
    student.expect(off.abs().max() < 1.001, text, who=ranks(n), off=off.abs().max().item())
    part = exact - exact.floor()
    for sign, way in ((1, "down"), (-1, "up")):
        here = (total.sign() == sign) & (part > 0)
        spread = (part * (1 - part))[here].sum().sqrt()
        text = "{who} weights that should go {way} are {off:+.3f} grains off on average. The mean should be right: up "\
               "with the probability of what is cut off, and down otherwise."  # fmt: skip
        fine = off[here].sum().abs() < FAR * spread
        student.expect(fine or not here.any(), text, who=ranks(n), way=way, off=off[here].mean().item())


def expect_two_bytes(student: Student, run: Evidence, numel: int) -> None:
    """No rank sent more than a ring all-reduce of int16."""
    n = len(run.results)
    due = cost.ring_all_reduce_bytes_by_rank(numel, 2, n)
    rank = max(range(n), key=lambda r: run.bytes_sent[r] - due[r])
    got = run.bytes_sent[rank]
    why = "Do the gradients travel in 32 bits? Whole steps have room in int16."
    if "broadcast" in run.library or run.library.count("all_reduce") > 1 or "all_gather" in run.library:
        why = "Nothing but the rounded gradients needs to travel: who draws the same numbers rounds weights alike."
    text = "{who} rank {rank} sent {got:bytes}; a ring all-reduce of {numel} numbers of 2 bytes is {due:bytes}. {why}"
    student.expect(got <= due[rank], text, who=ranks(n), rank=rank, got=got, numel=numel, due=due[rank], why=why)


# A block across the border --------------------------------------------------------------------------------------------

BLOCK_SLIPS = {
    "own": "a block that lies on several ranks has another scale on each of them. Its amax is that of all its numbers.",
    "anew": "the blocks begin anew on each rank. They are counted from the first number of rank 0.",
    "next": "only the neighbours were asked. A block may lie on more than two ranks.",
    "one": "all blocks have the same scale.",
    "exact": "the scales are no powers of two.",
    "nearest": "the scales let numbers saturate: take `scales=\"e8m0-up\"`.",
}  # fmt: skip


def cut(draw: Draw, lengths: Sequence[int], block: int) -> list[Tensor]:
    """One tensor in shards of these lengths: numbers of very different sizes, and block 1 is all zeros."""
    numel = sum(lengths)
    x = draw(numel) * 0.235 * 2.0 ** draw(numel)  # 8 times 0.235 is more than 1.75, the mantissa of 448
    x[block : 2 * block] = 0
    return [part.clone() for part in x.split(list(lengths))]


def expect_blocks(student: Student, run: Evidence, parts: Sequence[Tensor], block: int) -> None:
    """Every rank has its numbers as their blocks have them in 8 bits, and the scales of the blocks that it touches."""
    two_tensors(student, run, "narrow, scales")
    n, told = len(parts), list(parts)
    right = answers.in_blocks(told, block)
    slips: Slips = {f"{ranks(n)}: {why}": answers.in_blocks(told, block, mistake) for mistake, why in
                    BLOCK_SLIPS.items()}  # fmt: skip
    student.expect_results(run, right, slips)


def expect_two_numbers(student: Student, run: Evidence) -> None:
    """No rank sent more than two float32 numbers for each of the others."""
    n = len(run.results)
    most, got = 8 * (n - 1), max(run.bytes_sent)
    text = "{who} rank {rank} sent {got:bytes}; two numbers of 4 bytes for each other rank are {most:bytes}. Only the "\
           "first and the last block of a rank can lie on others as well."  # fmt: skip
    student.expect(got <= most, text, who=ranks(n), rank=run.bytes_sent.index(got), got=got, most=most)
