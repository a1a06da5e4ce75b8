"""What a rank gives up before it reads the first line of a submission: files, rights, processes, system calls.

`Walls` is decided by the warden, and put up by the rank itself, in the order in which each step still may be taken.
Afterwards the rank looks whether they stand; one that does not ends the rank.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
from dataclasses import dataclass, field

from . import kernel, landlock, seccomp, view

_ARENA_MAX, _TRIM, _MMAP = -8, -1, -3  # options of the C library's mallopt
STACK = 8 << 20


@dataclass
class Walls:
    """uid: whom a rank becomes; None: it stays who it is. filter: system calls. readable: for Landlock, or None.

    processes: how many processes and threads the user may have in all; None: not limited. space: bytes of addresses.
    """

    home: str
    disk: int | None = None  # the home is a file system of its own, that nobody else sees, of this many bytes
    uid: int | None = None
    capabilities: bool = False  # there are some to drop
    filter: bool = True
    readable: list[str] | None = None
    processes: int | None = None
    space: int = 0
    seconds: float = 10.0
    file: int = 0
    names: dict[str, str] = field(default_factory=dict)  # the whole environment

    def put_up(self, parent: int) -> None:
        """Confine this process. Raises OSError if a wall does not stand."""
        os.environ.clear()
        os.environ.update(self.names | {"HOME": self.home, "TMPDIR": self.home})
        if self.disk is not None:
            kernel.unshare("mount")
            view.fresh_home(self.home, self.disk)
            if self.uid is not None:
                os.chown(self.home, self.uid, self.uid)
        os.chdir(self.home)
        os.umask(0o077)
        _steady_allocator()
        self._limit()
        if self.uid is not None:
            os.setgroups([])
            os.setresgid(self.uid, self.uid, self.uid)
            os.setresuid(self.uid, self.uid, self.uid)
        if self.capabilities:
            kernel.drop_capabilities()
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)  # after the change of user, which takes it off
        if os.getppid() != parent:
            os._exit(1)
        if self.readable is not None:
            landlock.confine(self.readable, self.home)
        if self.filter:
            seccomp.confine()
            self._look()

    def _limit(self) -> None:
        r = resource
        limits = {
            r.RLIMIT_CORE: 0, r.RLIMIT_CPU: int(self.seconds) + 3, r.RLIMIT_FSIZE: self.file, r.RLIMIT_NOFILE: 512,
            r.RLIMIT_MEMLOCK: 0, r.RLIMIT_AS: self.space, r.RLIMIT_STACK: STACK,
        }  # fmt: skip
        for name, value in (("RLIMIT_MSGQUEUE", 0), ("RLIMIT_SIGPENDING", 64), ("RLIMIT_RTPRIO", 0)):
            if hasattr(r, name):
                limits[getattr(r, name)] = value
        if self.processes is not None:
            limits[r.RLIMIT_NPROC] = self.processes
        for which, value in limits.items():
            _, hard = r.getrlimit(which)
            bound = value if hard == r.RLIM_INFINITY else min(value, hard)
            r.setrlimit(which, (bound, bound))

    def _look(self) -> None:
        if kernel.prctl(kernel.PR_GET_SECCOMP) != 2:
            raise OSError("the filter of system calls is not in force")
        if any(kernel.capabilities()) or 0 in (*os.getresuid(), *os.getresgid()):
            raise OSError("the rank still has rights of root")
        if self.uid is not None and os.getgroups():
            raise OSError("the rank still has groups")


def _steady_allocator() -> None:
    """Freed tensors go back to the system at once: what counts is what is held. One arena: no reserve a thread."""
    libc = ctypes.CDLL(None)
    for option, value in ((_ARENA_MAX, 1), (_MMAP, 128 << 10), (_TRIM, 128 << 10)):
        libc.mallopt(option, value)
