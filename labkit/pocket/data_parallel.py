"""Data parallelism with buckets (Li et al. 2020): gradients are averaged while backward is still at work.

    model = DataParallel(module, group)
    loss = criterion(model(x), y)          # x, y: this rank's part of the batch
    loss.backward()                        # afterwards every .grad is the average over the ranks
    optimizer.step()

Backward makes the gradients of the last layers first. As soon as all gradients of a bucket are there, the bucket
leaves, and backward goes on with the layers before it. Each rank sends what one all-reduce of each bucket sends.

What the full one (`labkit.parallel.DataParallel`) does more: buckets that follow the order of arrival, a smaller first
bucket, parameters without a gradient, buffers, gradient accumulation, uneven batches, compression, and refusals.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Variable

from labkit.collectives import all_reduce, broadcast
from labkit.wire import Group


class DataParallel(nn.Module):
    def __init__(self, module: nn.Module, group: Group, bucket_bytes: int = 25 << 20) -> None:
        super().__init__()
        self.module, self.group = module, group
        for p in module.parameters():
            broadcast(p.data, group)  # everybody begins with the weights of rank 0
        self.buckets: list[list[Any]] = [[]]  # of parameters
        for p in reversed(list(module.parameters())):  # backward makes the last gradients first
            if sum(q.nbytes for q in self.buckets[-1]) >= bucket_bytes:
                self.buckets.append([])
            self.buckets[-1].append(p)
            p.register_post_accumulate_grad_hook(self._arrived)
        self._ready: set[Tensor] = set()
        self._under_way: list[tuple[Tensor, Any]] = []

    def forward(self, *inputs: Tensor) -> Any:
        return self.module(*inputs)

    def _arrived(self, p: Tensor) -> None:
        """Autograd has finished p.grad."""
        if not self._ready:
            Variable._execution_engine.queue_callback(self._finish)  # when it ends
        self._ready.add(p)
        for bucket in self.buckets[len(self._under_way) :]:  # in the same order on every rank
            if not self._ready.issuperset(bucket):
                break
            flat = torch.cat([q.grad.flatten() for q in bucket])
            flat /= self.group.size  # so that the sum over the ranks is the average
            self._under_way.append((flat, all_reduce(flat, self.group, async_op=True)))

    def _finish(self) -> None:
        """Wait for the buckets, and put the averages where the gradients were."""
        for bucket, (flat, handle) in zip(self.buckets, self._under_way, strict=True):
            handle.wait()
            for p, part in zip(bucket, flat.split([q.numel() for q in bucket]), strict=True):
                p.grad = part.view_as(p)
        self._ready.clear()
        self._under_way.clear()
