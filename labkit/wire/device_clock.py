"""Times of work on a GPU, for spans and collectives, without waiting for the GPU.

A CUDA call returns when its work is queued. A span around it would show how long queueing took. So the stream is given
an event at the beginning and at the end of each span; at the end of the run (and now and then before, for those that
are over) the times of the events replace those of the host. Until then the record holds the host's times, so that a run
that hangs is still told.

Events tell only the time between two of them, as a 32-bit float of milliseconds: a microsecond is lost after 16 s.
Hence a chain of anchors, one every second, the first of which was seen by the host's clock as well.

Run with made-up events and on the stand-in device (`labkit.wire.stand_in`); no GPU has run it yet.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from labkit.wire.recording.record import Recorder

ANCHOR = 1_000_000_000  # nanoseconds of the host's clock between two anchors
LOOK = 256  # spans between two looks at which are over


class Anchor:
    """An event whose time is known, once it has happened, by way of the anchor before it."""

    def __init__(self, event: Any, before: Anchor | None, time: int = 0):
        self.event, self.before = event, before
        self._time = time

    def time(self) -> int:
        """Nanoseconds of the run's clock. Only when the event has happened."""
        chain: list[Anchor] = []
        anchor: Anchor = self
        while anchor.before is not None:
            chain.append(anchor)
            anchor = anchor.before
        time = anchor._time
        for later in reversed(chain):
            time = later._time = time + since(anchor.event, later.event)
            later.before, anchor = None, later
        return time

    def happened(self) -> bool:
        """Whether `time` can be told without waiting."""
        anchor: Anchor | None = self
        while anchor is not None and anchor.before is not None:
            if not anchor.event.query():
                return False
            anchor = anchor.before
        return True

    def of(self, event: Any) -> int:
        """Nanoseconds of the run's clock at `event`."""
        return self.time() + since(self.event, event)


def since(a: Any, b: Any) -> int:
    """Nanoseconds from event `a` to event `b`."""
    return round(a.elapsed_time(b) * 1e6)


Mark = tuple[Any, Anchor]  # an event, and the anchor it is measured from


class DeviceClock:
    """The stream's own times for the records of one rank. `mark` and `span` may be called from any thread.

    now: the run's clock on the host, in nanoseconds. synchronize: waits until the device is through with everything.
    make_event: records an event on the current stream.
    """

    def __init__(
        self, recorder: Recorder, now: Callable[[], int], synchronize: Callable[[], None],
        make_event: Callable[[], Any],
    ):  # fmt: skip
        self._recorder, self._now, self._synchronize = recorder, now, synchronize
        self._make = make_event
        self._lock = threading.Lock()
        self._open: deque[tuple[int, Mark, Mark]] = deque()
        synchronize()
        event = self._make()
        synchronize()  # the stream is empty, so the event happened between these two lines: now
        self._last_anchor = now()
        self._anchor = Anchor(event, None, self._last_anchor)

    def mark(self) -> Mark:
        """A point in the current stream: everything queued until now comes before it."""
        event, now = self._make(), self._now()
        with self._lock:
            if now - self._last_anchor >= ANCHOR:
                self._anchor, self._last_anchor = Anchor(event, self._anchor), now
            return event, self._anchor

    def span(self, number: int, begun: Mark) -> None:
        """Record `number` reached from `begun` to this point in the current stream."""
        ended = self.mark()
        with self._lock:
            self._open.append((number, begun, ended))
            if len(self._open) % LOOK == 0:
                self._settle(waiting=False)

    def resolve(self, waiting: bool = True) -> None:
        """Wait for the device and give all records its times; without `waiting`, those whose work is over."""
        if waiting:
            self._synchronize()
        with self._lock:
            self._settle(waiting)

    def _settle(self, waiting: bool) -> None:
        left: deque[tuple[int, Mark, Mark]] = deque()
        while self._open:
            number, begun, ended = entry = self._open.popleft()
            if waiting or all(event.query() and anchor.happened() for event, anchor in (begun, ended)):
                start = begun[1].of(begun[0])
                self._recorder.retime(number, start, max(start, ended[1].of(ended[0])))
            else:
                left.append(entry)
        self._open = left
