"""The process that every rank is forked from: PyTorch is loaded in it, labkit is not.

Run as a script, never imported by others: `python zygote.py FD`. It loads PyTorch once (1 to 2 seconds), then waits.
For each job it is sent one socket; it forks, and the child becomes that job's host (`labkit.world.host`).
Because labkit and the reader's modules are imported anew by each host, an edit is seen by the next launch.
It ends when the process that started it is gone, or when it has had no job for a while.
"""

import os
import signal
import socket
import sys
import time


LOOK = 2.0  # seconds between two looks at whether it is still needed


def main(fd: int, idle_seconds: float) -> None:
    parent = os.getppid()
    os.environ.setdefault("TORCH_GLOO_LAZY_INIT", "1")  # connect two ranks when they first talk
    import gc

    import cloudpickle  # noqa: F401
    import torch
    import torch.distributed
    import torch.nn.functional  # noqa: F401

    torch.set_num_threads(1)  # threads do not survive a fork: none may be started here
    sock = socket.socket(fileno=fd)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel buries finished hosts
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupted cell is the caller's business
    gc.collect()
    gc.freeze()  # keep the collector from touching, and so copying, pages that all ranks share
    sock.sendall(b"\1")
    sock.settimeout(min(LOOK, idle_seconds))
    last = time.monotonic()
    while True:
        try:
            data, fds, _, _ = socket.recv_fds(sock, 1, 1)
        except TimeoutError:
            if os.getppid() != parent:  # gone, though somebody it forked still holds the socket
                return
            if _jobs_run():
                last = time.monotonic()
            elif time.monotonic() - last >= idle_seconds:
                return
            continue
        except OSError:
            return
        if not data or not fds:
            return
        last = time.monotonic()
        if os.fork() == 0:
            sock.close()
            _become_host(fds[0])
        os.close(fds[0])


def _jobs_run() -> bool:
    """Whether a host is alive: hosts die with this process."""
    try:
        os.waitpid(-1, os.WNOHANG)
        return True
    except ChildProcessError:
        return False


def _become_host(fd: int) -> None:
    code = 1
    try:
        from labkit.world.host import main as host

        code = host(fd)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)


if __name__ == "__main__":
    sys.path.pop(0)  # the folder of this script is no place to import from
    main(int(sys.argv[1]), float(sys.argv[2]))
