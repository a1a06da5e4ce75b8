"""How a host process begins and ends: the job arrives on a socket, and nothing that it started is left."""

from __future__ import annotations

import os
import resource
import signal
import socket
import sys
from typing import Any

from .channel import Channel, Closed
from .host import Host
from .process import adopt_orphans, die_with_parent, end_children, name_process


def main(fd: int) -> int:
    """Be the host of the job that arrives on this socket. Returns the exit code."""
    name_process("labkit host")
    if sys.platform == "linux":  # elsewhere the caller's socket tells, and a thread would forbid forking
        die_with_parent(os.getppid())
    os.setpgid(0, 0)
    adopt_orphans()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    caller = Channel(socket.socket(fileno=fd))
    try:
        head, _ = caller.receive()
        try:
            request = _unpack(head)
        except BaseException as why:
            caller.send(("refused", f"the function could not be loaded in a new process: {type(why).__name__}: {why}. "
                         "Are its modules saved where the notebook can import them?"))  # fmt: skip
            return 1
        host = Host(caller, request)
        try:
            host.fork_all()
        except OSError as why:
            host.kill_all()
            begun = sum(life.pid > 0 for life in host.lives)
            caller.send(("refused", f"only {begun} of {host.spec.world_size} ranks could start: {why}"))
            return 1
        host.run()
    except Closed:
        return 1
    finally:
        # What the ranks themselves started (a subprocess, a data loader's worker) ends with them.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.killpg(0, signal.SIGTERM)
        end_children(grace=0.5)
    return 0


def _unpack(head: dict[str, Any]) -> dict[str, Any]:
    """Take over the caller's folder, import path and environment, then load the function."""
    import pickle

    os.chdir(head["cwd"])
    sys.path[:] = head["path"]
    os.environ.update(head["environ"])
    for name in set(os.environ) - set(head["environ"]):
        del os.environ[name]
    # Python tells a stale compiled file by its second: a module edited twice within one would stay old.
    sys.dont_write_bytecode = True
    return dict(head, call=pickle.loads(head["call"]))
