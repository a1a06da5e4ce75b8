"""AdamW over parameters of this rank that are not ZeRO's: whole ones, and the shards of FSDP."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from labkit.parallel.zero.adamw import AdamW


class Moments:
    """momentum, variance: 1-D, by the identity of the parameter; steps: updates so far."""

    def __init__(self, parameters: Iterable[nn.Parameter], settings: AdamW) -> None:
        self.parameters, self.settings = list(parameters), settings
        self.momentum = {id(p): torch.zeros(p.numel(), dtype=p.dtype, device=p.device) for p in self.parameters}
        self.variance = {id(p): torch.zeros(p.numel(), dtype=p.dtype, device=p.device) for p in self.parameters}
        self.steps = dict.fromkeys(self.momentum, 0)

    def of(self, p: Tensor) -> tuple[Tensor, Tensor]:
        return self.momentum[id(p)], self.variance[id(p)]

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Parameters, their gradients, momentum and variance."""
        for p in self.parameters:
            yield "parameters", p
            if p.grad is not None:
                yield "gradients", p.grad
            yield from (("optimizer", x) for x in self.of(p))

    @torch.no_grad()
    def update(self) -> None:
        """The operations of `torch.optim.AdamW`, in their order."""
        for p in self.parameters:
            if p.grad is not None:
                self.steps[id(p)] += 1
                self.settings.update(p.view(-1), p.grad.reshape(-1), *self.of(p), self.steps[id(p)])

    def zero_grad(self) -> None:
        for p in self.parameters:
            p.grad = None
