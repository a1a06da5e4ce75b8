"""`relay` over a library that moves messages by itself: what is begun cannot be looked at, only waited for.

Receives are begun `window` messages ahead, and sends as soon as what they hold has come, at most `window` that nobody
has taken; then the loop waits for the one that has to end next. gloo sends nothing before its receiver is ready, so
never more than `window` messages are on their way. Nobody waits for anybody in a circle: a send that is waited for
holds what was received before, so along the ring the number of the send that is waited for would fall for ever.

`quiet` is the longest wait for one message here. A neighbour that dies or leaves is noticed at once by who waits for
it, and by the other one within a tenth of a second (`GlooLane.together`).
"""

from __future__ import annotations

import collections
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from labkit.wire import staging
from labkit.wire.recording import record as rec
from labkit.wire.recording.parts import Parts

from .errors import WaitTimeout
from .message import Message
from .ops import ReduceOp

if TYPE_CHECKING:
    from .messenger import Messenger


class BegunRelay:
    """One call; see `relay` for what is given. The group's lane has `begin` and `finish`."""

    def __init__(
        self, group: Messenger, x: Tensor, outs: Sequence[tuple[int, int, int]], to: int,
        intos: Sequence[tuple[int, int, ReduceOp | None]], source: int, window: int, quiet: float, limit: float,
    ):  # fmt: skip
        self.lane: Any = group._lane
        self.context, self.parts = group.context, Parts(group, x)
        self.recorder, self.clock = self.context.recorder, self.context.clock_here()
        self.outs, self.intos, self.window = outs, intos, window
        self.left, self.right = group.global_ranks[source], group.global_ranks[to]
        self.quiet, self.limit = quiet, limit
        self.away: collections.deque[Message] = collections.deque()  # sends that nobody is known to have taken
        self.coming: collections.deque[Message] = collections.deque()
        self.sent = self.landed = 0
        self.arrivals: list[int] = []  # on a clock that is timed: when each receive ended
        self.latest = 0

    def run(self) -> None:
        slot, parent = self.context.slot_here(), self.parts.parent
        end = time.monotonic() + self.limit
        try:
            while True:
                self._expect()
                full = self._depart()
                if not self.coming and not self.away:
                    break
                through = self.sent == len(self.outs)  # then what becomes of the right neighbour is no matter
                late = self.away if self.away and (full or through or not self.coming) else self.coming
                self.lane.together = (self.left,) if through and not self.away else (self.left, self.right)
                self.recorder.slot(slot, parent, *(q[0].record if q else 0 for q in (self.away, self.coming)))
                self._finish(late[0], end)
                self._taken() if late is self.away else self._came()
        finally:
            self.lane.together = ()
            self.recorder.slot(slot, parent)
        self.clock.reach(self.latest)

    def _expect(self) -> None:
        """Begin the receives that are next."""
        while len(self.coming) < self.window and (number := self.landed + len(self.coming)) < len(self.intos):
            start, stop, op = self.intos[number]
            m = self.parts.receive(start, stop, self.left, op)
            self.parts.begin(m, rec.RECV, self.clock.now(), start)
            if m.staged:
                staging.expect(m)
            self.lane.begin(self.lane.pull, m)
            self.coming.append(m)

    def _depart(self) -> bool:
        """Begin the sends that may go; whether the next one may not only because too many are on their way."""
        while self.sent < len(self.outs):
            start, stop, after = self.outs[self.sent]
            if self.landed < after:
                return False
            if len(self.away) == self.window:
                return True
            self.sent += 1
            m = self.parts.send(start, stop, self.right, 0)
            if m is None:  # a fault dropped it
                continue
            self.parts.begin_send(m, self.clock, self.arrivals[after - 1] if after and self.arrivals else 0, start)
            if m.staged:
                staging.leave(m)
            self.lane.begin(self.lane.push, m)
            self.away.append(m)
        return False

    def _finish(self, m: Message, end: float) -> None:
        left = end - time.monotonic()
        limit = min(self.quiet, max(left, 0.0))
        try:
            self.lane.finish(m, limit, limit)
        except WaitTimeout as late:
            what = "the exchange has not ended" if left <= self.quiet else "nothing moved"
            how = "to take what it was sent" if self.away and m is self.away[0] else "to send"
            seconds = self.limit if left <= self.quiet else self.quiet
            words = f"rank {self.context.rank} waited {seconds:.3g} s: {what}. It waits for rank {m.peer} {how}"
            error = WaitTimeout(words)
            error.peer = m.peer
            raise error from late

    def _taken(self) -> None:
        m, clock = self.away.popleft(), self.clock
        if clock.timed:
            self.latest = max(self.latest, m.free)
        self.recorder.end(m.record, m.free if clock.timed else clock.now())

    def _came(self) -> None:
        m, clock = self.coming.popleft(), self.clock
        if m.staged:
            staging.land(m)
        arrived = clock.arrive(m.peer, m.nbytes, m.sent)
        if clock.timed:
            arrived = max(arrived, m.begun)
            self.arrivals.append(arrived)
            self.latest = max(self.latest, arrived)
        self.recorder.end(m.record, arrived, m.sent)
        self.landed += 1
