"""PowerSGD (Vogels, Karimireddy & Jaggi 2019): the average of gradient matrices as a product of two thin ones.

    power = PowerSGD(module, group, rank=2)
    criterion(module(x), y).backward()     # x, y: this rank's part of the batch
    power.average()                        # now every .grad of a matrix is a product P Q^T
    optimizer.step()

M is a gradient (n x m) and what was left of earlier ones. P = M Q shows where the columns of M lie, and Q = M^T P what
they are there: one step of power iteration, begun with the Q of the step before. Both are linear in M, so all-reduces
add up what the ranks have, and a rank sends those of rank (n + m) numbers instead of n m. Vectors go whole.

What the full one (`labkit.optim.compression.PowerSGD`) does more: buckets that leave while backward is at work,
tensors that are no matrices, matrices that would not shrink, random starts, saved states, and refusals.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from labkit.collectives import all_reduce, broadcast
from labkit.wire import Group


class PowerSGD:
    def __init__(self, module: nn.Module, group: Group, rank: int) -> None:
        self.group = group
        parameters = list(module.parameters())[::-1]
        for p in parameters:
            broadcast(p.data, group)
        self.vectors = [p for p in parameters if p.dim() == 1]
        self.matrices = [p for p in parameters if p.dim() == 2]
        self.residuals = [torch.zeros_like(p) for p in self.matrices]
        self.qs = [torch.randn(p.shape[1], rank, generator=torch.Generator().manual_seed(0)) for p in self.matrices]

    def average(self) -> None:
        gradients = [p.grad / self.group.size for p in self.matrices if p.grad is not None]
        ms = [g + e for g, e in zip(gradients, self.residuals, strict=True)]
        ps = [m @ q for m, q in zip(ms, self.qs, strict=True)]
        vectors = [p.grad / self.group.size for p in self.vectors if p.grad is not None]
        summed = self.sums([*vectors, *ps])
        for parameter, average in zip(self.vectors, summed, strict=False):
            parameter.grad = average
        ps = [torch.linalg.qr(p).Q for p in summed[len(vectors) :]]  # orthonormal columns
        qs = [m.T @ p for m, p in zip(ms, ps, strict=True)]
        self.residuals = [m - p @ q.T for m, p, q in zip(ms, ps, qs, strict=True)]
        self.qs = self.sums(qs)
        for parameter, p, q in zip(self.matrices, ps, self.qs, strict=True):
            parameter.grad = p @ q.T

    def sums(self, tensors: list[Tensor]) -> list[Tensor]:
        """The sum of each over the ranks, by one all-reduce of all."""
        flat = all_reduce(torch.cat([x.flatten() for x in tensors]), self.group)
        parts = flat.split([x.numel() for x in tensors])
        return [part.view_as(x) for part, x in zip(parts, tensors, strict=True)]
