"""DiLoCo (Douillard et al. 2023): local SGD, whose average is a step of a second optimizer.

    optimizer = DiLoCo(module, group, torch.optim.AdamW(module.parameters()), every=100)
    criterion(module(x), y).backward()     # gradients of this rank's part of the batch, which stay here
    optimizer.step()
    optimizer.zero_grad()

Every rank trains alone for H steps. Then all of them average their weights, and how far the average is from where the
round began is the gradient of the outer optimizer: SGD with Nesterov's momentum. Its step is where the next round
begins, on every rank. A round sends one all-reduce of the weights, H times fewer bytes than data parallelism.
With lr=1 and momentum=0 the round begins at the average itself: plain local SGD (Stich 2019).

What the full one (`labkit.optim.synchrony.LocalSGD`) does more: any outer optimizer, a start with averages in every
step, a round that ends early, and refusals.
"""

from __future__ import annotations

import torch
from torch import nn

from labkit.collectives import all_reduce, broadcast
from labkit.wire import Group


class DiLoCo:
    def __init__(
        self, module: nn.Module, group: Group, inner: torch.optim.Optimizer, every: int, lr: float = 0.7,
        momentum: float = 0.9,
    ) -> None:  # fmt: skip
        self.parameters, self.group, self.inner = list(module.parameters()), group, inner
        self.every, self.lr, self.momentum, self.steps = every, lr, momentum, 0
        self.begun = broadcast(self._flat(), group)  # the weights with which this round began
        self.velocity = torch.zeros_like(self.begun)
        self._write()

    def step(self) -> None:
        self.inner.step()
        self.steps += 1
        if self.steps % self.every == 0:
            gradient = self.begun - all_reduce(self._flat(), self.group, "avg")
            self.velocity = self.momentum * self.velocity + gradient
            self.begun -= self.lr * (gradient + self.momentum * self.velocity)  # Nesterov: the new velocity
            self._write()

    def zero_grad(self) -> None:
        self.inner.zero_grad()

    def _flat(self) -> torch.Tensor:
        return torch.cat([p.data.flatten() for p in self.parameters])

    def _write(self) -> None:
        for p, part in zip(self.parameters, self.begun.split([p.numel() for p in self.parameters]), strict=True):
            p.data.copy_(part.view_as(p))
