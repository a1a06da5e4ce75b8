"""The process that every rank is forked from: PyTorch is loaded in it, labkit is not.

Run as a script, never imported by others: `python zygote.py FD`. It loads PyTorch once (1 to 2 seconds), then waits.
For each job it is sent one socket; it forks, and the child becomes that job's host (`labkit.world.host`).
Because labkit and the reader's modules are imported anew by each host, an edit is seen by the next launch.
It ends when the process that started it is gone, or when nothing was asked of it for a while.
"""

import os
import signal
import socket
import sys


def main(fd: int, idle_seconds: float) -> None:
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
    sock.settimeout(idle_seconds)
    while True:
        try:
            data, fds, _, _ = socket.recv_fds(sock, 1, 1)
        except TimeoutError:
            return
        except OSError:
            return
        if not data or not fds:
            return
        if os.fork() == 0:
            sock.close()
            _become_host(fds[0])
        os.close(fds[0])


def _become_host(fd: int) -> None:
    code = 1
    try:
        sys.path.pop(0)  # the folder of this script is no place to import from
        from labkit.world.host import main as host

        code = host(fd)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
