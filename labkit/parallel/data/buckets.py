"""Buckets: gradients that travel together.

One all-reduce for each parameter pays a latency for each. One all-reduce for all of them cannot begin before
backward ends. A bucket is the way between: a piece of memory for several gradients, sent when the last of them is
there (Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", section 3.2).

Backward makes gradients from the last layer to the first, so buckets are filled in reverse order of the parameters.
The first one is small, so that the wire has something to do early.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from labkit.parallel.flat import Flat


@dataclass(frozen=True)
class Bucket:
    """names: of the parameters, in the order in which they lie in it. nbytes: of all their gradients."""

    names: tuple[str, ...]
    nbytes: int
    dtype: torch.dtype


def plan(parameters: Sequence[Tensor], order: Sequence[int], first_bytes: int, bucket_bytes: int) -> list[list[int]]:
    """The numbers of the parameters in each bucket, and the buckets in the order in which they become full.

    order: parameter numbers in the order in which their gradients are expected. A bucket has one dtype and one
    device. It is closed when it holds `bucket_bytes` or more (the first: `first_bytes`), so a parameter is never
    cut, and a large one makes a large bucket.
    """
    closed: list[list[int]] = []
    filling: dict[Any, list[int]] = {}
    for i in order:
        kind = (parameters[i].dtype, parameters[i].device)
        bucket = filling.setdefault(kind, [])
        bucket.append(i)
        if sum(parameters[j].nbytes for j in bucket) >= (bucket_bytes if closed else first_bytes):
            closed.append(filling.pop(kind))
    place = {i: n for n, i in enumerate(order)}
    return sorted([*closed, *filling.values()], key=lambda bucket: place[bucket[-1]])


class Buffer:
    """The memory of one bucket: `flat` (1-D), and `views[k]`, the gradient of parameter number `members[k]` in it.

    missing: how many gradients have not arrived in this step.
    """

    def __init__(self, members: Sequence[int], names: Sequence[str], parameters: Sequence[Tensor]):
        self.members = list(members)
        self.layout = Flat((names[i], parameters[i]) for i in members)
        like = parameters[self.members[0]]
        self.flat = torch.zeros(self.layout.numel, dtype=like.dtype, device=like.device)
        self.views = self.layout.views(self.flat)
        self.missing = len(self.members)

    @property
    def record(self) -> Bucket:
        return Bucket(tuple(self.layout.names), self.flat.nbytes, self.flat.dtype)
