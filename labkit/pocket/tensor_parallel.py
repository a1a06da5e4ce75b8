"""Tensor parallelism (Shoeybi et al. 2019, "Megatron-LM", section 3): every layer is cut among the ranks.

    mlp = TensorParallelMLP(whole_mlp, group)                # each rank keeps 1/N of its weights
    attention = TensorParallelAttention(whole_attention, group)
    y_btd = mlp(x_btd)                                       # x and y are whole, and the same on every rank

The first matrix is cut by columns, so each rank makes some of the hidden numbers, all by itself. The second one is cut
by rows: each rank multiplies its hidden numbers by the rows that belong to them, and the sum over the ranks is the
result. So a pair of matrices needs one all-reduce of the activations forward (g), and one backward (f). In attention
the columns are heads, which do not read each other.

What the full ones (`labkit.parallel.tensor`) do more: sequence parallelism, overlap, sizes that do not divide, weights
drawn in parts, grouped queries, dropout, the vocabulary, and refusals.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.collectives import all_reduce
from labkit.wire import Group


class Copy(torch.autograd.Function):
    """f: nothing forward; backward the sum of what the ranks give, because each of them has used x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return all_reduce(gradient.clone(), ctx.group), None


class Reduce(torch.autograd.Function):
    """g: forward the sum of the ranks' partial sums; backward nothing, because each of them was added once."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        return all_reduce(x.clone(), group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class TensorParallelMLP(nn.Module):
    """mlp: `up` from d to h numbers, GELU, `down` from h to d. Rank r keeps the r-th part of the h hidden numbers."""

    def __init__(self, mlp: Any, group: Group) -> None:
        super().__init__()
        self.group = group
        self.up_hd = part(mlp.up.weight, group)  # (h / N, d): columns of the mathematicians' matrix
        self.up_bias_h = part(mlp.up.bias, group)
        self.down_dh = part(mlp.down.weight, group, dim=1)  # (d, h / N)
        self.down_bias_d = nn.Parameter(mlp.down.bias.detach().clone())

    def forward(self, x_btd: Tensor) -> Tensor:
        x_btd = Copy.apply(x_btd, self.group)
        hidden_bth = F.gelu(F.linear(x_btd, self.up_hd, self.up_bias_h))
        y_btd = Reduce.apply(F.linear(hidden_bth, self.down_dh), self.group)
        return y_btd + self.down_bias_d  # after the sum, or it would be added N times


class TensorParallelAttention(nn.Module):
    """attention: `qkv` from d to 3 d numbers, `heads`, `out` from d to d. Rank r keeps the r-th part of the heads."""

    def __init__(self, attention: Any, group: Group) -> None:
        super().__init__()
        self.group, self.heads = group, attention.heads // group.size
        weight, bias = attention.qkv.weight, attention.qkv.bias
        self.qkv_3nd = part(weight.view(3, -1, weight.shape[1]), group, dim=1)  # n = d / N: each of q, k, v is cut
        self.qkv_bias_3n = part(bias.view(3, -1), group, dim=1)
        self.out_dn = part(attention.out.weight, group, dim=1)
        self.out_bias_d = nn.Parameter(attention.out.bias.detach().clone())

    def forward(self, x_btd: Tensor) -> Tensor:
        b, t, _ = x_btd.shape
        x_btd = Copy.apply(x_btd, self.group)
        q, k, v = F.linear(x_btd, self.qkv_3nd.flatten(0, 1), self.qkv_bias_3n.flatten()).chunk(3, dim=-1)
        q, k, v = (x.view(b, t, self.heads, -1).transpose(1, 2) for x in (q, k, v))  # (b, heads / N, t, k)
        y_btn = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        y_btd = Reduce.apply(F.linear(y_btn, self.out_dn), self.group)
        return y_btd + self.out_bias_d


def part(whole: Tensor, group: Group, dim: int = 0) -> nn.Parameter:
    """This rank's part of a parameter, cut along `dim`."""
    return nn.Parameter(whole.detach().tensor_split(group.size, dim)[group.rank].clone())
