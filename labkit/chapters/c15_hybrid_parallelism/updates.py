"""What the checks of chapter 15 compare an update with: ZeRO-1 on one axis of a mesh, as one device has it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from labkit.chapters.c15_hybrid_parallelism.runs import NEAR
from labkit.grading.checks.student import Evidence, Student, near_is_equal, same
from labkit.grading.checks.wording import difference, short


@dataclass
class Update:
    """What each rank gets for one update, and what it returns: [weight, gain, momentum, norm].

    slips: what it returns after a known mistake, under the sentence that names it.
    """

    sizes: dict[str, int]
    mine: list[dict[str, Tensor]]
    right: list[list[Tensor]]
    slips: dict[str, list[list[Tensor]]]
    numel: int  # weights of a rank
    gains: int


LR = 0.25
MISTAKES = {
    "copies": "The norm counts the gain once for each tensor-parallel rank: divide its squares by its copies.",
    "own": "The norm is that of one rank's shard: the squares of all ranks belong to it.",
    "columns": "The norm is that of one tensor-parallel rank's part: the squares of all ranks belong to it.",
    "partial": "The gain's gradient is that of one part of the positions: sum it along tp first.",
    "mean": "The gradients are averaged. Each is that of a share of the loss, so they are summed.",
    "twice": "The gain's gradient is too large: along dp it is summed by the reduce-scatter.",
    "unclipped": "The gradient is not clipped: its norm is above `most`.",
    "forgets": "The momentum of the last step is lost: it becomes 0.9 times itself, plus the gradient.",
}


def update_of(student: Student, dp: int, tp: int, width: int, gains: int, most: float = 2.0) -> Update:
    """Fresh weights, gradients and momenta for a mesh of dp x tp, tp innermost."""

    def fresh(numel: int) -> Tensor:
        return student.tensor(numel, dtype=torch.float64) / 8

    weights, gain = [fresh(width) for _ in range(tp)], fresh(gains)
    momenta, momentum = [fresh(width) for _ in range(tp)], fresh(gains)
    gradients = [[(fresh(width), fresh(gains)) for _ in range(tp)] for _ in range(dp)]
    mine = []
    for rank in range(dp * tp):
        d, t = divmod(rank, tp)
        own = torch.cat([momenta[t], momentum]).tensor_split(dp)[d]
        mine.append({"weight": weights[t], "gain": gain, "dweight": gradients[d][t][0], "dgain": gradients[d][t][1],
                     "momentum": own.clone()})  # fmt: skip

    def updated(mistake: str = "") -> list[list[Tensor]]:
        parts = [sum((gradients[d][t][0] for d in range(dp)), torch.zeros(width)) for t in range(tp)]
        each = [sum((gradients[d][t][1] for d in range(dp)), torch.zeros(gains)) for t in range(tp)]
        shared = sum(each, torch.zeros(gains)) * (dp if mistake == "twice" else 1)
        flats = [torch.cat([parts[t], each[t] if mistake == "partial" else shared]) for t in range(tp)]
        flats = [flat / (dp if mistake == "mean" else 1) for flat in flats]
        squares = [flat.square() / torch.tensor([1.0] * width + [tp] * gains) for flat in flats]
        if mistake == "copies":
            squares = [flat.square() for flat in flats]
        shards = [square.tensor_split(dp) for square in squares]
        found: list[list[Tensor]] = [[] for _ in range(dp * tp)]
        for t in range(tp):
            old = (0.0 if mistake == "forgets" else 0.9) * torch.cat([momenta[t], momentum])
            counted = {"own": shards[t], "columns": [squares[t]] * dp}.get(mistake, [torch.stack(squares)] * dp)
            norms = [part.sum().sqrt() for part in counted]
            factors = [1.0 if mistake == "unclipped" else min(1.0, most / float(norm)) for norm in norms]
            scaled = [f * g for f, g in zip(factors, flats[t].tensor_split(dp), strict=True)]
            new = old + torch.cat(scaled)
            whole = torch.cat([weights[t], gain]) - LR * new
            for d, (shard, norm) in enumerate(zip(new.tensor_split(dp), norms, strict=True)):
                found[d * tp + t] = [whole[:width], whole[width:], shard, norm]
        return found

    right = updated()
    slips = {said: updated(mistake) for mistake, said in MISTAKES.items()}
    slips = {said: wrong for said, wrong in slips.items() if not same(near_is_equal(wrong, right, NEAR), right)}
    return Update({"dp": dp, "tp": tp}, mine, right, slips, width, gains)


def expect_update(student: Student, run: Evidence, update: Update, places: Sequence[int]) -> None:
    """Every rank returned the right entries of [weight, gain, momentum, norm] at `places`."""
    mesh = "dp {dp} x tp {tp}".format(**update.sizes)
    for rank, result in enumerate(run.results):
        fine = isinstance(result, list) and len(result) == 4
        text = "On a mesh of {mesh}: rank {rank} returned {got}; it should be [weight, gain, momentum, norm]."
        student.expect(fine, text, mesh=mesh, rank=rank, got=short(result))
    got = [[result[place] for place in places] for result in run.results]
    due = [[right[place] for place in places] for right in update.right]
    if same(near_is_equal(got, due, NEAR), due):
        return
    for said, wrong in update.slips.items():
        if same(near_is_equal(run.results, wrong, NEAR), wrong):
            student.expect(False, f"On a mesh of {mesh}: {said}")
    for rank, (one, right) in enumerate(zip(got, due, strict=True)):
        for place, x, want in zip(places, one, right, strict=True):
            close = near_is_equal(x, want, NEAR)
            name = ("weight", "gain", "momentum", "norm")[place]
            if not same(close, want):
                student.expect(False, f"On a mesh of {mesh}, {name}: {difference(rank, close, want)}")


def why_update(axis: str, times: float) -> str:
    """The question behind wrong bytes of an update."""
    if times == 0:
        return "Nothing goes along this axis. Is `tp` the innermost axis of your groups?"
    if axis == "dp" and times < 1:
        return "Is something left out, or summed in the other axis?"
    if axis == "dp":
        return "Half of an all-reduce is not needed: reduce-scatter the gradient, then gather what is new."
    return "Only the gain's gradient is summed along tp: the columns of other ranks are other weights."
