"""Messages of tensors on a GPU over a wire that moves host memory only (gloo, local): by way of host memory.

What is sent is first copied to a host buffer. What is received comes into a host buffer, then goes to the device, and
is combined there. The copies lie within the message's time on the trace; the bytes counted are the payload, once.

Run on the stand-in device (`labkit.wire.stand_in`) and, with the predicate replaced, on tensors of the CPU; never on a
GPU.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import accelerator
from .message import Message


def needs_staging(x: Tensor) -> bool:
    """Whether `x` lies where sockets cannot reach it."""
    return x.device.type != "cpu" or accelerator.holding(x) is not None


def leave(m: Message) -> None:
    """Before a send: let the transport read a copy of the bytes on the host."""
    if not m.nbytes:
        return
    device, room = accelerator.holding(m.x), _room(m)
    if device is None:
        m.raw = room.copy_(m.raw)
        return
    device.launch(_copy, room, m.raw)
    device.current_stream().synchronize()  # all that is queued there, the copy last
    m.raw = room


def expect(m: Message) -> None:
    """Before a receive: let the transport write to the host, and keep the operator for when it has."""
    if m.nbytes:
        m.raw = _room(m)
        m.landing = (m.raw, m.op)
    m.op = None


def land(m: Message) -> None:
    """After a receive: what came goes to the device, by way of the operator if there is one. Nothing for a send."""
    if m.landing is None:
        return
    host, op = m.landing
    m.landing = None
    into, incoming = m.x.detach().view(-1), host.view(m.x.dtype)
    if op is None:
        into.copy_(incoming)
    else:
        op.combine_(into, incoming.to(into.device))


def _room(m: Message) -> Tensor:
    """Host memory for the bytes of `m`; of a kind that the device can copy from or to while the host goes on."""
    device = accelerator.holding(m.x)
    return torch.empty(m.nbytes, dtype=torch.uint8) if device is None else device.host_room(m.nbytes)


def _copy(into: Tensor, x: Tensor) -> None:
    into.copy_(x, non_blocking=True)
