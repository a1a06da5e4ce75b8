"""The optimizer's state of a rank in host memory: 12 of 16 bytes a parameter leave the device.

Source: Ren et al. 2021, "ZeRO-Offload: Democratizing Billion-Scale Model Training". After backward the gradient of this
rank's shard is copied to the host; AdamW runs there, on master, momentum and variance that never leave it; the new
parameters are copied back, in 16 bits. That is 2 + 2 bytes an element and step over the bus, instead of 12 + 12.

Every copy is a real one and is counted. Where the device is the CPU, "host memory" is the memory of the device: nothing
is saved there, and a sample of resident bytes shows both. Only the account tells them apart: `model.state_bytes()` has
what lies on the device, `model.host_bytes()` what does not, `model.copied_bytes()` what was copied.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from labkit.parallel.zero.adamw import AdamW
from labkit.parallel.zero.state import Copies, Run, State


class HostState(State):
    """master, momentum and variance of one shard in host memory (pinned, for a GPU). Arguments as for `State`.

    It has a master of its own in single precision too: the one on the device is what the model computes with.
    """

    def __init__(self, values: Tensor, shard: Tensor, dtype: torch.dtype) -> None:
        pinned = shard.is_cuda
        self.master = torch.empty(len(shard), dtype=dtype, pin_memory=pinned).copy_(values)
        self.momentum = torch.zeros(len(shard), dtype=dtype, pin_memory=pinned)
        self.variance = torch.zeros(len(shard), dtype=dtype, pin_memory=pinned)
        self.copies = Copies(0, 0)

    @torch.no_grad()
    def update(self, groups: Sequence[AdamW], gradient: Tensor, shard: Tensor, runs: Sequence[Run]) -> None:
        """Copy the gradient to the host, step there, and copy the new values back."""
        here = torch.empty(len(gradient), dtype=gradient.dtype, pin_memory=gradient.is_cuda).copy_(gradient)
        self.copies = Copies(self.copies.to_host + here.nbytes, self.copies.to_device)
        super().update(groups, here, shard, runs)

    def publish(self, shard: Tensor) -> None:
        """Copy the master's values into `shard`, rounded to its dtype before they travel."""
        shard.copy_(self.master.to(shard.dtype))
        self.copies = Copies(self.copies.to_host, self.copies.to_device + shard.nbytes)

    def device_bytes(self, shard: Tensor) -> int:
        """Nothing on the device."""
        return 0

    def host_bytes(self) -> int:
        """12 bytes an element with a float32 master."""
        return sum(t.nbytes for t in self.tensors())
