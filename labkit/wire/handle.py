"""What an asynchronous call returns: `wait()` for its end, `done()` to look without waiting."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from torch import Tensor

from labkit.wire.recording.record import WAIT

from .errors import WaitTimeout

if TYPE_CHECKING:
    from .group import Group
    from .message import Message
    from .messenger import Messenger


class MessageHandle:
    """A send or a receive under way. The tensor must not be touched before `wait()`."""

    def __init__(self, group: Messenger, message: Message, kind: str):
        self._group, self._message, self._kind = group, message, kind
        self._settled = False

    def done(self) -> bool:
        """Whether `wait()` would return at once."""
        return self._message.done is None or self._message.done.is_set()

    def release(self) -> None:
        """Let go of the tensor of a message that is `done()`, without waiting for it on the clock.

        `wait()` is still to be called, whenever it suits, and then returns an empty tensor.
        """
        m = self._message
        if m.x.numel() and self.done():
            m.x = m.x.new_empty(0)
            m.raw = None

    def wait(self) -> Tensor:
        """Block until the message was taken (send) or is here (receive); returns its tensor."""
        m, group = self._message, self._group
        if not self._settled:
            group._wait(m, self._kind)
            self._settled = True
        return m.x


class WorkHandle:
    """A collective that runs on its group's communication thread."""

    def __init__(self, group: Group, number: int):
        self._group, self._number = group, number  # the record of the collective
        self._over = threading.Event()
        self._result: Any = None
        self._error: BaseException | None = None
        self._ended = 0

    def done(self) -> bool:
        """Whether `wait()` would return at once."""
        return self._over.is_set()

    def wait(self) -> Any:
        """Block until the collective is over; returns what it returns, raises what it raised."""
        context = self._group.context
        clock, slot = context.clock_here(), context.slot_here()
        recorder = context.recorder
        # also where it is over already: what follows in the program follows the collective from here on
        number = recorder.begin(WAIT, clock.now(), name=recorder.intern("wait"), detail=self._number,
                                parent=context.enclosing())  # fmt: skip
        if not self._over.is_set():
            recorder.slot(slot, number)
        try:
            limit = min(context.timeout, context.limit())
            if not self._over.wait(limit):
                raise WaitTimeout(f"rank {context.rank} waited {limit:.3g} s for a collective to end")
            clock.reach(self._ended)
        finally:
            recorder.slot(slot, context.enclosing())
            recorder.end(number, clock.now())
        if self._error is not None:
            raise self._error
        return self._result

    def limited(self) -> bool:
        """Whether the calling thread may wait no longer (`Messenger.within`)."""
        return self._group.context.limit() == 0.0

    def _finish(self, result: Any, error: BaseException | None, ended: int) -> None:
        self._result, self._error, self._ended = result, error, ended
        self._over.set()
