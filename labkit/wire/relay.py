"""Many messages at once between a rank and its two neighbours: what comes from the one goes on to the other.

`Group.exchange` moves one message each way and then stops. Here a whole order of messages is given: what to send, after
which arrival, and what to receive. Each is sent as soon as what it holds is there, while later ones are still arriving.

Credit. The receiver answers each message with one byte when it has taken it, and the sender never has more than
`window` messages out that were not answered (as in RDMA with a fixed number of receive buffers). So a neighbour that
stands still holds up at most that many messages, wherever they are: in a socket, or on a switch.

Nothing waits for longer than it may: `quiet` seconds without a byte in either direction, `limit` seconds in all. A
neighbour that is gone is noticed on both sides, also by a rank that only waits for the other one.
"""

from __future__ import annotations

import select
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from . import record as rec
from . import staging
from .errors import WaitTimeout
from .message import CREDIT, Message
from .ops import ReduceOp
from .transports.background import LOOK

if TYPE_CHECKING:
    from .messenger import Messenger

Out = tuple[Tensor, int]  # what to send, and how many receives must have ended before
Into = tuple[Tensor, ReduceOp | None]  # where to receive, and how to combine
_HUNG_UP = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR


def relay(
    group: Messenger, outs: Sequence[Out], to: int, intos: Sequence[Into], source: int, *, window: int, quiet: float,
    limit: float,
) -> None:  # fmt: skip
    """Send all of `outs` to rank `to` and receive all of `intos` from rank `source`, both in order.

    A tensor of `outs` may overlap one of `intos` only if it waits for it. Raises PeerLost, WaitTimeout, Mismatch.
    """
    _Relay(group, outs, to, intos, source, window, quiet, limit).run()


class _Relay:
    """One call. `left` and `right` are the world ranks of the neighbours."""

    def __init__(
        self, group: Messenger, outs: Sequence[Out], to: int, intos: Sequence[Into], source: int, window: int,
        quiet: float, limit: float,
    ):  # fmt: skip
        self.group, self.lane, self.context = group, group._lane, group.context
        self.recorder, self.clock = self.context.recorder, self.context.clock_here()
        self.outs, self.to, self.intos, self.source, self.window = outs, to, intos, source, window
        self.left, self.right = group.global_ranks[source], group.global_ranks[to]
        self.quiet, self.limit = quiet, limit
        self.sent = self.landed = 0
        self.mark: Any = None
        self.out: Message | None = None
        self.into: Message | None = None
        self.departed = False
        self.arrivals: list[int] = []  # on a clock that is timed: when each receive ended
        self.latest = 0
        self.lane.owed.setdefault(self.right, 0)

    def run(self) -> None:
        slot, parent = self.context.slot_here(), self.context.enclosing()
        self.begun = self.moved_at = time.monotonic()
        try:
            while self.sent < len(self.outs) or self.landed < len(self.intos):
                moved = self._send()
                moved |= self._receive()
                if not moved:
                    out, into = self.out, self.into
                    self.recorder.slot(slot, parent, out.record if out else 0, into.record if into else 0)
                    self._wait()
        finally:
            self.recorder.slot(slot, parent)
        self.clock.reach(self.latest)

    # -- one step of either side: whether a message is over ------------------------------------------------------

    def _send(self) -> bool:
        m = self.out
        if m is None:
            if self.sent == len(self.outs):
                return False
            x, after = self.outs[self.sent]
            if self.landed < after:
                return False
            m = self.group._message("send", x, self.to, None, CREDIT)
            if m is None:  # a fault dropped it
                self.sent += 1
                return True
            self._begin_send(m, self.arrivals[after - 1] if after and self.arrivals else 0)
            self.out = m
        lane, clock = self.lane, self.clock
        if not self.departed:
            if lane.owed[self.right] >= self.window:
                lane.credits(self.right)
                if lane.owed[self.right] >= self.window:
                    return False
                if not clock.timed:
                    m.begun = m.sent = clock.now()  # it waited at the door until now
            lane.owed[self.right] += 1
            self.departed = True
        if not lane.push(m):
            return False
        if clock.timed:
            self.latest = max(self.latest, m.free)
        self.recorder.retime(m.record, m.begun, m.free if clock.timed else clock.now())
        self.out, self.departed = None, False
        self.sent += 1
        return True

    def _begin_send(self, m: Message, earliest: int) -> None:
        m.sent, m.free = self.clock.depart(m.peer, m.nbytes, earliest)
        self.group._begin(m, rec.SEND, m.sent, rec.EXCHANGE)
        if m.staged:
            staging.leave(m)

    def _receive(self) -> bool:
        m = self.into
        if m is None:
            if self.landed == len(self.intos):
                return False
            x, op = self.intos[self.landed]
            m = self.into = self.group._message("recv", x, self.source, op, 0)
            assert m is not None
            self.group._in(m, self.clock, rec.EXCHANGE)
            if m.staged:
                staging.expect(m)
        if not self.lane.pull(m):
            return False
        staging.land(m)
        arrived = self.clock.arrive(m.peer, m.nbytes, m.sent)
        if self.clock.timed:
            arrived = max(arrived, m.begun)
            self.arrivals.append(arrived)
            self.latest = max(self.latest, arrived)
        self.recorder.end(m.record, arrived, m.sent)
        self.lane.credit(m)
        self.into = None
        self.landed += 1
        return True

    # -- waiting -------------------------------------------------------------------------------------------------

    def _wait(self) -> None:
        """Until a socket has something, or somebody is gone, or it takes too long."""
        end = self._end()
        poll = select.poll()
        away = self.lane.out.get(self.right)
        if away is not None and self._unsettled():
            what = _HUNG_UP
            if self.out is not None:
                what |= self.out.stuck[1] if self.departed else select.POLLIN  # type: ignore[index]
            poll.register(away, what)
        if self.into is not None:
            poll.register(*self.into.stuck)  # type: ignore[misc]
        ready = poll.poll(max(1, min(LOOK, 1000 * (end - time.monotonic()))))
        if not ready:
            self._look_around()
        elif away is not None and any(fd == away.fileno() and events & _HUNG_UP for fd, events in ready):
            self._settle(ConnectionResetError("the connection was closed"))

    def _end(self) -> float:
        """When it will be too late; raises WaitTimeout if it is."""
        now, out, into = time.monotonic(), self.out, self.into
        mark = self.sent, self.landed, out and out.at, into and into.at, self.lane.owed[self.right]
        if mark != self.mark:
            self.mark, self.moved_at = mark, now
        if now >= self.begun + self.limit:
            self._late(self.limit, "the exchange has not ended")
        if now >= self.moved_at + self.quiet:
            self._late(self.quiet, "nothing moved")
        return min(self.moved_at + self.quiet, self.begun + self.limit)

    def _unsettled(self) -> bool:
        """Whether the right neighbour has still something to take."""
        return self.sent < len(self.outs) or self.lane.owed[self.right] > 0

    def _settle(self, why: OSError) -> None:
        """The right neighbour takes nothing more. That is well if it has taken everything."""
        if self.right in self.lane.out:
            self.lane.credits(self.right)
        if self._unsettled():
            raise self.lane._lost(self.right, why)

    def _look_around(self) -> None:
        """Nothing moved for a moment: is a neighbour gone that never opened a connection?"""
        why = OSError("it is no longer running")
        if self.into is not None and not self.lane.lives(self.left) and not self.lane.pull(self.into):
            raise self.lane._lost(self.left, why)
        if self._unsettled() and not self.lane.lives(self.right):
            self._settle(why)

    def _late(self, seconds: float, what: str) -> None:
        """It took too long. Who does not take what it is sent stands still; who does not send may have nothing."""
        waiting = [f"rank {self.right} to take what it was sent"] if self.out is not None else []
        waiting += [f"rank {self.left} to send"] if self.into is not None else []
        late = WaitTimeout(
            f"rank {self.context.rank} waited {seconds:.3g} s: {what}. It waits for {' and for '.join(waiting)}"
        )
        late.peer = self.right if self.out is not None else self.left
        raise late
