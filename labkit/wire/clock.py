"""Two clocks with one face: the wall's, and a logical one that is exact and repeatable.

Under the virtual clock processes and bytes are real, but time is counted, not measured: `compute` and links
advance it, every message carries its sender's time, and a receive takes the later of both sides
(Lamport 1978, with durations). The same program gives the same timeline on any machine, loaded or not.

Times are whole nanoseconds since the run began. A `Clock` belongs to one thread of one rank.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from .network import Link


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


class Clock:
    """The wall clock. `link_to(peer)` names the emulated link, or None for the wire as it is."""

    virtual = False

    def __init__(self, epoch: int, link_to: Callable[[int], Link] | None = None):
        self.epoch, self.link_to = epoch, link_to
        self.timed = self.virtual or link_to is not None  # messages carry times, and arrive when a link says so
        self._out: dict[Link, int] = {}  # when each sending port is free again
        self._in: dict[Link, int] = {}

    def fork(self) -> Clock:
        """A clock for another thread of this rank, with ports of its own."""
        return type(self)(self.epoch, self.link_to)

    def now(self) -> int:
        return time.perf_counter_ns() - self.epoch

    def reach(self, when: int) -> None:
        """Be at `when` or later."""
        ahead = when - self.now()
        if ahead > 0:
            time.sleep(ahead / 1e9)

    def advance(self, seconds: float) -> None:
        """Spend `seconds`."""
        time.sleep(seconds)

    def depart(self, to: int, nbytes: int, earliest: int = 0) -> tuple[int, int]:
        """(when a message starts on its port, when the port is free again). It cannot start before `earliest`."""
        begin = max(self.now(), earliest)
        if self.link_to is None:
            return begin, begin
        link = self.link_to(to)
        begin = max(begin, self._out.get(link, 0))
        free = self._out[link] = begin + _ns(nbytes / link.bandwidth)
        return begin, free

    def arrive(self, source: int, nbytes: int, sent: int) -> int:
        """When a message that started at `sent` is wholly here."""
        if self.link_to is None:
            return self.now()
        link = self.link_to(source)
        start = max(sent + _ns(link.latency), self._in.get(link, 0))
        done = self._in[link] = start + _ns(nbytes / link.bandwidth)
        return done


class VirtualClock(Clock):
    """Logical time: starts at 0 and moves only when the program says so."""

    virtual = True

    def __init__(self, epoch: int, link_to: Callable[[int], Link] | None = None):
        super().__init__(epoch, link_to or (lambda peer: _FREE))
        self._now = 0

    def now(self) -> int:
        return self._now

    def reach(self, when: int) -> None:
        self._now = max(self._now, when)

    def advance(self, seconds: float) -> None:
        self._now += _ns(seconds)


_FREE = Link()
