"""What the operating system knows and can do about a process."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Container


def die_with_parent(parent: int, by: int = signal.SIGKILL) -> None:
    """End this process when `parent` dies: with a signal of the kernel on Linux, elsewhere by a thread that looks."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, by, 0, 0, 0)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(1)
        return

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, name="labkit-parent", daemon=True).start()


def adopt_orphans() -> None:
    """From now on a process below this one that loses its parent becomes a child of this one (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def children() -> list[int]:
    """The children of this process, dead ones that are not buried included (Linux; elsewhere none)."""
    found: list[int] = []
    for thread in os.listdir("/proc/self/task") if sys.platform == "linux" else []:
        with contextlib.suppress(OSError), open(f"/proc/self/task/{thread}/children") as f:
            found += map(int, f.read().split())
    return found


def is_ending(pid: int) -> bool:
    """Whether a process is on its way out: it has let go of its sockets, maybe, and its parent has not heard of it yet.

    Linux says so; elsewhere False. On a busy machine the way out may take longer than anybody would wait for it.
    """
    try:
        with open(f"/proc/{pid}/stat") as f:
            state, *fields = f.read().rpartition(")")[2].split()
    except OSError:
        return sys.platform == "linux"
    return state in "ZX" or bool(int(fields[5]) & 0x4)  # PF_EXITING


def end_children(keep: Container[int] = (), grace: float = 0.0) -> None:
    """Kill and bury every child but those to keep, and theirs that come to us; wait `grace` seconds for them first."""
    begin = time.monotonic()
    while left := [pid for pid in children() if pid not in keep]:
        waited = time.monotonic() - begin
        for pid in left:
            with contextlib.suppress(ProcessLookupError, ChildProcessError, PermissionError):
                if waited >= grace:
                    os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, os.WNOHANG)
        if waited > grace + 2:  # one in a system call that cannot be broken off: the kernel ends it later
            return
        time.sleep(0.002)


def name_process(name: str) -> None:
    """Show `name` in ps and top (15 characters)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(15, name.encode()[:15], 0, 0, 0)  # PR_SET_NAME


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped (SIGSTOP) rather than running or sleeping."""
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rpartition(")")[2].split()[0] in "tT"
    except OSError:
        return False


def describe_exit(status: int) -> str:
    """How a process ended, from its wait status."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return (
            f"was killed by {signal.Signals(number).name}"
            if number in list(signal.Signals)
            else f"was killed by signal {number}"
        )
    code = os.waitstatus_to_exitcode(status)
    return f"exited with code {code}"


def memory_available() -> int | None:
    """Bytes this process may still take: of the machine, or of its container if that is less. None if unknown."""
    found = []
    try:
        with open("/proc/meminfo") as f:
            found += [int(line.split()[1]) * 1024 for line in f if line.startswith("MemAvailable")]
    except OSError:
        return None
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            with open(limit) as a, open(used) as b:
                cap = a.read().strip()
                if cap != "max":
                    found.append(max(0, int(cap) - int(b.read())))
        except OSError:
            pass
    return min(found) if found else None


def processes_available() -> int | None:
    """How many more processes this container may have; None if there is no limit."""
    try:
        with open("/sys/fs/cgroup/pids.max") as a, open("/sys/fs/cgroup/pids.current") as b:
            cap = a.read().strip()
            return None if cap == "max" else int(cap) - int(b.read())
    except OSError:
        return None
