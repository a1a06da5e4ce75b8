"""Work in a thread of its own, for what was asked for last: bursts of requests never queue up."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

PATIENCE = 0.15  # seconds that work gets to end by itself when other work is asked for: new ranks take as long


class Latest:
    """Does `work(settings)` in a thread, for the settings asked for last; `cancel()` is to end what is under way.

    `work` returns whether it came to its end: where it did not, and nothing newer is wanted, it is done again. For a
    cancellation that was meant for older settings may strike what has just begun.
    """

    def __init__(self, work: Callable[[dict[str, Any]], bool], cancel: Callable[[], None]):
        self._work, self._cancel = work, cancel
        self._wanted: dict[str, Any] | None = None
        self._doing: dict[str, Any] | None = None
        self._news = threading.Condition()
        self._busy = self._halted = self._came_to_its_end = self.closed = False
        self._thread: threading.Thread | None = None

    def ask(self, settings: dict[str, Any]) -> None:
        """Work with these as soon as can be. What was asked for before, and has not begun, is forgotten."""
        with self._news:
            self._wanted = settings
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="labkit-workbench", daemon=True)
                self._thread.start()
            self._news.notify_all()
            late = self._busy and not self._news.wait_for(
                lambda: not self._busy or self._wanted is not settings, PATIENCE
            )  # what is under way may be these settings already: those are not to be cancelled
            if late and self._doing is not settings:
                self._cancel()

    @property
    def busy(self) -> bool:
        return self._busy

    @property
    def outdated(self) -> bool:
        """Whether newer settings wait for the end of what is under way."""
        return self._wanted is not None

    def wait(self, seconds: float | None = None) -> bool:
        """Until nothing is wanted and nothing under way; whether that came true in time."""
        with self._news:
            return self._news.wait_for(lambda: self._wanted is None and not self._busy, seconds)

    def stop(self) -> bool:
        """End what is under way, and forget what was asked for. Whether something was left undone by it."""
        with self._news:
            forgotten, was_busy = self._wanted is not None, self._busy
            self._wanted, self._halted = None, was_busy
            for _ in range(20):  # what has just begun may not have anything to cancel yet
                self._cancel()
                if self._news.wait_for(lambda: not self._busy, PATIENCE):
                    break
            return forgotten or (was_busy and not self._came_to_its_end)

    def close(self) -> None:
        with self._news:
            self.closed, self._wanted = True, None
            self._news.notify_all()
        self._cancel()

    def _loop(self) -> None:
        while True:
            with self._news:
                self._news.wait_for(lambda: self._wanted is not None or self.closed)
                if self.closed:
                    return
                settings, self._wanted, self._busy, self._halted = self._wanted, None, True, False
                self._doing, self._came_to_its_end = settings, False
            done = True
            try:
                assert settings is not None
                done = self._work(settings)
            finally:
                with self._news:
                    if not done and self._wanted is None and not (self.closed or self._halted):
                        self._wanted = settings
                    self._busy, self._doing, self._came_to_its_end = False, None, done
                    self._news.notify_all()
