"""Whether processes have nothing to do but wait, or wait for a core, as the kernel says it from outside (Linux)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable


def signature(pids: Iterable[int]) -> tuple[str, ...] | None:
    """How often each thread of these processes was switched; None if one of them runs or is ready to.

    Two equal signatures mean that nobody ran in between.
    """
    found = []
    for pid in pids:
        try:
            threads = os.listdir(f"/proc/{pid}/task")
        except OSError:
            continue  # it has ended
        for thread in threads:
            try:
                with open(f"/proc/{pid}/task/{thread}/status") as f:
                    text = f.read()
            except OSError:
                return None
            state = text.partition("State:")[2].lstrip()[:1]
            if state not in "SZX":
                return None
            found.append(f"{thread} {text.partition('voluntary_ctxt_switches:')[2]}")
    return tuple(found)


def cores(pid: int) -> tuple[float, float]:
    """Seconds that the threads of a process ran, and that they were ready to and stood in line for a core.

    (0, 0) of one that has ended, and of a kernel that keeps no such account (CONFIG_SCHED_INFO).
    """
    ran = stood = 0
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/schedstat") as f:
                a, b, _ = f.read().split()
            ran, stood = ran + int(a), stood + int(b)
    return ran / 1e9, stood / 1e9
