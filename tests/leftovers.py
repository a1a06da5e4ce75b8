"""What a run may have left behind: processes, descriptors, names in /dev/shm. And how soon is soon."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def soon(seconds: float = 1.0) -> float:
    """A limit of `seconds` on a machine with a core to spare, longer where others keep the cores busy."""
    return seconds * max(1.0, 2 * os.getloadavg()[0] / CORES)


def eventually(holds: Callable[[], object], seconds: float = 5.0) -> bool:
    """Whether `holds()` comes true within `seconds`."""
    end = time.monotonic() + soon(seconds)
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
    """Names in /dev/shm."""
    return set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
