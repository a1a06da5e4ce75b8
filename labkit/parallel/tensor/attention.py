"""Attention shared out by heads: every rank attends with heads / N of them."""

from __future__ import annotations

from contextlib import nullcontext

from torch import Tensor, nn

from labkit.models.gpt import GPTConfig, attend
from labkit.parallel.tensor.linear import ColumnParallelLinear, RowParallelLinear
from labkit.parallel.tensor.placement import Shards
from labkit.parallel.tensor.random import different_inside
from labkit.wire.group import Group


class TensorParallelAttention(nn.Module):
    """`labkit.models.gpt.Attention` with rank r holding heads r h / N to (r + 1) h / N - 1, and the keys they read.

    Heads do not read each other, so nothing is sent between the product that makes queries, keys and values
    (column-parallel, each of the three cut by itself) and the one that mixes the heads (row-parallel). Sent: one
    all-reduce of the activations (b t d) forward, one backward. N must divide `heads` and `kv_heads`.

    shards: the groups of heads that each rank holds, in place of an even cut; then N need not divide anything.
    """

    def __init__(
        self, config: GPTConfig, group: Group, *, sequence: bool = False, overlap: bool = True,
        gather_again: bool = True, algorithm: str = "auto", shards: Shards | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.group, self.dropout, self.rotary, self.core = group, config.dropout, config.rotary, attend
        self.groups = config.groups // group.size if shards is None else len(shards[group.rank])
        self.heads = self.groups * (config.heads // config.groups)
        sections = config.qkv_sections
        self.qkv = ColumnParallelLinear(config.width, sum(sections), group, sequence=sequence, overlap=overlap,
                                        gather_again=gather_again, sections=sections, shards=shards,
                                        algorithm=algorithm, check=False)  # fmt: skip
        self.out = RowParallelLinear(config.width, config.width, group, sequence=sequence, shards=shards,
                                     algorithm=algorithm, check=False)  # fmt: skip

    def forward(self, x_btd: Tensor, length: int | None = None, bias: Tensor | None = None) -> Tensor:
        """(b, t, d) -> (b, t, d), or parts of t; `length` and `bias` as in the two layers."""
        dropout = self.dropout if self.training else 0.0
        qkv_btn = self.qkv(x_btd, length)
        with different_inside(self.group) if dropout else nullcontext():
            y_btn = self.core(qkv_btn, self.heads, self.groups, dropout, self.rotary)
        return self.out(y_btn, bias)
