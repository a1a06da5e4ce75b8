"""Writing so that a crash at any moment leaves either all of a file or none of it, and never harms another one.

What was written may sit in memory: it is on the disk after `fsync` of the file. A new name may, too: it is there after
`fsync` of the directory. A rename is done whole or not at all. All writes of checkpoints go through here.
"""

from __future__ import annotations

import contextlib
import errno
import os
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

JOINED = 1 << 20  # small pieces are joined to writes of so many bytes
ALIGNED = 64  # pieces begin at multiples of this, so that a map of the file can be used as a tensor


class Output:
    """A new file that is written from front to back."""

    def __init__(self, path: Path) -> None:
        self.path, self.size = path, 0
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        self._joined = bytearray()

    def add(self, data: memoryview) -> tuple[int, int]:
        """Append; returns the offset in the file and the CRC-32 of `data`."""
        gap = -self.size % ALIGNED
        self._joined += bytes(gap)
        offset = self.size + gap
        self.size = offset + len(data)
        crc = zlib.crc32(data)
        if len(data) < JOINED:
            self._joined += data
        else:
            self._flush()
            self._write(data)
        if len(self._joined) >= JOINED:
            self._flush()
        return offset, crc

    def finish(self) -> None:
        """All of it on the disk, and the file closed."""
        self._flush()
        os.fsync(self._fd)
        self.close()

    def close(self) -> None:
        """Close without a promise."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def _flush(self) -> None:
        if self._joined:
            data, self._joined = bytes(self._joined), bytearray()
            self._write(memoryview(data))

    def _write(self, data: memoryview) -> None:
        while data:
            data = data[os.write(self._fd, data) :]


def write_text(path: Path, text: str) -> None:
    """Put `text` at `path`, whole: written beside it, brought to the disk, renamed."""
    beside = path.with_name(path.name + ".new")
    out = Output(beside)
    try:
        out.add(memoryview(text.encode()))
        out.finish()
    finally:
        out.close()
    os.rename(beside, path)


def sync_directory(path: Path) -> None:
    """Names in this directory are on the disk when it returns."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def remove(path: Path) -> None:
    """Remove a directory of files, as far as that goes; nothing is raised."""
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(path)):
            with contextlib.suppress(OSError):
                os.unlink(entry.path)
        os.rmdir(path)


def read_range(path: Path, offset: int, nbytes: int) -> bytearray:
    """`nbytes` of a file from `offset`; fewer if it ends before."""
    data = bytearray(nbytes)
    view, found = memoryview(data), 0
    with open(path, "rb", buffering=0) as f:
        f.seek(offset)
        while found < nbytes and (n := f.readinto(view[found:])):
            found += n
    del view
    return data if found == nbytes else data[:found]


def in_words(error: OSError, doing: str, where: Path) -> str:
    """An error of the operating system for the person who typed the cell."""
    why: Any = error.strerror or error
    text = f"{doing} {where}: {why}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        text += f" ({free(where)}). Free some, keep fewer checkpoints (keep=), or choose another directory"
    elif error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        text += ". Choose a directory that you may write in"
    return text


def free(path: Path) -> str:
    """How much room there is on the disk of `path`, in words."""
    for place in (path, *path.parents):
        with contextlib.suppress(OSError):
            s = os.statvfs(place)
            return f"{s.f_bavail * s.f_frsize / 1e9:.3g} GB are free there"
    return "how much is free is unknown"


def total(sizes: Iterable[int]) -> str:
    """Bytes in words."""
    return f"{sum(sizes) / 1e6:.3g} MB"
