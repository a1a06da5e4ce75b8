"""ZeRO, stage 1 (Rajbhandari et al. 2020, section 5.1): each rank keeps the optimizer's state for its shard alone.

    optimizer = ZeRO1(module, group, lr=1e-3)
    criterion(module(x), y).backward()     # gradients of this rank's part of the batch
    optimizer.step()
    optimizer.zero_grad()

AdamW needs two more numbers for each parameter. With N ranks each of them keeps 1/N of these, updates 1/N of the
parameters, and gets the rest from the others. In a step a rank sends what a reduce-scatter of the gradients and an
all-gather of the parameters send: together no more than the all-reduce of plain data parallelism.

What the full one (`labkit.parallel.ZeRO1`) does more: mixed precision with a master copy, buckets, parameter groups,
other optimizers, clipping, states that are saved and loaded at another number of ranks, and refusals.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from labkit.collectives import all_gather, broadcast, reduce_scatter
from labkit.wire import Group


class ZeRO1:
    def __init__(self, module: nn.Module, group: Group, **adamw: Any) -> None:
        self.group, self.parameters = group, list(module.parameters())[::-1]
        self.whole = torch.cat([p.data.flatten() for p in self.parameters])  # (numel of all)
        broadcast(self.whole, group)
        for p, part in zip(self.parameters, self.whole.split([p.numel() for p in self.parameters]), strict=True):
            p.data = part.view_as(p)  # the parameters are views of one flat tensor from now on
        self.shards = self.whole.tensor_split(group.size)
        self.mine = nn.Parameter(self.shards[group.rank])  # a view, too: what changes here changes in the module
        self.adamw = torch.optim.AdamW([self.mine], **adamw)  # its state is as large as the shard

    @torch.no_grad()
    def step(self) -> None:
        """Average the gradients of the shard, update the shard, and gather the shards of all ranks."""
        gradient = torch.cat([p.grad.flatten() for p in self.parameters if p.grad is not None])
        self.mine.grad = reduce_scatter(gradient, self.group, op="avg")
        self.adamw.step()
        sizes = [len(shard) for shard in self.shards]
        self.whole.copy_(all_gather(self.mine.data.clone(), self.group, sizes))

    def zero_grad(self) -> None:
        for p in self.parameters:
            p.grad = None
