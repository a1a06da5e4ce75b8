"""The process that every rank is forked from: PyTorch is loaded in it, labkit is not.

Run as a script: `python zygote.py FD SECONDS`. It loads PyTorch once (1 to 2 seconds) and
forks a *nursery*, which imports labkit. For each job it is sent one socket; the nursery forks, and the child becomes
that job's host (`labkit.world.host`). If a file of labkit has changed since, a new nursery is made first, so an
edit is always seen by the next launch; the reader's own modules are imported by each host anew.
All this ends when the process that started it is gone, or when nothing was asked of it for a while.
"""

import os
import signal
import socket
import sys

LOOK = 2.0  # seconds between two looks at whether the caller still lives
HOME = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Nursery:
    """A fork that has imported labkit and forks a host for each job it is handed."""

    def __init__(self, sock: socket.socket) -> None:
        self.stamp = stamp()
        self.sock, theirs = socket.socketpair()
        zygote = os.getpid()
        if os.fork() == 0:
            self.sock.close()
            sock.close()
            _nurse(theirs, zygote)
        theirs.close()

    def take(self, fd: int) -> bool:
        """Hand it the job; False if it is out of date or gone."""
        try:
            if self.stamp == stamp():
                socket.send_fds(self.sock, [b"j"], [fd])
                return True
        except OSError:
            pass
        self.sock.close()  # it stays until its hosts are through
        return False


def stamp() -> int:
    """Changes when any source file of labkit does."""
    found = []
    folders = [os.path.join(HOME, "labkit")]
    while folders:
        for entry in os.scandir(folders.pop()):
            if entry.is_dir(follow_symlinks=False):
                if entry.name != "__pycache__":
                    folders.append(entry.path)
            elif entry.name.endswith(".py"):
                status = entry.stat()
                found.append((entry.path, status.st_mtime_ns, status.st_size))
    return hash(tuple(sorted(found)))


def main(fd: int, idle_seconds: float) -> None:
    import gc
    import time

    caller = os.getppid()
    import cloudpickle  # noqa: F401
    import numpy.random  # noqa: F401
    import torch
    import torch.distributed
    import torch.nn.functional  # noqa: F401

    torch.manual_seed(0)  # the first call imports much, and every rank makes one
    torch.set_num_threads(1)  # threads do not survive a fork: none may be started here
    sock = socket.socket(fileno=fd)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel buries finished hosts
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupted cell is the caller's business
    sys.path[0] = HOME  # the very labkit that the caller runs, and not the folder of this script
    try:
        sock.sendall(b"\1")
    except OSError:  # the caller is gone already
        return
    # What follows can go on beside the caller's own work; a job that comes early waits in the socket.
    _import_what_optimizers_need()
    gc.collect()
    gc.freeze()  # keep the collector from touching, and so copying, pages that all ranks share
    collapse()
    nursery = Nursery(sock)
    sock.settimeout(min(LOOK, idle_seconds))
    last = time.monotonic()
    while True:
        try:
            data, fds, _, _ = socket.recv_fds(sock, 1, 1)
            last = time.monotonic()
        except TimeoutError:
            if os.getppid() != caller:  # gone, though a child of it still holds the socket
                return
            if time.monotonic() - last < idle_seconds:
                continue
            sock.close()  # idle for too long; but jobs that still run are let finish
            nursery.sock.close()
            try:
                os.wait()
            except ChildProcessError:
                return
            return
        except OSError:  # the caller is gone
            return
        if not data or not fds:
            return
        if not nursery.take(fds[0]):
            nursery = Nursery(sock)
            nursery.take(fds[0])
        os.close(fds[0])


def collapse() -> None:
    """Make huge pages of this process' memory, where the system can: a fork copies one entry for each 2 MiB of it.

    Else it copies one for every 4 KiB, 50,000 of them, and the end of the child takes as many away. With it a world of
    four ranks cost the kernel 87 ms in place of 152 (two cores, Linux 6.18). See madvise(2), MADV_COLLAPSE, Linux 6.1
    and later; elsewhere nothing is done.
    """
    import ctypes

    huge = 1 << 21
    try:
        madvise = ctypes.CDLL(None).madvise
        with open("/proc/self/maps") as maps:
            lines = [line.split() for line in maps]
    except (OSError, AttributeError):
        return
    for where, access, _, _, inode, *name in lines:
        if inode != "0" or "w" not in access or name not in ([], ["[heap]"]):
            continue
        first, last = (int(end, 16) for end in where.split("-"))
        for at in range(-(-first // huge) * huge, last // huge * huge, huge):
            madvise(ctypes.c_void_p(at), ctypes.c_size_t(huge), 25)


def _import_what_optimizers_need() -> None:
    """The first optimizer of a process imports PyTorch's compiler, for about a second: once here, not in every rank."""
    try:
        import torch._dynamo  # noqa: F401
    except ImportError:  # it is no public module
        pass


def _nurse(sock: socket.socket, zygote: int) -> None:
    """Import everything a host needs; then be the nursery, or in a fork of it a host."""
    code = 1
    try:
        import gc

        import labkit.collectives  # noqa: F401
        import labkit.wire.sampler
        import labkit.wire.transports.gloo  # noqa: F401
        from labkit.world.nursery import nurse

        gc.freeze()
        collapse()
        code = nurse(sock, zygote)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
