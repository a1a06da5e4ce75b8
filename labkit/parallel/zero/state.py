"""The optimizer's state of one stretch: what ZeRO cuts first, because it is the largest part.

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

Run = tuple[int, int, int, int]  # elements `start` to `stop` of the stretch, their step, their parameter group
KEYS = ("parameters", "momentum", "variance")


class Copies(NamedTuple):
    """Bytes copied between device and host memory."""

    to_host: int
    to_device: int


class State:
    """master, momentum and variance of one stretch, on the device of the parameters.

    values: the stretch as the model was built. stretch: the same in the dtype that the model computes in. dtype: of the
    master; if it is that of `stretch`, the stretch is the master. Steps are Python numbers and take no tensor.
    """

    copies = Copies(0, 0)

    def __init__(self, values: Tensor, stretch: Tensor, dtype: torch.dtype) -> None:
        self.master = stretch if stretch.dtype == dtype else values.to(dtype, copy=True)
        self.momentum = torch.zeros(len(stretch), dtype=dtype, device=stretch.device)
        self.variance = torch.zeros_like(self.momentum)

    @torch.no_grad()
    def update(self, groups: Sequence[AdamW], gradient: Tensor, stretch: Tensor, runs: Sequence[Run]) -> None:
        """One step on the elements of `runs`; then `stretch` holds the new values, rounded to its dtype.

        groups: the settings of each parameter group.
        """
        for start, stop, step, group in runs:
            values, g, m, v = (t[start:stop] for t in (self.master, gradient, self.momentum, self.variance))
            groups[group].update(values, g, m, v, step)
        self.publish(stretch)

    def publish(self, stretch: Tensor) -> None:
        """Write the master's values into `stretch`, if it is not the master."""
        if self.master is not stretch:
            stretch.copy_(self.master)

    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """master, momentum, variance."""
        return self.master, self.momentum, self.variance

    def named(self) -> dict[str, Tensor]:
        """The same by name. What is written into them counts when `restore` has been called."""
        return dict(zip(KEYS, self.tensors(), strict=True))

    def restore(self, named: dict[str, Tensor], steps: Sequence[int]) -> None:
        """Go on from `named`, which was written to. steps: of each parameter of the unit."""

    def device_bytes(self, stretch: Tensor) -> int:
        """Bytes on the device beside `stretch`: 12 an element, or 8 where the stretch is the master."""
        return sum(t.nbytes for t in self.tensors() if t is not stretch)

    def host_bytes(self) -> int:
        """Bytes in host memory."""
        return 0
