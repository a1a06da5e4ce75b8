"""The standard output of a rank."""

from __future__ import annotations

import io
import os


class LineWriter(io.TextIOBase):
    """Writes whole lines in one system call each, so that lines of different ranks never mix."""

    def __init__(self, fd: int):
        self._fd, self._rest = fd, ""

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    def write(self, text: str) -> int:
        lines = self._rest + text
        whole, newline, self._rest = lines.rpartition("\n")
        if newline:
            self._out(whole + newline)
        return len(text)

    def flush(self) -> None:
        if self._rest:
            self._out(self._rest)
            self._rest = ""

    def _out(self, text: str) -> None:
        raw = text.encode("utf-8", "replace")
        while raw:
            raw = raw[os.write(self._fd, raw) :]
