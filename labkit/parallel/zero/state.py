"""The optimizer's state of one shard: what ZeRO cuts first, because it is the largest part.

Mixed precision: a float32 master copy of the parameters, momentum and variance, 12 bytes an element. A step of
training changes a weight by less than bfloat16 can tell apart (8 bits), so small steps would be lost without the
master copy. Single precision: momentum and variance only, 8 bytes; the parameters are their own master.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .adamw import AdamW

Run = tuple[int, int, int, int]  # elements `start` to `stop` of the shard, their step, their parameter group
KEYS = ("parameters", "momentum", "variance")


class Copies(NamedTuple):
    """Bytes copied between device and host memory."""

    to_host: int
    to_device: int


class State:
    """master, momentum and variance of one shard, on the device of the parameters.

    values: the shard as the model was built. shard: the same in the dtype that the model computes in. dtype: of the
    master; if it is that of `shard`, the shard is the master. Steps are Python numbers and take no tensor.
    """

    copies = Copies(0, 0)

    def __init__(self, values: Tensor, shard: Tensor, dtype: torch.dtype) -> None:
        self.master = shard if shard.dtype == dtype else values.to(dtype, copy=True)
        self.momentum = torch.zeros(len(shard), dtype=dtype, device=shard.device)
        self.variance = torch.zeros_like(self.momentum)

    @torch.no_grad()
    def update(self, groups: Sequence[AdamW], gradient: Tensor, shard: Tensor, runs: Sequence[Run]) -> None:
        """One step on the elements of `runs`; then `shard` holds the new values, rounded to its dtype.

        groups: the settings of each parameter group.
        """
        for start, stop, step, group in runs:
            values, g, m, v = (t[start:stop] for t in (self.master, gradient, self.momentum, self.variance))
            groups[group].update(values, g, m, v, step)
        self.publish(shard)

    def publish(self, shard: Tensor) -> None:
        """Write the master's values into `shard`, if it is not the master."""
        if self.master is not shard:
            shard.copy_(self.master)

    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """master, momentum, variance."""
        return self.master, self.momentum, self.variance

    def named(self) -> dict[str, Tensor]:
        """The same by name. What is written into them counts when `restore` has been called."""
        return dict(zip(KEYS, self.tensors(), strict=True))

    def restore(self, named: dict[str, Tensor], steps: Sequence[int]) -> None:
        """Go on from `named`, which was written to. steps: of each parameter of the unit."""

    def device_bytes(self, shard: Tensor) -> int:
        """Bytes on the device beside `shard`: 12 an element, or 8 where the shard is the master."""
        return sum(t.nbytes for t in self.tensors() if t is not shard)

    def host_bytes(self) -> int:
        """Bytes in host memory."""
        return 0
