"""ZeRO, stage 3 (Rajbhandari et al. 2020, section 5.3), as FSDP does it (Zhao et al. 2023): parameters are cut as well.

    model = FSDP(module, group)                            # a unit for each child of `module`, in their order
    optimizer = torch.optim.AdamW(model.parameters())      # over this rank's shards
    criterion(model(x), y).backward()
    optimizer.step()                                       # sends nothing

Each rank keeps one shard of each unit. Before a unit runs, its parameters are gathered from all ranks (unsharded), and
afterwards they are freed (resharded); the same again for its backward, after which the gradients are reduce-scattered.
A rank sends two all-gathers and one reduce-scatter of the parameters in a step: half as much again as data parallelism.

What the full one (`labkit.parallel.FullyShard`) does more: prefetching, nested units, mixed precision, hybrid sharding,
shared parameters, units that run twice or not at all, clipping, states that are saved and loaded, and refusals.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Variable

from labkit.collectives import all_gather, broadcast, reduce_scatter
from labkit.wire import Group


class Unit(nn.Module):
    """One module, whose parameters are there only while they are needed."""

    module: nn.Module

    def __init__(self, module: nn.Module, group: Group) -> None:
        super().__init__()
        self.group, self.tensors = group, list(module.parameters())
        flat = torch.cat([p.data.flatten() for p in self.tensors])
        broadcast(flat, group)
        self.whole = torch.empty_like(flat)  # has memory between unshard and reshard only
        self.views = self.whole.split([p.numel() for p in self.tensors])
        self.sizes = [len(part) for part in flat.tensor_split(group.size)]
        self.shard = nn.Parameter(flat.tensor_split(group.size)[group.rank].clone())
        self.arrived = 0
        for p, view in zip(self.tensors, self.views, strict=True):
            p.data = view.view_as(p)
            p.register_post_accumulate_grad_hook(self._arrived)
        object.__setattr__(self, "module", module)  # not a submodule: its parameters are not ours to train
        self.reshard()

    def unshard(self) -> None:
        """Gather the parameters, if they are not there."""
        if not self.whole.untyped_storage().nbytes():
            values = all_gather(self.shard.detach(), self.group, self.sizes, algorithm="ring")
            self.whole.untyped_storage().resize_(self.whole.nbytes)
            with torch.no_grad():
                self.whole.copy_(values)

    def reshard(self) -> None:
        """Free the parameters. What autograd has saved refers to the same memory, and is there again after unshard."""
        self.whole.untyped_storage().resize_(0)

    def forward(self, x: Tensor) -> Tensor:
        self.unshard()
        y: Tensor = self.module(x)
        if y.requires_grad:
            y.register_hook(lambda _: self.unshard())
        self.reshard()
        return y

    def _arrived(self, p: Any) -> None:
        """A gradient is there. With the last one: average the gradients of the shard, and free everything else."""
        self.arrived += 1
        if self.arrived == len(self.tensors):
            gradient = torch.cat([q.grad.flatten() for q in self.tensors if q.grad is not None])
            for q in self.tensors:
                q.grad = None
            self.reshard()
            self.handle = reduce_scatter(gradient, self.group, op="avg", algorithm="ring", async_op=True)
            Variable._execution_engine.queue_callback(self._finish)
            self.arrived = 0

    def _finish(self) -> None:
        self.shard.grad = self.handle.wait()


class FSDP(nn.Module):
    def __init__(self, module: nn.Module, group: Group) -> None:
        super().__init__()
        self.units = nn.Sequential(*(Unit(child, group) for child in module.children()))

    def forward(self, x: Tensor) -> Any:
        return self.units(x)
