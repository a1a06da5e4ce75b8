"""The feed-forward pair: column-parallel, then row-parallel, with one sum over the ranks each way."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from labkit.models.gpt import GPTConfig
from labkit.parallel.tensor.linear import ColumnParallelLinear, RowParallelLinear
from labkit.parallel.tensor.placement import Shards
from labkit.wire.group import Group


class TensorParallelFeedForward(nn.Module):
    """`labkit.models.gpt.FeedForward` with its hidden columns, expansion * width, shared out among the ranks.

    GELU works on each number by itself, so the hidden columns are never brought together. Sent: one all-reduce of the
    activations (b t d) forward, one backward. shards: the columns that each rank holds, in place of an even cut.
    """

    def __init__(
        self, config: GPTConfig, group: Group, *, sequence: bool = False, overlap: bool = True,
        gather_again: bool = True, algorithm: str = "auto", shards: Shards | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        hidden = config.expansion * config.width
        self.up = ColumnParallelLinear(config.width, hidden, group, sequence=sequence, overlap=overlap,
                                       gather_again=gather_again, shards=shards, algorithm=algorithm,
                                       check=False)  # fmt: skip
        self.down = RowParallelLinear(hidden, config.width, group, sequence=sequence, shards=shards,
                                      algorithm=algorithm, check=False)  # fmt: skip

    def forward(self, x_btd: Tensor, length: int | None = None, bias: Tensor | None = None) -> Tensor:
        """(b, t, d) -> (b, t, d), or parts of t; `length` and `bias` as in the two layers."""
        return self.down(F.gelu(self.up(x_btd, length)), bias)
