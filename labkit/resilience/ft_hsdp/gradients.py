"""Gradients of a step in a few flat tensors, which are exchanged while backward still makes the others.

Every `.grad` is a view of a bucket, so nothing is packed or unpacked. A bucket goes into the exchange when its last
gradient is there, and after all buckets before it: the order is the same on every rank, also on one that recovers and
has zeros only. At the end of the last bucket (or in a small one of their own) travel two more numbers: the loss, and a
weight of 1, or 0 from who recovers. Their sums are the total of the losses and the number of those who trained.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from labkit.parallel.data.buckets import plan
from labkit.wire.errors import RefusedError

EXTRA = 2  # loss, weight


class Gradients:
    """The gradients of `parameters` (those that are trained), exchanged by `send(flat)`, which may return at once.

    buckets: the flat tensors, in the order in which they are sent. Call `begin`, then backward, then `end`; when all
    exchanges are over, `sums` gives what the extra numbers came to, and `scale` makes means of the sums of gradients.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], bucket_bytes: int, send: Callable[[Tensor], Any]):
        self.parameters = [p for p in parameters if p.requires_grad]
        if not self.parameters:
            raise RefusedError("this model has no parameters to train: no gradient would be exchanged")
        self._send = send
        order = list(reversed(range(len(self.parameters))))
        groups = plan(self.parameters, order, min(bucket_bytes, 1 << 20), bucket_bytes)
        last = self.parameters[groups[-1][0]]
        beside = last.dtype not in (torch.float32, torch.float64)  # 16 bits cannot count replicas and hold a loss
        self.buckets: list[Tensor] = []
        self._views: dict[int, Tensor] = {}
        self._bucket_of: dict[int, int] = {}
        for number, members in enumerate(groups):
            like = self.parameters[members[0]]
            extra = EXTRA if number == len(groups) - 1 and not beside else 0
            flat = torch.zeros(sum(self.parameters[i].numel() for i in members) + extra, dtype=like.dtype,
                               device=like.device)  # fmt: skip
            at = 0
            for i in members:
                p = self.parameters[i]
                self._views[i], self._bucket_of[i] = flat[at : at + p.numel()].view(p.shape), number
                at += p.numel()
            self.buckets.append(flat)
        if beside:
            self.buckets.append(torch.zeros(EXTRA, device=last.device))
        self._sizes = [len(g) for g in groups] + [0] * beside
        self._missing = list(self._sizes)
        self._sent = 0
        self._open = False  # whether gradients that arrive belong to a step
        for i, p in enumerate(self.parameters):
            p.register_post_accumulate_grad_hook(self._hook(i))

    @property
    def nbytes(self) -> int:
        return sum(b.nbytes for b in self.buckets)

    def begin(self) -> None:
        """Zeros everywhere, and every `.grad` in its place. Nothing may be under way."""
        for bucket in self.buckets:
            bucket.zero_()
        for i, p in enumerate(self.parameters):
            p.grad = self._views[i]
        self._missing, self._sent, self._open = list(self._sizes), 0, True

    def end(self, loss: float, weight: float) -> None:
        """Backward is over (or there is none: zeros): send what was not sent yet."""
        self._open = False
        for i, p in enumerate(self.parameters):
            if p.grad is not self._views[i]:  # somebody put another tensor there
                if p.grad is not None:
                    self._views[i].copy_(p.grad)
                p.grad = self._views[i]
        self.buckets[-1][-EXTRA] = loss
        self.buckets[-1][-1] = weight
        while self._sent < len(self.buckets):
            self._next()

    def sums(self) -> tuple[float, float]:
        """(sum of the losses, sum of the weights), after the exchange."""
        loss, weight = self.buckets[-1][-EXTRA:].tolist()
        return loss, weight

    def scale(self, share: float) -> None:
        """Multiply all gradients by `share`."""
        for bucket in self.buckets:
            bucket.mul_(share)

    def drop(self) -> None:
        """Forget a step that came to nothing."""
        self._open = False
        for p in self.parameters:
            p.grad = None

    def _hook(self, i: int) -> Callable[[Tensor], None]:
        def arrived(p: Tensor) -> None:
            if not self._open or p.grad is not self._views[i]:
                return
            self._missing[self._bucket_of[i]] -= 1
            # The last bucket waits for the loss, which `end` brings.
            while self._sent < len(self.buckets) - 1 and self._missing[self._sent] == 0:
                self._next()

        return arrived

    def _next(self) -> None:
        bucket = self.buckets[self._sent]
        self._sent += 1
        self._send(bucket)
