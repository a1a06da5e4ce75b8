"""Many messages at once between a rank and its two neighbours: what comes from the one goes on to the other.

`Group.exchange` moves one message each way and then stops. Here a whole order of messages is given: what to send, after
which arrival, and what to receive. Each is sent as soon as what it holds is there, while later ones are still arriving.

Credit. The receiver answers each message with one byte when it has taken it, and the sender never has more than
`window` messages out that were not answered (as in RDMA with a fixed number of receive buffers). So a neighbour that
stands still holds up at most that many messages, wherever they are: in a socket, or on a switch.

Nothing waits for longer than it may: `quiet` seconds without a byte in either direction, `limit` seconds in all. A
neighbour that is gone is noticed on both sides, also by a rank that only waits for the other one.

After a wait only the side that has something is tried again, and the time is looked at a hundred times a second at
most: the loop turns once for each MiB or so, and its own work would otherwise be a few percent of the whole.
"""

from __future__ import annotations

import select
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from labkit.wire import staging
from labkit.wire.recording import record as rec
from labkit.wire.recording.parts import Parts

from .errors import WaitTimeout
from .message import CREDIT, Message
from .ops import ReduceOp
from .relay_begun import BegunRelay
from .transports.background import LOOK
from .transports.lane import LocalLane

if TYPE_CHECKING:
    from .messenger import Messenger

Out = tuple[int, int, int]  # what to send (from, to), and how many receives must have ended before
Into = tuple[int, int, ReduceOp | None]  # where to receive (from, to), and how to combine
CHECK = 0.01  # seconds between two looks at whether it takes too long
_HUNG_UP = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR


def relay(
    group: Messenger, x: Tensor, outs: Sequence[Out], to: int, intos: Sequence[Into], source: int, *, window: int,
    quiet: float, limit: float,
) -> None:  # fmt: skip
    """Send all of `outs` to rank `to` and receive all of `intos` from rank `source`, both in order.

    Both are parts of `x` (1-D, contiguous). One of `outs` may overlap one of `intos` only if it waits for it. Raises
    PeerLost, WaitTimeout, Mismatch.
    """
    group.context.transport.must_be_rebuildable("a relay")
    kind = _Relay if isinstance(group._lane, LocalLane) else BegunRelay
    kind(group, x, outs, to, intos, source, window, quiet, limit).run()


class _Relay:
    """One call. `left` and `right` are the world ranks of the neighbours."""

    def __init__(
        self, group: Messenger, x: Tensor, outs: Sequence[Out], to: int, intos: Sequence[Into], source: int,
        window: int, quiet: float, limit: float,
    ):  # fmt: skip
        assert isinstance(group._lane, LocalLane)
        self.lane, self.context, self.parts = group._lane, group.context, Parts(group, x)
        self.recorder, self.clock = self.context.recorder, self.context.clock_here()
        self.outs, self.intos, self.window = outs, intos, window
        self.left, self.right = group.global_ranks[source], group.global_ranks[to]
        self.quiet, self.limit = quiet, limit
        self.sent = self.landed = 0
        self.mark: Any = None
        self.check_at, self.patience = 0.0, 1.0  # when to look next whether it takes too long; milliseconds until then
        self.can_send = self.can_receive = True  # as far as is known: only a wait tells what has nothing for us
        self.woken, self.idle = True, 0.0  # whether the last wait brought something; since when nothing has moved
        self.watched: Any = None
        self.poll = select.poll()
        self.blocked = (-1, -1)  # the records of the messages that the status page says it waits for
        self.out: Message | None = None
        self.into: Message | None = None
        self.departed = False
        self.arrivals: list[int] = []  # on a clock that is timed: when each receive ended
        self.latest = 0
        self.lane.owed.setdefault(self.right, 0)

    def run(self) -> None:
        self.slot, self.parent = self.context.slot_here(), self.parts.parent
        self.begun = self.moved_at = time.monotonic()
        outs, intos, push, pull = len(self.outs), len(self.intos), self.lane.push, self.lane.pull
        try:
            while self.sent < outs or self.landed < intos:
                moved = False
                if self.can_send and self._departs() and push(self.out):  # type: ignore[arg-type]
                    moved = True
                    self._sent()
                if self.can_receive and self._expects() and pull(self.into):  # type: ignore[arg-type]
                    moved = True
                    self._landed()
                if moved:
                    self.can_send = self.can_receive = True
                elif self.sent < outs or self.landed < intos:
                    self._wait()
        finally:
            self.recorder.slot(self.slot, self.parent)
        self.clock.reach(self.latest)

    # -- one side and the other --------------------------------------------------------------------------------

    def _departs(self) -> bool:
        """Whether there is something to send now: it has come, and the right neighbour has room for it."""
        if self.departed:
            return True
        lane, clock, m = self.lane, self.clock, self.out
        while m is None:
            if self.sent == len(self.outs):
                return False
            start, stop, after = self.outs[self.sent]
            if self.landed < after:
                return False
            m = self.out = self.parts.send(start, stop, self.right, CREDIT)
            if m is None:  # a fault dropped it
                self.sent += 1
                continue
            self.parts.begin_send(m, clock, self.arrivals[after - 1] if after and self.arrivals else 0,
                                  start)  # fmt: skip
            if m.staged:
                staging.leave(m)
        if lane.owed[self.right] >= self.window:
            lane.credits(self.right)
            if lane.owed[self.right] >= self.window:
                return False
            if not clock.timed:
                m.begun = m.sent = clock.now()  # it waited at the door until now
        lane.owed[self.right] += 1
        self.departed = True
        return True

    def _sent(self) -> None:
        m, clock = self.out, self.clock
        assert m is not None
        if clock.timed:
            self.latest = max(self.latest, m.free)
        self.recorder.retime(m.record, m.begun, m.free if clock.timed else clock.now())
        self.out, self.departed = None, False
        self.sent += 1

    def _expects(self) -> bool:
        """Whether there is something still to come."""
        if self.into is None:
            if self.landed == len(self.intos):
                return False
            start, stop, op = self.intos[self.landed]
            m = self.into = self.parts.receive(start, stop, self.left, op)
            self.parts.begin(m, rec.RECV, self.clock.now(), start)
            if m.staged:
                staging.expect(m)
        return True

    def _landed(self) -> None:
        m, clock = self.into, self.clock
        assert m is not None
        if m.staged:
            staging.land(m)
        arrived = clock.arrive(m.peer, m.nbytes, m.sent)
        if clock.timed:
            arrived = max(arrived, m.begun)
            self.arrivals.append(arrived)
            self.latest = max(self.latest, arrived)
        self.recorder.end(m.record, arrived, m.sent)
        self.lane.credit(m)
        self.into = None
        self.landed += 1

    # -- waiting -------------------------------------------------------------------------------------------------

    def _wait(self) -> None:
        """Until a socket has something, or somebody is gone, or it takes too long."""
        out, into, away = self.out, self.into, self.lane.out.get(self.right)
        blocked = (out.record if out is not None else 0, into.record if into is not None else 0)
        if blocked != self.blocked:
            self.blocked = blocked
            self.recorder.slot(self.slot, self.parent, *blocked)
        what = 0
        if away is not None and self._unsettled():
            what = _HUNG_UP
            if out is not None:
                what |= select.POLLOUT if self.departed else select.POLLIN
        watched = (away, what, None if into is None else into.stuck)
        if watched != self.watched:
            self._watch(*watched)
        now = time.monotonic()
        if self.woken or self._mark() != self.mark:
            self.idle = now
        if now >= self.check_at:
            self._check(now)
        ready = self.poll.poll(self.patience)
        self.woken = bool(ready)
        self.can_send = self.can_receive = not ready
        if not ready:
            self._look_around()
            self._check(time.monotonic())  # here, as long as it is known since when nothing has moved
        for fd, events in ready:
            if what and away is not None and fd == away.fileno():
                if events & _HUNG_UP:
                    self._settle(ConnectionResetError("the connection was closed"))
                self.can_send = True
            else:
                self.can_receive = True

    def _watch(self, away: Any, what: int, arriving: tuple[int, int] | None) -> None:
        """Have `poll` look at these."""
        self.watched = (away, what, arriving)
        self.poll = select.poll()
        if what:
            self.poll.register(away, what)
        if arriving is not None:
            self.poll.register(*arriving)

    def _check(self, now: float) -> None:
        """Raise WaitTimeout if it takes too long; else say when to look again."""
        mark = self._mark()
        if mark != self.mark:
            self.mark, self.moved_at = mark, self.idle
        if now >= self.begun + self.limit:
            self._late(self.limit, "the exchange has not ended")
        if now >= self.moved_at + self.quiet:
            self._late(self.quiet, "nothing moved")
        end = min(self.moved_at + self.quiet, self.begun + self.limit)
        self.check_at = min(now + CHECK, end)
        self.patience = max(1, min(LOOK, 1000 * (end - now)))

    def _mark(self) -> Any:
        """How far it has come."""
        out, into = self.out, self.into
        return self.sent, self.landed, out and out.at, into and into.at

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
