"""What a reader is told while ranks start or run for a while: one line that is updated. Where nobody reads, nothing.

Outputs of headless runs are compared and graded, and any line on stderr would count as a mistake there.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

AFTER = 2.0  # seconds without a line: most runs are over
EVERY = 0.5  # seconds between two updates


def live() -> bool:
    """True in a notebook kernel with a reader in front of it; False in scripts and in runs that only check.

    `LABKIT_HEADLESS=1` (or 0) decides, where it is set. Otherwise nobody is there under nbval (recognised by the
    variable pytest sets), without a kernel, and when the request to run the cell says that nobody will answer a
    question (`allow_stdin` false, as nbclient, papermill and nbconvert say; JupyterLab says true).
    """
    told = os.environ.get("LABKIT_HEADLESS")
    if told is not None:
        return told in ("", "0")
    if "PYTEST_CURRENT_TEST" in os.environ:
        return False
    here = kernel()
    return here is not None and bool(_request(here).get("content", {}).get("allow_stdin", True))


def kernel() -> Any:
    """The kernel that runs this, or None."""
    if "IPython" not in sys.modules:
        return None
    from IPython import get_ipython

    return getattr(get_ipython(), "kernel", None)


def _request(kernel: Any) -> dict[str, Any]:
    """The message that is being served; {} where there is none."""
    try:
        return dict(kernel.get_parent("shell"))
    except (AttributeError, KeyError, LookupError, TypeError, ValueError):
        return {}


class Telling:
    """One line about one job. progress: the option of `Spec`; False is silence."""

    def __init__(self, progress: bool | None = None) -> None:
        self._line = None if progress is False else _place()
        self._begin = time.monotonic()
        self._next = self._begin + AFTER

    def tell(self, words: Callable[[], str]) -> None:
        """Show `words()`, when two seconds have passed, and half a second since the last time."""
        now = time.monotonic()
        if self._line is not None and now >= self._next:
            text = f"labkit: {words()}, after {now - self._begin:.0f} s"
            self._next = time.monotonic() + max(EVERY, 5 * (time.monotonic() - now))  # looking at ranks takes time too
            self._line.show(text)

    def say(self, text: str) -> None:
        """Show a line of its own, now, and leave it there."""
        if (line := _place()) is not None and self._line is not None:
            line.show(f"labkit: {text}")
            line.leave()

    def clear(self) -> None:
        """Take the line away: something else is about to be written, or the run is over."""
        if self._line is not None:
            self._line.clear()


def _place() -> _Terminal | _Notebook | None:
    """Where a line can be seen: below the cell that runs, or in a terminal; None where nobody looks."""
    if threading.current_thread() is not threading.main_thread():
        return None  # of a program that shows things by itself
    if (here := kernel()) is not None:
        asked = _request(here).get("header", {}).get("msg_type")
        return _Notebook() if live() and asked == "execute_request" else None
    silent = os.environ.get("LABKIT_HEADLESS", "0") not in ("", "0")
    return _Terminal() if not silent and sys.stderr is not None and sys.stderr.isatty() else None


class _Terminal:
    def __init__(self) -> None:
        self._lock, self._there = threading.Lock(), False

    def show(self, text: str) -> None:
        width = shutil.get_terminal_size().columns - 1
        self._write(f"\r{text if len(text) <= width else text[: width - 3] + '...'}\x1b[K", True)

    def leave(self) -> None:
        self._write("\n", False)

    def clear(self) -> None:
        if self._there:
            self._write("\r\x1b[K", False)

    def _write(self, text: str, there: bool) -> None:
        with self._lock:
            self._there = there
            sys.stderr.write(text)
            sys.stderr.flush()


class _Notebook:
    """An output of the cell, updated in place; when the run is over it is empty."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._text = ""

    def show(self, text: str) -> None:
        from IPython.display import display

        self._text = text
        data = {"text/plain": text}
        if self._handle is None:
            self._handle = display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)

    def leave(self) -> None:
        self._handle, self._text = None, ""

    def clear(self) -> None:
        if threading.current_thread() is threading.main_thread() and self._text:
            self.show("")
