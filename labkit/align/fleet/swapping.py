"""Time-multiplexing: many models take turns on one device, and wait in host memory until it is theirs again.

What has changed on the device is copied out before it leaves; what has not is simply dropped, because the host's copy
is still right. Every copy is a real one and is counted. Where the device is the CPU nothing is saved, as in
`labkit.parallel.offload`: only the account tells device and host apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from labkit.parallel.zero.state import Copies

Tensors = Callable[[], list[Tensor]]


class HostSwap:
    """parts: the tensors of each part by name, such as weights or Adam's moments. All of them begin in host memory.

    copies: bytes so far, each way. peak: the most bytes that were on the device at a time.
    """

    def __init__(self, parts: Mapping[str, Tensors], device: torch.device) -> None:
        self._parts, self._device = parts, device
        self._host = dict[str, list[Tensor]]()
        self._changed, self._present = set[str](), set(parts)
        self.copies, self.peak = Copies(0, 0), 0
        for name in parts:
            self._out(name)
        self.copies = Copies(0, 0)

    def use(self, *names: str) -> int:
        """Only these parts on the device; bytes that were copied for it."""
        before = sum(self.copies)
        for name in sorted(self._present - {*names}):
            self._out(name)
        for name in names:
            if name not in self._present:
                self._in(name)
        return sum(self.copies) - before

    def changed(self, *names: str) -> None:
        """These parts, which are on the device, are not what the host has any more."""
        self._changed |= {*names}
        self._note_peak()

    def _out(self, name: str) -> None:
        tensors = self._parts[name]()
        if name in self._changed or name not in self._host:
            pinned = self._device.type == "cuda"
            kept = [torch.empty(t.shape, dtype=t.dtype, pin_memory=pinned).copy_(t.detach()) for t in tensors]
            self._host[name] = kept
            self.copies = Copies(self.copies.to_host + sum(t.nbytes for t in kept), self.copies.to_device)
        for t in tensors:
            t.data = t.data.new_empty(0)
        self._changed.discard(name)
        self._present.discard(name)

    def _in(self, name: str) -> None:
        for t, kept in zip(self._parts[name](), self._host[name], strict=True):
            t.data = kept.to(self._device, copy=True)
            self.copies = Copies(self.copies.to_host, self.copies.to_device + kept.nbytes)
        self._present.add(name)
        self._note_peak()

    def _note_peak(self) -> None:
        here = sum(t.nbytes for name in self._present for t in self._parts[name]())
        self.peak = max(self.peak, here)
