"""The communication thread of a group: asynchronous collectives run on it, in the order they were called.

It plays the part of NCCL's stream: work is queued at once, runs while the caller computes, and every rank
runs it in the same order, so that two collectives of one group can never cross.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable
from typing import Any

from . import accelerator
from .context import Context
from .errors import WireError
from .handle import WorkHandle


class Stream:
    """A thread with a clock of its own; under the virtual clock its time starts where the caller's is."""

    def __init__(self, context: Context, name: str):
        self.context = context
        self._work: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._pending = 0
        self._last: Callable[[], WorkHandle | None] = lambda: None  # weakly: its result is the caller's alone
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)
        self._thread.start()

    def busy(self) -> bool:
        """Whether something is queued or running."""
        return self._pending > 0

    def submit(self, work: Callable[[], Any], handle: WorkHandle, now: int) -> None:
        """Queue `work`; `handle` gets what it returns or raises. It starts at `now` or later."""
        with self._lock:
            self._pending += 1
            self._last = weakref.ref(handle)
        device = accelerator.of(self.context.device)
        self._work.put((work, handle, now, None if device is None else device.event()))

    def settle(self) -> None:
        """Wait for all that is queued, as its callers would have; what it raises is nobody's. Raises WaitTimeout."""
        last = self._last()
        if last is not None and not last.done():
            try:
                last.wait()
            except WireError:
                if not last.done():
                    raise

    def stop(self) -> None:
        """End the thread when everything that is queued has run."""
        self._work.put(None)

    def _loop(self) -> None:
        local = self.context.local
        device = accelerator.of(self.context.device)
        if device is not None:  # a new thread would be on the first one
            device.choose(self.context.device)
        clock = local.clock = self.context.clock.fork()
        while True:
            item = self._work.get()
            if item is None:
                self.context.recorder.free_slot(getattr(local, "slot", -1))
                return
            work, handle, now, before = item
            if device is not None:  # behind what the caller had queued
                device.current_stream().wait_event(before)
            item, local.parent = None, 0
            if clock.virtual:
                clock.reach(now)
            result, error = None, None
            try:
                result = work()
            except BaseException as caught:
                error = caught
            with self._lock:
                self._pending -= 1
            handle._finish(result, error, clock.now())
            work = handle = result = error = None  # else its tensors would live until the next work comes
