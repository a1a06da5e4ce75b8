"""Threads that the reader's function starts: the supervisor has to know of them.

A main thread that waits in a receive is stuck only if nobody else can act for its rank. So each thread that is started
through `threading` is marked on the status page while it lives, and the verdict of a deadlock waits as long as one
of them is outside labkit: it may be about to send.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from labkit.wire.context import Context
from labkit.wire.recording.record import MAIN_SLOT

OWN = "labkit-"  # how the names of labkit's own threads begin


def watch_threads(context: Context) -> None:
    """From now on mark the threads of this process on its page. A fork of this process marks nothing."""
    process, begin = os.getpid(), threading.Thread.start
    marks = _Marks(context)

    def start(thread: threading.Thread) -> None:
        if thread.name.startswith(OWN) or os.getpid() != process:
            begin(thread)
            return
        slot, run = marks.begin(), thread.run

        def marked() -> None:
            try:
                if slot != MAIN_SLOT:
                    context.local.slot = slot
                run()
            finally:
                marks.end(slot)

        thread.run = marked  # type: ignore[method-assign]
        try:
            begin(thread)
        except BaseException:
            marks.end(slot)
            thread.run = run  # type: ignore[method-assign]
            raise

    vars_of_thread: Any = threading.Thread
    vars_of_thread.start = start


class _Marks:
    """Which slots of the page belong to living threads of the reader's; MAIN_SLOT stands for all without one."""

    def __init__(self, context: Context):
        self.recorder, self.page = context.recorder, context.recorder.page
        self.page.threads = 0  # a rank that is restarted finds those of its former life
        self._lock, self._without = threading.Lock(), 0

    def begin(self) -> int:
        with self._lock:
            slot = self.recorder.claim_slot()
            if slot < 0:
                slot = MAIN_SLOT
                self._without += 1
            else:
                self.recorder.slot(slot, 0)
            self.page.threads |= 1 << slot
            return slot

    def end(self, slot: int) -> None:
        with self._lock:
            if slot == MAIN_SLOT:
                self._without -= 1
            else:
                self.recorder.free_slot(slot)
            if slot != MAIN_SLOT or not self._without:
                self.page.threads &= ~(1 << slot)
