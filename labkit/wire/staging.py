"""Messages of tensors on a GPU over a wire that moves host memory only (gloo, local): by way of host memory.

What is sent is first copied to a host buffer. What is received comes into a host buffer, then goes to the device, and
is combined there. The copies lie within the message's time on the trace; the bytes counted are the payload, once.

Written for CUDA and so far run without a GPU only: with the predicate replaced, on tensors of the CPU.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .message import Message


def needs_staging(x: Tensor) -> bool:
    """Whether `x` lies where sockets cannot reach it."""
    return x.device.type != "cpu"


def leave(m: Message) -> None:
    """Before a send: let the transport read a copy of the bytes on the host."""
    if m.nbytes:
        m.raw = _room(m).copy_(m.raw, non_blocking=m.x.is_cuda)
        if m.x.is_cuda:  # all that is queued on this stream, the copy last
            torch.cuda.current_stream(m.x.device).synchronize()


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
    """Host memory for the bytes of `m`; page-locked where CUDA is to copy from or to it."""
    return torch.empty(m.nbytes, dtype=torch.uint8, pin_memory=m.x.is_cuda)
