"""Clients for federated averaging: digits that never leave them, and unlike those of the others."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from labkit.chapters.c08_loose_synchrony import task
from labkit.models import MLP, MLPConfig
from labkit.optim.synchrony import dirichlet_split
from labkit.wire import Group


def model(seed: int = 0) -> MLP:
    return MLP(MLPConfig(task.WIDTHS), seed)


class Phone:
    """One client: `Phone(group, alpha, seed)` has its own digits, and called it trains a model on them.

    alpha: large, all clients have all digits; small, each has few kinds. The last client needs five times as long.
    """

    def __init__(self, group: Group, alpha: float, seed: int = 0) -> None:
        images = task.data()[0]
        self.group = group
        parts = dirichlet_split(images.y, group.size - 1, alpha, seed)
        mine = parts[group.rank - 1]
        self.x, self.y = images.x[mine], images.y[mine]

    def __call__(self, net: nn.Module, number: int) -> int:
        """Five steps on this client's digits. Returns how many it has."""
        if not len(self.y):
            return 0
        self.group.compute(0.5 if self.group.rank == self.group.size - 1 and self.group.size > 3 else 0.1)
        sgd = torch.optim.SGD(net.parameters(), lr=0.3)
        for k in range(5):
            some = torch.arange(k * 64, k * 64 + 64) % len(self.y)
            sgd.zero_grad()
            F.cross_entropy(net(self.x[some]), self.y[some]).backward()
            sgd.step()
        return len(self.y)


def right(net: nn.Module) -> float:
    """The share of the digits kept back that it reads right."""
    kept = task.data()[1]
    with torch.no_grad():
        return (net(kept.x).argmax(1) == kept.y).float().mean().item()
