"""DeepSpeed Ulysses (Jacobs et al. 2023): from a part of the positions to a part of the heads by all-to-all, and back.

Heads do not read each other. So each rank gets all positions of h / U heads, attends as if it were alone, and gives the
results back. Sent forward: U - 1 parts out of U of q, k, v and of the result; backward as many.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from labkit.collectives import all_to_all
from labkit.wire.group import Group


def to_heads(x_bhtd: Tensor, group: Group, counts: Sequence[int]) -> Tensor:
    """(b, h, own t, d) -> (b, h / U, all t, d): this rank's heads at the positions of all, in rank order.

    counts: positions of each rank. U divides h. Bytes sent: (U - 1) / U of `x`.
    """
    return _ToHeads.apply(x_bhtd, group, tuple(counts))


def to_positions(x_bhtd: Tensor, group: Group, counts: Sequence[int]) -> Tensor:
    """The way back: (b, h / U, all t, d) -> (b, h, own t, d). Bytes sent: `x` but for this rank's own positions."""
    return _ToPositions.apply(x_bhtd, group, tuple(counts))


class _ToHeads(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group, counts: tuple[int, ...]) -> Tensor:
        ctx.about = group, counts
        return _scatter_heads(x, group, counts)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _gather_heads(gradient, *ctx.about), None, None


class _ToPositions(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group, counts: tuple[int, ...]) -> Tensor:
        ctx.about = group, counts
        return _gather_heads(x, group, counts)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _scatter_heads(gradient, *ctx.about), None, None


def _scatter_heads(x_bhtd: Tensor, group: Group, counts: Sequence[int]) -> Tensor:
    b, h, t, d = x_bhtd.shape
    few = h // group.size
    rows = x_bhtd.transpose(0, 1).reshape(-1, d)  # heads first: part r is what rank r is to hold
    came = all_to_all(rows, group, [few * b * t] * group.size, [few * b * n for n in counts])
    parts = came.split([few * b * n for n in counts])
    return torch.cat([p.view(few, b, n, d) for p, n in zip(parts, counts, strict=True)], 2).transpose(0, 1)


def _gather_heads(x_bhtd: Tensor, group: Group, counts: Sequence[int]) -> Tensor:
    b, few, _, d = x_bhtd.shape
    mine = counts[group.rank]
    parts = [p.transpose(0, 1).reshape(-1, d) for p in x_bhtd.split(list(counts), 2)]
    came = all_to_all(torch.cat(parts), group, [few * b * n for n in counts], [few * b * mine] * group.size)
    return came.view(few * group.size, b, mine, d).transpose(0, 1)
