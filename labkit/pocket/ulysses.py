"""DeepSpeed Ulysses (Jacobs et al. 2023): exchange positions for heads, attend as if alone, exchange back.

    y = ulysses_attention(q, k, v, group)      # q, k, v: this rank's positions of all heads, (b, h, t / N, d)

Heads do not read each other. So an all-to-all gives each rank all positions of h / N heads, and any attention that
works on one device works there. A second all-to-all brings the results back to the ranks of their positions. Rank r
holds the r-th part of the positions, and N divides both the heads and the positions. What the full one
(`labkit.parallel.context`) does more: parts that differ, grouped queries, and rings of such groups.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from labkit.collectives import all_to_all
from labkit.wire import Group


class Swap(torch.autograd.Function):
    """Cut `x` along one dimension, part r for rank r, and join what comes along the other. Backward: the reverse."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cut: int, join: int, group: Group) -> Tensor:
        ctx.about = cut, join, group
        came = all_to_all(torch.stack(x.chunk(group.size, cut)), group)
        return torch.cat(list(came), join)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        cut, join, group = ctx.about
        return Swap.apply(gradient, join, cut, group), None, None, None


def ulysses_attention(q: Tensor, k: Tensor, v: Tensor, group: Group) -> Tensor:
    """Causal attention, (b, h, t / N, d) to the same."""
    q, k, v = (Swap.apply(x, 1, 2, group) for x in (q, k, v))  # (b, h / N, t, d)
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return Swap.apply(y, 2, 1, group)
