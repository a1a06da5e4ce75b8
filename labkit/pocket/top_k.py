"""Top-k with error feedback (Aji & Heafield 2017; Karimireddy et al. 2019): send the largest numbers, keep the others.

    top_k = TopK(module, group, share=0.01)
    criterion(module(x), y).backward()     # x, y: this rank's part of the batch
    top_k.average()                        # now every .grad is what all ranks have sent, averaged
    optimizer.step()

Each rank adds what it kept to its gradient, sends the k largest numbers with their places, and keeps the rest for the
next step. So nothing is lost, it only comes later. The ranks choose different places, so an all-reduce cannot add
them up: everybody gets everybody's, and a rank sends (N - 1) k (4 + 4) bytes for a parameter of float32.

What the full one (`labkit.optim.compression.Compressed`) does more: buckets that leave while backward is at work, one
message for all parameters of a bucket, other compressors, saved states, and refusals.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from labkit.collectives import all_gather, broadcast
from labkit.wire import Group


class TopK:
    def __init__(self, module: nn.Module, group: Group, share: float) -> None:
        self.group, self.share, self.parameters = group, share, list(module.parameters())
        self.residuals = [torch.zeros(p.numel()) for p in self.parameters]
        for p in self.parameters:
            broadcast(p.data, group)

    def average(self) -> None:
        for p, residual in zip(self.parameters, self.residuals, strict=True):
            assert p.grad is not None
            residual += p.grad.flatten() / self.group.size  # what is to be sent
            k = math.ceil(self.share * len(residual))
            places = residual.abs().topk(k).indices
            all_places = all_gather(places.to(torch.int32), self.group).long()  # (N k)
            all_values = all_gather(residual[places], self.group)
            residual[places] = 0  # what is kept
            p.grad = torch.zeros_like(residual).index_add_(0, all_places, all_values).view_as(p)
