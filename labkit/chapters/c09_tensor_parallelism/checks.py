"""What the checks of chapter 9 compare with: pairs of matrices on one rank that holds it all, and known slips.

Each function returns, by rank, what is right, and for some names of the list a wrong value by its cause.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from labkit.chapters.c09_tensor_parallelism.say import Causes

ByRank = list[list[Any]]
Found = tuple[ByRank, Causes]


def columns(x: Tensor, n: int) -> list[Tensor]:
    """The parts of the last dimension, by rank."""
    return [part.contiguous() for part in x.tensor_split(n, -1)]


def rows(x: Tensor, n: int) -> list[Tensor]:
    """The parts of the first dimension, by rank."""
    return [part.contiguous() for part in x.tensor_split(n)]


# A pair of matrices ---------------------------------------------------------------------------------------------------


def feed_forward(x: Tensor, A: Tensor, a: Tensor, B: Tensor, b: Tensor, dy: Tensor, n: int) -> Found:
    """y, dx, dA, da, dB, db of y = relu(x A + a) B + b, cut by columns, then rows."""
    z = x @ A + a
    h, mask = z.relu(), (z > 0).to(z.dtype)
    dz = (dy @ B.T) * mask
    y, dx = h @ B + b, dz @ A.T
    hs, dzs, As, Bs = columns(h, n), columns(dz, n), columns(A, n), rows(B, n)
    dA, da = [x.T @ part for part in dzs], [part.sum(0) for part in dzs]
    dB, db = [part.T @ dy for part in hs], dy.sum(0)
    right = [[y, dx, dA[r], da[r], dB[r], db] for r in range(n)]
    terms, back = (
        [h_r @ B_r for h_r, B_r in zip(hs, Bs, strict=True)],
        [p @ A_r.T for p, A_r in zip(dzs, As, strict=True)],
    )
    open_dz = columns(dy @ B.T, n)  # as if there were no ReLU
    causes: Causes = {
        "y": {
            "Every rank has added the bias b before the sum. Add it once, after the sum.": [y + (n - 1) * b] * n,
            "That is its own partial, with the bias: nothing was summed.": [t + b for t in terms],
            "That is its own partial sum: nothing was summed, and the bias b is missing.": terms,
            "The bias b is missing.": [y - b] * n,
            "The partial sums are averaged. They are summed.": [(y - b) / n + b] * n,
            "There is no ReLU between the matrices.": [z @ B + b] * n,
            "The ReLU comes after the sum. It stands between the matrices.": [(z @ B + b).relu()] * n,
        },
        "dx": {
            "That is its own partial sum: in the backward pass the copy of x becomes a sum.": back,
            "The partial sums are averaged. They are summed.": [dx / n] * n,
            "It is summed too often: dy is whole on every rank already.": [dx * n] * n,
            "The ReLU's mask is missing.": [dy @ B.T @ A.T] * n,
            "That is its own partial, and the ReLU's mask is missing.": [
                p @ A_r.T for p, A_r in zip(open_dz, As, strict=True)
            ],
        },
        "dA": {
            "It is summed over the ranks, or dy is. A rank has its own columns, and their whole gradient.": [
                n * g for g in dA
            ],
            "The ReLU's mask is missing.": [x.T @ part for part in open_dz],
        },
        "da": {
            "It is summed over the ranks, or dy is. A rank has its own columns, and their whole gradient.": [
                n * g for g in da
            ],
            "The ReLU's mask is missing.": [part.sum(0) for part in open_dz],
        },
        "dB": {
            "It is summed over the ranks, or dy is. A rank has its own rows, and their whole gradient.": [
                n * g for g in dB
            ],
            "The ReLU is missing.": [part.T @ dy for part in columns(z, n)],
        },
        "db": {
            "Every rank has the whole gradient of b already: it is not summed.": [n * db] * n,
            "It is too small: dy is the gradient of what b was added to, at every position.": [db / n] * n,
        },
    }
    return right, causes


# The two ends of a region ---------------------------------------------------------------------------------------------


def _mixed(stack: Tensor, way: str) -> Tensor:
    """All ranks' tensors, one behind the other: left alone, divided by the ranks' number, summed, or averaged."""
    if way in ("none", "share"):
        return stack / len(stack) if way == "share" else stack
    return (stack.sum(0) if way == "sum" else stack.mean(0)).expand_as(stack)


class _End(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, stack: Tensor, ahead: str, back: str) -> Tensor:
        ctx.back = back
        return _mixed(stack, ahead).clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return _mixed(gradient, ctx.back).clone(), None, None


Way = tuple[str, str]  # forward and backward


def run_blocks(
    x: Tensor, gains: Sequence[Tensor], ups: Sequence[Tensor], downs: Sequence[Tensor], n: int,
    copy: Way = ("none", "sum"), total: Way = ("sum", "none"), both: bool = False,
) -> ByRank:  # fmt: skip
    """Loss and gradients of the blocks of `my_regions` on n ranks, simulated on one: [loss, x, gains, ups, downs].

    copy, total: what the two ends of a region do forward and backward. both: two matrices read each copy.
    """
    xs = x.repeat(n, *[1] * x.dim()).requires_grad_()
    gs = [g.repeat(n, 1).requires_grad_() for g in gains]
    mine = [([p.requires_grad_() for p in columns(A, n)], [p.requires_grad_() for p in rows(B, n)])
            for A, B in zip(ups, downs, strict=True)]  # fmt: skip
    stream = xs
    for g, (A, B) in zip(gs, mine, strict=True):
        inside = _End.apply(stream * g[:, None], *copy)
        terms = [torch.relu(inside[r] @ A[r]) @ B[r] + both * ((inside[r] @ A[r]) @ B[r]) for r in range(n)]
        stream = stream + _End.apply(torch.stack(terms), *total)
    losses = (stream**2).flatten(1).mean(1)
    losses.sum().backward()
    return [
        [losses[r].detach(), xs.grad[r], *(g.grad[r] for g in gs), *(p[i][r].grad for p in mine for i in (0, 1))]  # type: ignore[index]
        for r in range(n)
    ]


NO_COPY = "The copy's backward pass does not sum: each rank has the part that came through its own columns."
BOTH_SUM = "Something is summed once too often in the backward pass: the gradient of `total` is alike on all ranks."
WRONG_WAYS: dict[str, dict[str, Way]] = {
    NO_COPY: {"copy": ("none", "none")},
    BOTH_SUM: {"total": ("sum", "sum")},
    "The two ends are exchanged in the backward pass.": {"copy": ("none", "none"), "total": ("sum", "sum")},
    "`copy` averages the gradients. They are summed.": {"copy": ("none", "mean")},
    "`total` averages. It sums.": {"total": ("mean", "none")},
    "`total` averages, forward and backward. It sums forward, and passes gradients on.": {"total": ("mean", "mean")},
    "`total` divides the gradient by the number of ranks: the gradient of a sum goes to every partial sum whole.": {
        "total": ("sum", "share")
    },
    "`total` does not sum in the forward pass.": {"total": ("none", "none")},
    "`copy` sums in the forward pass. All ranks have the same already.": {"copy": ("sum", "sum")},
}


def regions(
    x: Tensor, gains: Sequence[Tensor], ups: Sequence[Tensor], downs: Sequence[Tensor], n: int, both: bool = False
) -> Found:
    """What `my_regions` returns on n ranks."""
    right = run_blocks(x, gains, ups, downs, n, both=both)
    wrong = {}
    for cause, ways in WRONG_WAYS.items():
        wrong[cause] = run_blocks(x, gains, ups, downs, n, both=both, **ways)
    names = region_names(len(gains))
    causes = {
        name: {cause: [rank[i] for rank in found] for cause, found in wrong.items()} for i, name in enumerate(names)
    }
    return right, causes


def region_names(blocks: int) -> list[str]:
    """What `my_regions` returns, by name."""
    gains = [f"the gradient of gain {i}" for i in range(blocks)]
    pairs = [f"the gradient of {name} {i}" for i in range(blocks) for name in "AB"]
    return ["the loss", "the gradient of x", *gains, *pairs]


# Three matrices that read the same ------------------------------------------------------------------------------------


def three_matrices(x: Tensor, A: Sequence[Tensor], dz: Sequence[Tensor], n: int) -> Found:
    """dx, dA_0, dA_1, ... of matrices cut by columns, from the gradients of their outputs."""
    cut = [(columns(a, n), columns(g, n)) for a, g in zip(A, dz, strict=True)]
    own = [torch.stack([gs[r] @ parts[r].T for parts, gs in cut]).sum(0) for r in range(n)]
    dx = torch.stack(own).sum(0)
    right = [[dx, *(x.T @ gs[r] for _, gs in cut)] for r in range(n)]
    causes: dict[str, dict[str, list[Any]]] = {
        "dx": {
            "That is its own partial sum: the input's gradient is a sum over the ranks.": own,
            "The partial sums are averaged. They are summed.": [dx / n] * n,
            "It has the last matrix alone. All three have read x.": [dz[-1] @ A[-1].T] * n,
            "It has the first matrix alone. All three have read x.": [dz[0] @ A[0].T] * n,
        }
    }
    for i, (_, gs) in enumerate(cut):
        why = "It is summed over the ranks. A rank has its own columns, and their whole gradient."
        causes[f"dA_{i}"] = {why: [n * (x.T @ g) for g in gs]}
    return right, causes
