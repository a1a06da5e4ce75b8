"""ZeRO, stage 2 (Rajbhandari et al. 2020, section 5.2): gradients are cut among the ranks, too, while backward runs.

    optimizer = ZeRO2(module, group, lr=1e-3)
    criterion(module(x), y).backward()     # afterwards each rank has the average gradient of its shards, and no other
    optimizer.step()

As soon as all gradients of a bucket are there, the bucket is reduce-scattered: each rank keeps the average of its
shard, and the whole gradient is forgotten. A rank sends as many bytes as with stage 1; only its memory is smaller.

What the full one (`labkit.parallel.ZeRO2`) does more: mixed precision with a master copy, a limit on what is under way,
accumulation over several backward passes, parameters without a gradient, clipping, saved states, and refusals.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Variable

from labkit.collectives import all_gather, broadcast, reduce_scatter
from labkit.wire import Group


class Bucket:
    """Some parameters as views of one flat tensor, of which this rank owns a shard."""

    def __init__(self, parameters: list[nn.Parameter], group: Group) -> None:
        self.parameters, self.group = parameters, group
        self.whole = torch.cat([p.data.flatten() for p in parameters])
        broadcast(self.whole, group)
        for p, part in zip(parameters, self.whole.split([p.numel() for p in parameters]), strict=True):
            p.data = part.view_as(p)
        self.sizes = [len(shard) for shard in self.whole.tensor_split(group.size)]
        self.mine = nn.Parameter(self.whole.tensor_split(group.size)[group.rank])
        self.handle: Any = None

    def reduce(self) -> None:
        """Begin the average of this rank's shard, and forget the gradients."""
        gradient = torch.cat([p.grad.flatten() for p in self.parameters if p.grad is not None])
        for p in self.parameters:
            p.grad = None
        self.handle = reduce_scatter(gradient, self.group, op="avg", async_op=True)

    def gather(self) -> None:
        self.whole.copy_(all_gather(self.mine.data.clone(), self.group, self.sizes))


class ZeRO2:
    def __init__(self, module: nn.Module, group: Group, bucket_bytes: int = 2 << 20, **adamw: Any) -> None:
        runs: list[list[nn.Parameter]] = [[]]
        for p in reversed(list(module.parameters())):
            if runs[-1] and sum(q.nbytes for q in runs[-1]) + p.nbytes > bucket_bytes:
                runs.append([])
            runs[-1].append(p)
            p.register_post_accumulate_grad_hook(self._arrived)
        self.buckets = [Bucket(run, group) for run in runs]
        self.adamw = torch.optim.AdamW([bucket.mine for bucket in self.buckets], **adamw)
        self._ready: set[Tensor] = set()

    def _arrived(self, p: Tensor) -> None:
        """Autograd has finished p.grad: send what is complete, in the order of the buckets."""
        if not self._ready:
            Variable._execution_engine.queue_callback(self._finish)
        self._ready.add(p)
        for bucket in self.buckets:
            if bucket.handle is None:
                if not self._ready.issuperset(bucket.parameters):
                    break
                bucket.reduce()

    def _finish(self) -> None:
        """The end of backward: wait for the averages."""
        for bucket in self.buckets:
            bucket.mine.grad, bucket.handle = bucket.handle.wait(), None
        self._ready.clear()

    @torch.no_grad()
    def step(self) -> None:
        """Update the shards, and gather those of all ranks."""
        self.adamw.step()
        for bucket in self.buckets:
            bucket.gather()

    def zero_grad(self) -> None:
        for bucket in self.buckets:
            bucket.mine.grad = None
