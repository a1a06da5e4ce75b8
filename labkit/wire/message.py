"""One message in flight, from the rank's own side: what a transport is asked to move."""

from __future__ import annotations

import math
import struct
import threading
from typing import Any

from torch import Tensor

from .dtypes import CODES, as_bytes, describe
from .errors import MessageLost, Mismatch

ACK = 1  # the sender waits until the receiver has taken the message (rendezvous)
CREDIT = 2  # the receiver says so too, but the sender goes on, up to a number of messages (relay.py)

HEADER = struct.Struct("<IIIIqqBBBx4x8q")
MAGIC = 0x4C414231


class Message:
    """A send or a receive of one tensor, with all that its header carries.

    `operation` is a number for the collective the message belongs to and its place in the order of calls,
    0 for a message of the reader's own. `sent` is the sender's time on the clock of the run.
    """

    __slots__ = (
        "peer", "seq", "x", "op", "flags", "operation", "sent", "raw", "nbytes", "record", "begun", "free", "state",
        "error", "done", "then", "sock", "at", "head", "stuck", "scratch", "staged", "landing", "shape", "code", "into",
        "works",
    )  # fmt: skip

    def __init__(self, peer: int, seq: int, x: Tensor, op: Any, operation: tuple[int, int], flags: int = 0):
        raw = as_bytes(x)
        self.set(peer, seq, x, op, operation, flags, tuple(x.shape), CODES[x.dtype], raw, raw.numel())

    def set(
        self, peer: int, seq: int, x: Tensor, op: Any, operation: tuple[int, int], flags: int, shape: tuple[int, ...],
        code: int, raw: Any, nbytes: int,
    ) -> None:  # fmt: skip
        """All of it, for who knows it already. shape, code: of what is sent, as headers and records carry them."""
        self.peer, self.seq, self.x, self.op, self.flags, self.operation = peer, seq, x, op, flags, operation
        self.shape, self.code = shape, code
        self.raw = raw  # a transport may turn it into a memoryview
        self.nbytes = nbytes
        self.sent = self.begun = self.free = self.record = self.state = self.at = 0
        self.error: BaseException | None = None
        self.done: threading.Event | None = None  # set by whoever finishes a posted message
        self.then: Any = None  # called just before, in the thread that finishes it
        self.sock: Any = None
        self.head: Any = None
        self.stuck: tuple[int, int] | None = None
        self.scratch: Any = None
        self.into: Any = None  # of a receive that combines: `x`, flat
        self.works: Any = None  # of a library that moves it by itself
        self.staged = False  # goes by way of host memory (staging.py)
        self.landing: Any = None

    def finish(self) -> None:
        """A posted message is over: run `then`, wake the waiters."""
        if self.then is not None:
            self.then(self)
        if self.done is not None:
            self.done.set()

    def header(self) -> bytes:
        """The header of this message on a framed stream (104 bytes)."""
        shape = self.shape if len(self.shape) <= 8 else (math.prod(self.shape),)
        return HEADER.pack(
            MAGIC, self.seq, *self.operation, self.nbytes, self.sent, self.code, len(shape), self.flags,
            *shape, *(0,) * (8 - len(shape)),
        )  # fmt: skip

    def check(self, raw: bytes) -> tuple[type[Mismatch], str] | None:
        """Hold an arriving header against this receive; None, or what is wrong (and note the sender's time)."""
        magic, seq, op, call, nbytes, sent, dtype, ndim, flags, *dims = HEADER.unpack(raw)
        if magic != MAGIC:
            return Mismatch, "what is no header: the stream is out of step"
        self.sent, self.flags = sent, flags
        mine = self.shape if len(self.shape) <= 8 else (math.prod(self.shape),)
        theirs = tuple(dims[:ndim])
        if dtype == self.code and theirs == mine and seq == self.seq and (op, call) == self.operation:
            return None
        if seq != self.seq:  # then the operations differ too, if it was the last message of one
            return MessageLost, f"message {seq}, but message {self.seq} is due: one was lost"
        if (op, call) != self.operation:
            return Mismatch, f"{name_operation(op, call)}, but this rank is in {name_operation(*self.operation)}"
        return Mismatch, f"{describe(dtype, theirs)}, but this rank receives {describe(self.code, mine)}"


_OPERATIONS: dict[int, str] = {}


def number_operation(name: str) -> int:
    """The number that headers carry for a collective called `name`; the same in every process."""
    import zlib

    number = zlib.crc32(name.encode()) or 1
    _OPERATIONS[number] = name
    return number


def name_operation(number: int, call: int) -> str:
    """How errors call an operation."""
    if not number:
        return "a plain message"
    return f"{_OPERATIONS.get(number, 'another collective')} (call {call})"


for _name in "broadcast reduce all_reduce reduce_scatter all_gather scatter gather all_to_all barrier".split():
    number_operation(_name)
