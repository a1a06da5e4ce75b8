"""The directory of a run's checkpoints: names, order, the one writer, and which ones are kept.

    000007-step-12/              a whole checkpoint: the seventh that was begun, after step 12
        manifest.json
        rank-0000.data ...
    000008-step-24.writing/      one that is being written, or was when a crash came; never read
    000006-step-8.removing/      one on its way out; never read
    lock                         held by the one who writes

The newest is the one with the highest first number: who goes back to step 8 and trains on from there writes newer
checkpoints, of lower steps.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import weakref
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from . import files
from .errors import NotSaved

NAME = re.compile(r"(\d{6,})-step-(\d+)(\.writing|\.removing)?")


@dataclass(frozen=True)
class Found:
    """A checkpoint in a directory. serial: which one it was in the order of writing."""

    path: Path
    serial: int
    step: int


def found(directory: Path) -> list[Found]:
    """The whole checkpoints of a directory, the newest first."""
    return [f for f, ending in _all(directory) if not ending]


def _all(directory: Path) -> list[tuple[Found, str]]:
    names = [p for p in directory.iterdir() if p.is_dir()] if directory.is_dir() else []
    matches = [(p, NAME.fullmatch(p.name)) for p in names]
    made = [(Found(p, int(m[1]), int(m[2])), m[3] or "") for p, m in matches if m]
    return sorted(made, key=lambda one: -one[0].serial)


def begin(directory: Path, step: int) -> tuple[Path, Path]:
    """A new place to write in, and its name when it is whole."""
    serial = max((f.serial for f, _ in _all(directory)), default=0) + 1
    whole = directory / f"{serial:06d}-step-{step}"
    writing = whole.with_name(whole.name + ".writing")
    os.mkdir(writing)
    return writing, whole


def clear(directory: Path) -> None:
    """Remove what crashes have left. Only the one who holds the lock may."""
    for one, ending in _all(directory):
        if ending:
            files.remove(one.path)


def retain(directory: Path, keep: int | None, keep_every: int | None, damaged: Collection[Path] = ()) -> list[int]:
    """Remove all but the newest `keep`, and those of steps that `keep_every` divides. Returns the steps removed.

    damaged: known not to be good; they do not count as kept, and go with the old ones.
    """
    if keep is None:
        return []
    good = [f for f in found(directory) if f.path not in damaged]
    old = [f for f in good[keep:] if not (keep_every and f.step % keep_every == 0)]
    if len(good) > keep:
        old += [f for f in found(directory) if f.path in damaged]
    for one in old:  # renamed first: one that is removed by halves must not look whole
        leaving = one.path.with_name(one.path.name + ".removing")
        with contextlib.suppress(OSError):
            os.rename(one.path, leaving)
            files.remove(leaving)
    return [f.step for f in old]


def _make(directory: Path) -> None:
    """The directory and those above it; what is new is on the disk."""
    missing = [p for p in (directory, *directory.parents) if not p.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    for new in missing:
        files.sync_directory(new.parent)


class Lock:
    """The right to write in a directory. The system gives it up when the process ends, however it ends."""

    def __init__(self, directory: Path) -> None:
        """Makes the directory. Raises NotSaved if another one writes there; OSError if nobody can."""
        self.fd = -1
        _make(directory)
        self.fd = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            who = os.pread(self.fd, 200, 0).decode(errors="replace").strip() or "a process"
            self.release()
            raise NotSaved(
                f"{who} writes checkpoints in {directory}: two writers would remove each other's. Give each "
                "run a directory of its own, or end the other run"
            ) from None
        with contextlib.suppress(OSError):  # who it is: for the message of another one, no more
            os.ftruncate(self.fd, 0)
            os.pwrite(self.fd, f"process {os.getpid()} of {os.uname().nodename}".encode(), 0)
        _held.add(self)

    def __del__(self) -> None:
        self.release()

    def release(self) -> None:
        """Let others write."""
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            os.close(fd)


_held: weakref.WeakSet[Lock] = weakref.WeakSet()


def _forget() -> None:
    """A fork of a writer (a loader's worker, say) may live on when the writer is gone; it must not hold the lock."""
    for lock in list(_held):
        lock.release()


os.register_at_fork(after_in_child=_forget)
