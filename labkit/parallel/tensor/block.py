"""One layer of a GPT, tensor-parallel, with or without sequence parallelism."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.models.gpt import GPTConfig
from labkit.parallel.refusals.same_model import check_same
from labkit.parallel.tensor.attention import TensorParallelAttention
from labkit.parallel.tensor.degrees import check_divides
from labkit.parallel.tensor.feed_forward import TensorParallelFeedForward
from labkit.parallel.tensor.moe import TensorParallelMoE
from labkit.parallel.tensor.placement import Placement
from labkit.parallel.tensor.random import different_inside
from labkit.parallel.tensor.regions import copy_all_to_region
from labkit.wire.group import Group


def check_alike(config: GPTConfig, options: Mapping[str, object], group: Group) -> None:
    """Raise RefusedError on every rank, naming rank and difference, unless all bring this config and options."""
    words = {f"config {name}": repr(value) for name, value in asdict(config).items()}
    check_same(words | {f"option {name}": repr(value) for name, value in options.items()}, group)


def check_config(config: GPTConfig, group: Group) -> None:
    """Raise RefusedError unless heads, keys' heads and feed-forward width of `config` divide by the group's size."""
    dimensions = {"heads": config.heads}
    if config.moe is None:
        dimensions["expansion * width"] = config.expansion * config.width
    if config.kv_heads is not None:
        dimensions["kv_heads"] = config.kv_heads
    check_divides("a tensor-parallel GPT", dimensions, group.size)


class TensorParallelBlock(nn.Module):
    """`labkit.models.gpt.Block` on the ranks of `group`; the names of its parameters are the same.

    Norms, and the biases that are added after a sum, are held whole by every rank.
    Sent: two all-reduces of the activations (M = b t d elements) forward and two backward. With `sequence`, norms and
    dropout work on this rank's part of the positions: two all-gathers and two reduce-scatters of M each way, with
    `gather_again` two all-gathers more in backward (inputs that were not kept), and one all-reduce of 6 d elements, the
    gradients of norms and biases.
    spread: the shards that each rank holds, in place of an even cut.
    Raises RefusedError, on every rank: another config or other options on some rank (`check`: one all-gather of 16
    bytes a rank); heads, kv_heads or expansion * width that do not divide.
    """

    def __init__(
        self, config: GPTConfig, group: Group, *, sequence: bool = False, overlap: bool = True,
        gather_again: bool = True, algorithm: str = "auto", placement: Placement | None = None, check: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        ways: dict[str, Any] = {"sequence": sequence, "overlap": overlap, "gather_again": gather_again,
                                "algorithm": algorithm}  # fmt: skip
        if check:
            check_alike(config, ways | {"placement": placement}, group)
        if placement is None:
            check_config(config, group)
        self.group, self.sequence, self.algorithm, self.dropout = group, sequence, algorithm, config.dropout
        self.norm1 = nn.LayerNorm(config.width)
        self.attention = TensorParallelAttention(config, group, shards=placement.heads if placement else None, **ways)
        self.norm2 = nn.LayerNorm(config.width)
        self.feed_forward: nn.Module
        if config.moe is None:
            shards = placement.hidden if placement else None
            self.feed_forward = TensorParallelFeedForward(config, group, shards=shards, **ways)
        else:
            self.feed_forward = TensorParallelMoE(config.width, config.moe, group, sequence, algorithm)

    def forward(self, x_btd: Tensor, length: int | None = None) -> Tensor:
        """(b, t, d) -> (b, t, d); with `sequence` this rank's part of t, of `length` positions in all."""
        norm1, norm2, bias1, bias2 = self._outside()
        y_btd = self.attention(layer_norm(x_btd, norm1, self.norm1.eps), length, bias1)
        x_btd = x_btd + self._drop(y_btd)
        y_btd = self.feed_forward(layer_norm(x_btd, norm2, self.norm2.eps), length, bias2)
        return x_btd + self._drop(y_btd)

    def _outside(self) -> tuple[Sequence[Tensor], Sequence[Tensor], Tensor, Tensor | None]:
        """The parameters that every rank holds: both norms (weight, bias) and the biases after the two sums."""
        held: list[Any] = [self.norm1.weight, self.norm1.bias, self.norm2.weight, self.norm2.bias,
                self.attention.out.bias]  # fmt: skip
        if isinstance(self.feed_forward, TensorParallelFeedForward):
            held.append(self.feed_forward.down.bias)
        if self.sequence and torch.is_grad_enabled():
            held = list(copy_all_to_region(held, self.group, algorithm=self.algorithm))
        return held[0:2], held[2:4], held[4], held[5] if len(held) > 5 else None

    def _drop(self, y_btd: Tensor) -> Tensor:
        return drop(y_btd, self.dropout if self.training else 0.0, self.group if self.sequence else None)


def layer_norm(x: Tensor, parameters: Sequence[Tensor], eps: float) -> Tensor:
    """LayerNorm over the last dimension, with these (weight, bias) in place of a module's own parameters."""
    weight, bias = parameters
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


def drop(x: Tensor, dropout: float, group: Group | None) -> Tensor:
    """Dropout of a tensor that is the same on every rank, or with `group` of a part that only this rank has."""
    if not dropout:
        return x
    with different_inside(group) if group is not None else nullcontext():
        return F.dropout(x, dropout)
