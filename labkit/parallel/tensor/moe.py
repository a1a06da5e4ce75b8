"""A mixture of experts each of which is cut among the ranks, as a feed-forward part is.

All ranks of the group see the same tokens and route them alike, and each has h / N of the hidden numbers of every
expert. So everything between entering and leaving the region is a partial sum, also the gradients of the router: what a
rank finds for it is its part of experts times the gradient, and the sum over the ranks is the whole.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.collectives.chunks import even_sizes
from labkit.models.moe import Expert, MoE, MoEConfig
from labkit.parallel.tensor.regions import (
    copy_all_to_region,
    copy_to_region,
    gather_sequence,
    reduce_from_region,
    reduce_scatter_sequence,
)
from labkit.parallel.tensor.shard_spec import ShardSpec
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group


class TensorParallelMoE(MoE):
    """`labkit.models.MoE` on the ranks of `group`; the names of its parameters are the same.

    Sent: forward one all-reduce of the activations (b t d elements), backward another, and one of the gradients of what
    all ranks hold: router and biases. With `sequence`: an all-gather forward and a reduce-scatter backward, and the
    reverse. The finer the experts, the narrower the matrices that are left of them: with fewer hidden numbers than
    ranks it is refused.
    """

    def __init__(self, width: int, config: MoEConfig, group: Group, sequence: bool, algorithm: str) -> None:
        super().__init__(width, config)
        self.group, self.sequence, self.algorithm = group, sequence, algorithm
        for expert in self._every():
            _cut(expert, group)
        self._inside: dict[nn.Module, Tensor] = {}  # biases after the sum, as they are inside the region

    def forward(self, x_btd: Tensor, length: int | None = None, bias: Tensor | None = None) -> Tensor:
        """(b, t, d) -> (b, t, d); with `sequence` this rank's part of t, of `length` positions in all."""
        group, algorithm = self.group, self.algorithm
        if self.sequence:
            x_btd = gather_sequence(x_btd, group, 1, length=length, algorithm=algorithm)
        else:
            x_btd = copy_to_region(x_btd, group, algorithm=algorithm)
        experts = self._every()
        held = [self.router.gate.weight, *(expert.down.bias for expert in experts)]
        gate_ed, *biases = copy_all_to_region(held, group, algorithm=algorithm)
        self._inside = dict(zip(experts, biases, strict=True))
        y_btd = self.combined(x_btd.flatten(0, -2), gate_ed).view(x_btd.shape)
        self._inside = {}
        assert self.routing is not None
        losses = self.routing.losses  # every rank finds all of it, and the gradients are summed
        self.routing.losses = losses.detach() * (1 - 1 / group.size) + losses / group.size
        if self.sequence:
            return reduce_scatter_sequence(y_btd, group, 1, algorithm=algorithm)
        return reduce_from_region(y_btd, group, algorithm=algorithm)

    def run_experts(self, rows_md: Tensor, counts: Sequence[int]) -> Tensor:
        """This rank's term of each result."""
        pairs = zip(self.experts.values(), rows_md.split(list(counts)), strict=True)
        return torch.cat([self._term(expert, part) for expert, part in pairs])

    def run_shared(self, x_nd: Tensor) -> Tensor:
        return self._term(self.shared, x_nd)

    def _term(self, expert: nn.Module | None, x_nd: Tensor) -> Tensor:
        assert isinstance(expert, Expert)
        bias = self._inside[expert] if self.group.rank == 0 else None  # it is added once
        return F.linear(F.gelu(expert.up(x_nd)), expert.down.weight, bias)

    def _every(self) -> list[Expert]:
        found = [*self.experts.values(), *([] if self.shared is None else [self.shared])]
        return [expert for expert in found if isinstance(expert, Expert)]


def _cut(expert: Expert, group: Group) -> None:
    """Keep this rank's hidden numbers."""
    hidden, width = expert.up.out_features, expert.up.in_features
    if hidden < group.size:
        raise RefusedError(f"an expert with {hidden} hidden numbers cannot be cut among {group.size} ranks")
    mine = even_sizes(hidden, group.size)[group.rank]
    for name, layer, dim, made in (
        ("up", expert.up, 0, nn.Linear(width, mine)),
        ("down", expert.down, 1, nn.Linear(mine, width)),
    ):
        spec = ShardSpec.even(dim, [hidden], group.size)
        if not layer.weight.is_meta:
            made.weight.data.copy_(spec.take(layer.weight.detach(), group.rank))
            made.bias.data.copy_(spec.take(layer.bias.detach(), group.rank) if dim == 0 else layer.bias.detach())
        made.shard_specs = {"weight": spec, "bias": spec} if dim == 0 else {"weight": spec}  # type: ignore[assignment]
        setattr(expert, name, made)
