"""The layer of chapter 12: a mixture whose experts take time, tokens that have much in common, and what a run tells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from labkit.cost.units import US
from labkit.models import MoEConfig, seeded
from labkit.models.moe import MoE, Routing
from labkit.parallel import ExpertParallel
from labkit.wire import Group

WIDTH = 64  # of the tokens
ROW = 20 * US  # that an expert takes for a row, as an emulated kernel
LOVED = 3  # the expert that tokens with something in common choose
LOADS = (39, 21, 12, 9, 6, 4, 3, 2)  # of eight experts: the example of the section on capacity


@dataclass(frozen=True)
class Told:
    """What a rank tells of a layer: (n, k) choices, weights and who is kept; (e,) load of all ranks; slots or None."""

    experts: list[list[int]]
    weights: list[list[float]]
    kept: list[list[bool]]
    load: list[int]
    slots: int | None
    row: float


class Timed(MoE):
    """A mixture of experts on the clock of `group`: each row takes `row` seconds, and the shared expert `beside`."""

    def __init__(self, group: Group, width: int, config: MoEConfig, row: float, beside: float, seed: int) -> None:
        with seeded(seed):
            super().__init__(width, config)
        self.group, self.row = group, row
        if self.shared is not None:
            self.shared.register_forward_hook(lambda *_: group.compute(beside) and None)

    def run_experts(self, rows_md: Tensor, counts: Sequence[int]) -> Tensor:
        with self.group.span("experts", rows=len(rows_md)):
            self.group.compute(self.row * len(rows_md))
            return super().run_experts(rows_md, counts)

    @property
    def told(self) -> Told:
        """Of the last forward pass, as plain data."""
        found = self.routing
        assert isinstance(found, Routing)
        tokens = int(found.load_e.sum()) // self.config.choices
        return Told(
            found.experts_nk.tolist(), found.weights_nk.tolist(), found.kept_nk.tolist(), found.load_e.tolist(),
            self.config.slots(tokens), self.row,
        )  # fmt: skip


def timed(
    group: Group, config: MoEConfig, *, width: int = WIDTH, row: float = ROW, beside: float = 0.0, seed: int = 0,
    hierarchical: bool = False, overlap: bool = True,
) -> Timed:  # fmt: skip
    """A mixture on this group's clock, its experts shared out among the ranks of `group`."""
    layer = Timed(group, width, config, row, beside, seed)
    ExpertParallel(group, hierarchical=hierarchical, overlap=overlap).into(layer)
    return layer


def alike(layer: Timed, tokens: int, skew: float, seed: int = 1) -> Tensor:
    """This rank's part of `tokens` tokens that all have `skew` of one direction in common: what expert LOVED looks for.

    Whatever the number of ranks, the tokens of all together are the same.
    """
    loved = layer.router.gate.weight.detach()[LOVED % layer.config.experts]
    every = torch.randn(tokens, len(loved), generator=torch.Generator().manual_seed(seed))
    return (every + skew * loved / loved.norm()).tensor_split(layer.group.size)[layer.group.rank]


def waiting_line(loads: Sequence[int] = LOADS, seed: int = 2) -> Tensor:
    """The experts that tokens chose, in the order of the tokens: expert e comes loads[e] times."""
    every = torch.arange(len(loads)).repeat_interleave(torch.tensor(loads))
    return every[torch.randperm(len(every), generator=torch.Generator().manual_seed(seed))]


def named_rows(group: Group, few: int, per_rank: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """`few` rows of this rank, each (rank, its number), and the expert of each; low numbers are chosen more often."""
    experts = per_rank * group.size
    draw = torch.Generator().manual_seed(100 * seed + group.rank)
    chosen = torch.minimum(
        torch.randint(experts, (few,), generator=draw), torch.randint(experts, (few,), generator=draw)
    )
    rows = torch.stack((torch.full((few,), float(group.rank)), torch.arange(few).float()), 1)
    return rows, chosen


def watched(into: list[Any]) -> Callable[[Tensor, Tensor], Tensor]:
    """Experts that only note which rows came to them, for which expert, and multiply by ten."""

    def compute(rows_md: Tensor, expert_m: Tensor) -> Tensor:
        into.extend(zip(rows_md.int().tolist(), expert_m.tolist(), strict=True))
        return 10 * rows_md

    return compute
