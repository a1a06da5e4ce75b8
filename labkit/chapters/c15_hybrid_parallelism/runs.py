"""What the checks of chapter 15 compare a step on three axes with: one device, and the bytes along each axis."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from labkit.grading.checks.student import Evidence, Student, near_is_equal, same
from labkit.grading.checks.wording import difference, short
from labkit.parallel import Layout

NEAR = 1e-9  # of the largest entry: sums round differently in each order


# Bytes by axis ---------------------------------------------------------------------------------------------------


def expect_along(
    student: Student, run: Evidence, sizes: Mapping[str, int], due: Mapping[str, int], why: Callable[[str, float], str]
) -> None:
    """Along each axis all ranks together sent what is due, and a few numbers more at the most.

    What goes along an axis is what a rank sends to those that differ from it in this axis alone. why: the likely
    cause, from the axis and how many times as many bytes were sent.
    """
    layout, n = Layout(sizes), len(run.results)
    spare = 24 * n * n  # for a mesh that is agreed on, and a norm or a loss that is summed over all ranks
    mesh = " x ".join(f"{axis} {size}" for axis, size in sizes.items())
    got = dict.fromkeys([*sizes, ""], 0)
    for a, row in enumerate(run.bytes_between):
        for b, nbytes in enumerate(row):
            here, there = layout.coordinates(a), layout.coordinates(b)
            apart = [axis for axis in sizes if here[axis] != there[axis]]
            got[apart[0] if len(apart) == 1 else ""] += nbytes
    text = "On a mesh of {mesh}: along {axis} all ranks together sent {got:bytes}; {due:bytes} are needed. {why}"
    for axis, nbytes in due.items():
        fine = nbytes <= got[axis] <= nbytes + spare
        cause = "" if fine else why(axis, got[axis] / nbytes if nbytes else float("inf"))
        student.expect(fine, text, mesh=mesh, axis=axis, got=got[axis], due=nbytes, why=cause)
    text = "On a mesh of {mesh}: {got:bytes} went between ranks that share no group. Which ranks are in yours?"
    student.expect(got[""] <= spare, text, mesh=mesh, got=got[""])


def ring_bytes(numel: int, size: int, groups: int) -> int:
    """Bytes that all ranks of `groups` groups send in a ring all-reduce of float64, or in its two halves."""
    return 2 * (size - 1) * numel * 8 * groups


# A step on all three axes ----------------------------------------------------------------------------------------

MESHES = {2: (1, 2, 1), 3: (3, 1, 1), 4: (1, 2, 2), 6: (1, 3, 2), 8: (2, 2, 2)}  # ranks: (dp, pp, tp)


@dataclass
class Chain:
    """A chain of pairs, y = tanh(x A) B, one on each stage: what each rank gets, and what one device finds.

    gradients: by rank, [dA, dB]. own: the same of the rank's own replica alone. due: bytes along each axis.
    """

    sizes: dict[str, int]
    mine: list[dict[str, Any]]
    loss: float
    gradients: list[list[Tensor]]
    own: list[list[Tensor]]
    due: dict[str, int] = field(default_factory=dict)


def chain_of(student: Student, n: int, rows: int, width: int, microbatches: int) -> Chain:
    """Fresh stages and samples for a mesh of n ranks; microbatches differ in their rows."""
    dp, pp, tp = MESHES[n]
    layout = Layout({"dp": dp, "pp": pp, "tp": tp})

    def fresh(*shape: int, over: int) -> Tensor:
        return student.tensor(*shape, dtype=torch.float64) / over

    wide = 2 * width + 1
    stages = [[fresh(width, wide, over=32), fresh(wide, width, over=8)] for _ in range(pp)]
    x, y = ([[fresh(rows + k + d, width, over=4) for k in range(microbatches)] for d in range(dp)] for _ in "xy")
    total = sum(one.numel() for each in y for one in each)
    leaves = [[one.clone().requires_grad_() for one in pair] for pair in stages]
    flat = [one for pair in leaves for one in pair]
    own, loss = [], 0.0
    for each_x, each_y in zip(x, y, strict=True):
        share = torch.zeros((), dtype=torch.float64)
        for h, target in zip(each_x, each_y, strict=True):
            for A, B in leaves:
                h = torch.tanh(h @ A) @ B
            share = share + (h - target).square().sum() / total
        own.append(torch.autograd.grad(share, flat))
        loss += float(share.detach())
    whole = [sum(parts[1:], parts[0]) for parts in zip(*own, strict=True)]

    def part(tensors: Sequence[Tensor], rank: int) -> list[Tensor]:
        at = layout.coordinates(rank)
        A, B = tensors[2 * at["pp"] : 2 * at["pp"] + 2]
        return [A.tensor_split(tp, 1)[at["tp"]].contiguous(), B.tensor_split(tp)[at["tp"]].contiguous()]

    mine, gradients, alone = [], [], []
    for rank in range(n):
        A, B = part([one for pair in stages for one in pair], rank)
        d = layout.coordinates(rank)["dp"]
        mine.append({"A": A, "B": B, "x": x[d], "y": y[d], "total": total})
        gradients.append(part(whole, rank))
        alone.append(part(own[d], rank))
    numel = total  # entries of an activation of all microbatches of all replicas
    due = {
        "dp": ring_bytes(2 * width * wide, dp, pp), "tp": ring_bytes(numel * (2 * pp - 1), tp, 1),
        "pp": 2 * (pp - 1) * numel * 8 * tp,
    }  # fmt: skip
    return Chain(layout.sizes, mine, loss, gradients, alone, due)


def expect_chain(student: Student, run: Evidence, chain: Chain, gradients: bool) -> None:
    """Every rank returned the loss of the whole batch, or (gradients) those of its own parts."""
    mesh = " x ".join(f"{axis} {size}" for axis, size in chain.sizes.items())
    layout = Layout(chain.sizes)
    for rank, result in enumerate(run.results):
        fine = isinstance(result, list) and len(result) == 3 and isinstance(result[0], float)
        text = "On a mesh of {mesh}: rank {rank} returned {got}; it should be [loss, dA, dB], the loss as a float."
        student.expect(fine, text, mesh=mesh, rank=rank, got=short(result))
    if not gradients:
        text = "On a mesh of {mesh}: rank {rank} has a loss of {got:.6g}, and one device {due:.6g}. {why}"
        for rank, (got, *_) in enumerate(run.results):
            fine = abs(got - chain.loss) <= NEAR * max(1.0, chain.loss)
            student.expect(fine, text, mesh=mesh, rank=rank, got=got, due=chain.loss, why=_why_loss(got, chain))
        return
    for rank in reversed(range(layout.size)):  # the last stage first: others follow from it
        stage = layout.coordinates(rank)["pp"]
        for name, got, due, own in zip(
            ("dA", "dB"), run.results[rank][1:], chain.gradients[rank], chain.own[rank], strict=True
        ):
            if same(near_is_equal(got, due, NEAR), due):
                continue
            why = _why_gradient(got, due, own, chain.sizes, stage)
            text = "On a mesh of {mesh}: {name} of rank {rank}, stage {stage}, is not that of one device. {why}"
            student.expect(False, text, mesh=mesh, name=name, rank=rank, stage=stage, why=why)


def _why_loss(got: float, chain: Chain) -> str:
    dp, pp, tp = chain.sizes.values()
    for times, said in (
        (tp, "All tensor-parallel ranks of the last stage have the same loss: it counts once."),
        (pp * tp, "The loss counts on the last stage alone, and once among its tensor-parallel ranks."),
        (1 / dp, "Losses are shares of the whole batch's, so they are summed, never averaged."),
        (0.0, "Only the last stage has a loss: how do the others come to know it?"),
    ):
        if times != 1 and abs(got - times * chain.loss) <= NEAR * max(1.0, chain.loss):
            return said
    if dp > 1 and 0 < got < chain.loss:
        return "Is that the share of one replica, or of one microbatch?"
    return "Is the output of every stage summed along tp before it goes on?"


def _why_gradient(got: Any, due: Tensor, own: Tensor, sizes: Mapping[str, int], stage: int) -> str:
    if not isinstance(got, Tensor) or got.shape != due.shape:
        return difference(0, got, due)
    if sizes["dp"] > 1 and same(near_is_equal(got, own, NEAR), own):
        return "It is that of its own replica alone: sum it along dp."
    at = due.abs().argmax()
    times = float(got.flatten()[at] / due.flatten()[at])
    if same(near_is_equal(got, times * due, NEAR), times * due):
        said = f"It is {times:.4g} times that."
        if abs(times * sizes["dp"] - 1) < NEAR:
            return f"{said} Losses are shares of the whole batch's, so gradients are summed, never averaged."
        return f"{said} What is the loss divided by, and over which ranks is the gradient summed?"
    if stage < sizes["pp"] - 1 and sizes["tp"] > 1:
        return "What comes back to it is the gradient of its output: a whole one, summed along tp before it is sent?"
    return "Do all microbatches add to it, each with its own gradient?"


def why_chain(axis: str, times: float) -> str:
    """The question behind wrong bytes of a step."""
    if times == 0:
        return "Nothing goes along this axis."
    if axis == "tp":
        if times > 1:
            return "Is something summed that nobody needs, such as the gradient of the first stage's input?"
        return "A stage sums its output, and in the backward pass the gradient of its input."
    if axis == "pp":
        return "One activation of each microbatch goes on, and its gradient comes back."
    if times > 1:
        return "Gradients are summed once, when all microbatches have been added up."
    return "Is dA or dB left out?"
