"""What a run may have left behind: processes, descriptors, names in /dev/shm. And how to wait in a test."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

NEVER = 1000.0  # seconds: pytest ends a test long before. What ended although it may take so long, something else ended


def eventually(holds: Callable[[], object], seconds: float = 60.0) -> bool:
    """Whether `holds()` comes true. How long that takes is no matter: the limit only bounds a failure."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def processes(session: int) -> dict[int, str]:
    """The processes of a session, zombies included. labkit's worker process starts a session of its own."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                head, _, rest = (entry / "stat").read_text().rpartition(")")
            except OSError:
                continue
            if int(rest.split()[3]) == session:
                found[int(entry.name)] = head.partition("(")[2] + f" ({rest.split()[0]})"
    return found


def ranks_of(worker: int) -> dict[int, str]:
    """What runs or is left in the session of a worker process, apart from itself and its nursery."""
    return {p: name for p, name in processes(worker).items() if p != worker and "labkit nursery (S)" != name}


def zombies() -> list[int]:
    """Children of this process that nobody buried."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                rest = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if rest[0] == "Z" and int(rest[1]) == os.getpid():
                found.append(int(entry.name))
    return found


def alive(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def descriptors() -> int:
    """How many file descriptors this process has open."""
    return len(os.listdir("/proc/self/fd"))


def shared_memory() -> set[str]:
    """Names in /dev/shm of this user, whoever made them."""
    if not os.path.isdir("/dev/shm"):
        return set()
    with os.scandir("/dev/shm") as found:
        return {entry.name for entry in found if _owner(entry) == os.geteuid()}


def left_in_memory(before: set[str], worker: int) -> set[str]:
    """Names in /dev/shm that are new, and that nobody uses but this process and the session of its worker.

    Others test beside us, and what they have there is theirs. A name that nobody uses at all is what a dead rank left.
    """
    names = shared_memory() - before
    for entry in Path("/proc").iterdir() if names else ():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                theirs = int((entry / "stat").read_text().rpartition(")")[2].split()[3]) != worker
                used = (entry / "maps").read_text() + "\n".join(os.readlink(fd) for fd in (entry / "fd").iterdir())
            except OSError:  # it is gone, or another user's
                continue
            names -= {name for name in names if theirs and f"/dev/shm/{name}" in used}
    return names


def _owner(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat(follow_symlinks=False).st_uid
    except OSError:  # it is gone
        return -1
