"""The nursery: imports labkit once, forks a host for each job, and clears away what a host leaves behind.

On Linux it adopts whatever loses its parent below it. So a process that a rank started ends with its world even where
the host was killed and could end nothing, and even where that process made itself a session of its own. (Not so if
the nursery itself is killed with SIGKILL: ranks die then too, but nobody is left to look for what they started.)
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
from typing import Any

from . import host_main
from .process import adopt_orphans, die_with_parent, end_children, name_process


def nurse(sock: socket.socket, zygote: int) -> int:
    """Take jobs from the zygote until it closes the socket and the last host is through. Returns the exit code."""
    name_process("labkit nursery")
    hosts: set[int] = set()
    bell, rope = os.pipe()

    def end_all(*_: Any) -> None:
        for pid in hosts:
            _kill_group(pid)
        end_children()
        os._exit(0)

    os.set_blocking(bell, False)
    os.set_blocking(rope, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGTERM, end_all)
    signal.set_wakeup_fd(rope, warn_on_full_buffer=False)
    adopt_orphans()
    if sys.platform == "linux":
        die_with_parent(zygote, signal.SIGTERM)
    poll = select.poll()
    poll.register(bell, select.POLLIN)
    poll.register(sock, select.POLLIN)
    open_ = True
    while open_ or hosts:
        for fd, _ in poll.poll():
            if fd == bell:
                with contextlib.suppress(BlockingIOError):
                    os.read(bell, 4096)
                _bury(hosts)
                continue
            data, fds, _, _ = socket.recv_fds(sock, 1, 1)
            if not data or not fds:
                open_ = False
                poll.unregister(sock)
                continue
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                for inherited in (bell, rope, sock.detach()):
                    os.close(inherited)
                return host_main.main(fds[0])
            hosts.add(pid)
            os.close(fds[0])
    return 0


def _bury(hosts: set[int]) -> None:
    """Clear away after the hosts that ended; until a host is buried, its number cannot be another process's."""
    for pid in list(hosts):
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            continue
        _kill_group(pid)
        os.waitpid(pid, 0)
        hosts.remove(pid)
    end_children(keep=hosts)


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
