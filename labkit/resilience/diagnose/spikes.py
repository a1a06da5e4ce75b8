"""A loss that jumps: against its own recent past, by a measure that single large values do not move.

The past is the median of the last losses and their median distance from it. Who jumped is told by the loss of each
rank against that rank's own past: one rank points to its data or its machine, all of them to the update.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

import torch

from labkit import collectives
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group
from labkit.world.diagnosis.explain import ranks_text

from .verdict import Verdict
from .waits import Clue

SIGMA = 1.4826  # median distances in a standard deviation of normal numbers


@dataclass(frozen=True)
class Spike:
    """The loss of `ranks` jumped at `step`. usual, loss: means over all ranks, before and now."""

    step: int
    ranks: tuple[int, ...]
    usual: float
    loss: float
    size: int

    @property
    def verdict(self) -> Verdict:
        """Of kind "spike"; where all ranks jumped none of them is blamed."""
        everyone = len(self.ranks) == self.size
        what = "on all ranks: suspect the last update" if everyone else f"on {ranks_text(self.ranks)}"
        text = f"step {self.step}: the loss went from about {self.usual:.4g} to {self.loss:.4g}, {what}"
        return Verdict(
            "spike", self.ranks, not everyone or self.size == 1, (Clue(frozenset(self.ranks), "spike", text),)
        )


class SpikeGuard:
    """Watches the loss of every rank of `group`; costs 8 bytes a rank and step.

    factor: how many standard deviations above the past are a jump. window: losses that make the past. warm: losses
    before the first judgement. least: part of the usual loss by which it must rise at the least. patience: so many
    jumps in a row are a new level, and become the past.
    """

    def __init__(
        self, group: Group, factor: float = 6.0, window: int = 32, warm: int = 8, least: float = 0.2, patience: int = 4
    ) -> None:
        if not (factor > 0 and least >= 0 and 2 <= warm <= window and patience >= 1):
            raise RefusedError(
                f"SpikeGuard({factor=}, {window=}, {warm=}, {least=}, {patience=}): needs factor > 0, "
                "least >= 0, 2 <= warm <= window and patience >= 1"
            )
        self.group, self.factor, self.warm, self.least, self.patience = group, factor, warm, least, patience
        self._past: list[deque[float]] = [deque(maxlen=window) for _ in range(group.size)]
        self._row: list[list[float]] = []

    def check(self, step: int, loss: torch.Tensor | float) -> Spike | None:
        """None, or the jump; every rank calls it, before the update. A loss that jumped does not become the past."""
        mine = torch.tensor([float(loss)], dtype=torch.float64, device=self.group.device)
        now = collectives.all_gather(mine, self.group).tolist()
        if len(self._past[0]) < self.warm:
            self._keep(now)
            return None
        jumped = tuple(r for r, value in enumerate(now) if self._jumps(value, self._past[r]))
        if not jumped:
            self._row.clear()
            self._keep(now)
            return None
        usual = sum(_median(past) for past in self._past) / len(now)
        self._row.append(now)
        if len(self._row) >= self.patience:
            for losses in self._row:
                self._keep(losses)
            self._row.clear()
        return Spike(step, jumped, usual, sum(now) / len(now), self.group.size)

    def _keep(self, losses: list[float]) -> None:
        for past, value in zip(self._past, losses, strict=True):
            if math.isfinite(value):
                past.append(value)

    def _jumps(self, value: float, past: deque[float]) -> bool:
        usual = _median(past)
        placement = SIGMA * _median(deque(abs(x - usual) for x in past))
        return not value <= usual + max(self.factor * placement, self.least * abs(usual))


def _median(values: deque[float]) -> float:
    order = sorted(values)
    middle = len(order) // 2
    return order[middle] if len(order) % 2 else (order[middle - 1] + order[middle]) / 2
