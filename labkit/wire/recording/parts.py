"""Messages that are parts of one tensor: what is the same for all of them is looked at once.

`Messenger._message` checks a tensor and makes a view of its bytes for every message. With many messages between two
polls of a socket that work is a few percent of the whole, because the bytes that went by in between have thrown its
code and data out of the caches. Here a message costs a slice of a memoryview.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from labkit.wire.clock import Clock
from labkit.wire.dtypes import CODES, as_bytes
from labkit.wire.message import Message
from labkit.wire.ops import ReduceOp
from labkit.wire.recording import record as rec

if TYPE_CHECKING:
    from labkit.wire.messenger import Messenger


class Parts:
    """Messages of one group that send or receive parts of `whole` (1-D, contiguous). Positions are elements of it."""

    def __init__(self, group: Messenger, whole: Tensor):
        self.group, self.whole, self.staged = group, whole, group._check("exchange", whole)
        raw: Any = as_bytes(whole)
        sockets = group.context.transport.host_memory and not self.staged
        self.raw = memoryview(raw.numpy()) if sockets else raw
        self.code, self.itemsize, self.nbytes = CODES[whole.dtype], whole.itemsize, whole.nbytes
        self.place = -1 if group._places is None else group._places.find(whole) * self.itemsize
        self.parent = group.context.enclosing()

    def send(self, start: int, stop: int, to: int, flags: int) -> Message | None:
        """The message to world rank `to`, numbered; None for one that a fault makes vanish."""
        group, faults = self.group, self.group.context.faults
        m = self._message("send", start, stop, to, None, flags)
        if faults is not None:
            x = self.whole[start:stop]
            sent = faults.at_message(x, to)
            if sent is None:
                return None
            if sent is not x:
                m = Message(to, m.seq, sent, None, group._operation, flags)
        if self.staged:
            m.staged, m.x = True, self.whole[start:stop] if m.x is self.whole else m.x
        return m

    def receive(self, start: int, stop: int, source: int, op: ReduceOp | None) -> Message:
        """The message from world rank `source`, numbered; with `op` it is combined with what is there."""
        m = self._message("recv", start, stop, source, op, 0)
        if op is not None or self.staged:
            m.x = self.whole[start:stop]
        m.staged = self.staged
        return m

    def _message(self, way: str, start: int, stop: int, peer: int, op: ReduceOp | None, flags: int) -> Message:
        group, size = self.group, self.itemsize
        m = Message.__new__(Message)
        m.set(peer, group._number(way, peer), self.whole, op, group._operation, flags, (stop - start,), self.code,
              self.raw[start * size : stop * size], (stop - start) * size)  # fmt: skip
        return m

    def begin(self, m: Message, kind: int, now: int, start: int) -> None:
        """Write it down: `kind` is that of the record."""
        group = self.group
        place = self.place + start * self.itemsize
        m.begun = now
        m.record = group.context.recorder.message(
            kind, now, m.peer, group.key, group._lane_number, m.seq, self.parent, m.nbytes,
            place if 0 <= self.place <= place < self.place + self.nbytes else -1, m.code, m.shape,
            rec.EXCHANGE | (rec.COMBINE if m.op is not None else 0),
        )  # fmt: skip

    def begin_send(self, m: Message, clock: Clock, earliest: int, start: int) -> None:
        """Write a send down, with the time at which it departs."""
        m.sent, m.free = clock.depart(m.peer, m.nbytes, earliest)
        self.begin(m, rec.SEND, m.sent, start)
