"""A pipeline with the schedule 1F1B (Narayanan et al. 2021, section 2.2): each rank has one stage of the model.

    pipeline = Pipeline(stage, group, loss, like)     # like: what one microbatch looks like at the input of a stage
    pipeline.step(inputs, targets, microbatches=8)    # afterwards .grad is that of the mean loss over the batch
    optimizer.step()

A batch is cut into microbatches, so that the stages can work at the same time. After a short warmup every rank does one
forward and one backward in turn. So stage s of N keeps the activations of at most N - s microbatches, however many
there are. A rank sends an activation to the next stage for each microbatch, and a gradient to the one before.

What the full one (`labkit.parallel.pipeline`) does more: any schedule as a list of instructions, several stages a rank,
split backwards, checkpointing, uneven microbatches, several tensors at a boundary, tied weights, and refusals.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from labkit.wire import Group


class Pipeline:
    def __init__(self, stage: nn.Module, group: Group, loss: Callable[[Tensor, Tensor], Tensor], like: Tensor) -> None:
        self.stage, self.group, self.loss, self.like = stage, group, loss, like
        self.first, self.last = group.rank == 0, group.rank == group.size - 1

    def step(self, inputs: Tensor, targets: Tensor, microbatches: int) -> float:
        """Add up the gradients of the mean loss; return that loss on the last rank, elsewhere 0.

        inputs are used by the first stage, targets by the last one.
        """
        self.inputs, self.targets = deque(inputs.chunk(microbatches)), deque(targets.chunk(microbatches))
        self.alive: deque[tuple[Tensor, Tensor]] = deque()  # (input, output) of microbatches that wait for backward
        self.sent: list[Any] = []
        self.mean, self.microbatches = 0.0, microbatches
        warmup = min(self.group.size - self.group.rank - 1, microbatches)
        for _ in range(warmup):
            self.forward()
        for _ in range(microbatches - warmup):  # one forward, one backward
            self.forward()
            self.backward()
        for _ in range(warmup):
            self.backward()
        for handle in self.sent:
            handle.wait()
        return self.mean

    def forward(self) -> None:
        """The next microbatch through this stage."""
        if self.first:
            x = self.inputs.popleft()
        else:
            x = self.group.recv(torch.empty_like(self.like), source=self.group.rank - 1).requires_grad_()
        y = self.stage(x)
        if self.last:
            y = self.loss(y, self.targets.popleft()) / self.microbatches
            self.mean += y.item()
        else:
            self.send(y.detach(), self.group.rank + 1)
        self.alive.append((x, y))

    def backward(self) -> None:
        """The oldest microbatch back through this stage."""
        x, y = self.alive.popleft()
        if self.last:
            y.backward()
        else:
            y.backward(self.group.recv(torch.empty_like(y), source=self.group.rank + 1))
        if not self.first:
            assert x.grad is not None
            self.send(x.grad, self.group.rank - 1)

    def send(self, x: Tensor, to: int) -> None:
        """Begin a message; if we waited for it here, two neighbours could wait for each other."""
        self.sent.append(self.group.isend(x.contiguous(), to))
