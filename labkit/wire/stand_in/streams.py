"""Streams and events of the stand-in device: work that is queued runs later, on a thread, in order.

A stream is a queue. Whether one piece of work comes after another does not depend on when they happen to run, but on
who waited for whom, as in CUDA's own sanitizer (`torch.cuda._sanitizer`): every stream keeps how far it has waited for
each other one, and so does the host, which has waited for what an event told it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

Reached = dict["Stream", int]  # of each stream, how many pieces of its work


class Stream:
    """Work in order. `put` returns at once; a thread of the stream's own runs what was put."""

    def __init__(self, name: str):
        self.name = name
        self.reached: Reached = {}  # what everything queued from now on comes after
        self._queue: deque[Callable[[], object]] = deque()
        self._changed = threading.Condition()
        self.issued = self.done = 0
        self._thread: threading.Thread | None = None

    def put(self, call: Callable[[], object]) -> int:
        """Queue `call`; returns its place, counted from 1. If it raises, nothing behind it ever runs."""
        with self._changed:
            self._queue.append(call)
            self.issued += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"labkit-stand-in-{self.name}", daemon=True)
                self._thread.start()
            self._changed.notify_all()
            return self.issued

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._queue))
                call = self._queue.popleft()
            call()
            del call  # else its tensors would live until the next work comes
            with self._changed:
                self.done += 1
                self._changed.notify_all()

    def idle(self) -> bool:
        """Whether all that was queued has run."""
        return self.done == self.issued

    def wait_until(self, place: int) -> None:
        """Block the calling thread until the work at `place` is over."""
        with self._changed:
            self._changed.wait_for(lambda: self.done >= place)

    def comes_after(self, stream: Stream, place: int) -> bool:
        """Whether what is queued here from now on runs after the work of `stream` at `place`."""
        return stream is self or max(self.reached.get(stream, 0), HOST.get(stream, 0)) >= place

    def record_event(self, event: Event | None = None) -> Event:
        """An event (a new one if none is given) that happens when all work that is queued here is over."""
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        """What is queued from now on runs after `event`. The host goes on."""
        _merge(self.reached, event.reached)
        if not event.happened.is_set():
            self.put(event.happened.wait)

    def wait_stream(self, stream: Stream) -> None:
        """What is queued from now on runs after all that is queued on `stream`. The host goes on."""
        self.wait_event(stream.record_event())

    def synchronize(self) -> None:
        """Block the host until all work is over."""
        self.record_event().synchronize()


class Event:
    """A point in a stream."""

    def __init__(self, enable_timing: bool = False):
        self.timed = enable_timing
        self.happened = threading.Event()
        self.reached: Reached = {}
        self._at = 0

    def record(self, stream: Stream | None = None) -> None:
        """Put the event behind all that is queued on `stream` (the current one)."""
        stream = stream or current_stream()
        self.happened.clear()
        self.reached = {**stream.reached, stream: stream.issued}
        if stream.idle():
            self._happen()
        else:
            stream.put(self._happen)

    def _happen(self) -> None:
        self._at = time.perf_counter_ns()
        self.happened.set()

    def query(self) -> bool:
        """Whether it has happened; if so, the host has waited for it."""
        if self.happened.is_set():
            _merge(HOST, self.reached)
            return True
        return False

    def synchronize(self) -> None:
        """Block the host until it has happened."""
        self.happened.wait()
        _merge(HOST, self.reached)

    def elapsed_time(self, later: Event) -> float:
        """Milliseconds from this event to `later`; both must have happened, and been made for timing."""
        if not (self.timed and later.timed):
            raise RuntimeError("both events must be made with enable_timing=True")
        if not (self.happened.is_set() and later.happened.is_set()):
            raise RuntimeError("an event has not happened yet: its time cannot be asked for")
        return (later._at - self._at) / 1e6


HOST: Reached = {}  # what the host has seen the end of
DEFAULT = Stream("default")  # one for the process, as the default stream of a device
_local = threading.local()


def current_stream() -> Stream:
    """Where the calling thread queues its work."""
    return getattr(_local, "stream", DEFAULT)


class use:
    """`with use(stream):` the calling thread queues its work there."""

    def __init__(self, stream: Stream):
        self.stream = stream

    def __enter__(self) -> Stream:
        self._before = current_stream()
        _local.stream = self.stream
        return self.stream

    def __exit__(self, *exc: object) -> None:
        _local.stream = self._before


def _merge(into: Reached, more: Reached) -> None:
    for stream, place in list(more.items()):
        if into.get(stream, 0) < place:
            into[stream] = place
