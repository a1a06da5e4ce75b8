"""The process that wardens are forked from: PyTorch and labkit are loaded in it, and nothing else ever is.

Run as a script: `python -I template.py FD`. It is started with an empty environment and one descriptor, so that no
memory, name or file of the grader's is in it. Each order on its socket brings the control socket of a new sandbox.
"""

import json
import os
import signal
import socket
import sys

HOME = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))


def main(fd: int) -> None:
    sys.path.insert(0, HOME)  # the very labkit that the grader runs
    import gc

    import numpy.random  # noqa: F401
    import torch
    import torch.nn.functional  # noqa: F401

    import labkit.collectives
    import labkit.cost
    import labkit.models  # noqa: F401
    import labkit.wire.transports.background  # noqa: F401
    from labkit.grading.sandbox import warden
    from labkit.world.zygote import collapse

    torch.manual_seed(0)
    torch.set_num_threads(1)  # threads do not survive a fork: none may be started here
    try:
        import torch._dynamo  # noqa: F401  (what the first optimizer of a process imports)
    except ImportError:
        pass
    x = torch.ones(4, 4, requires_grad=True)
    torch.nn.functional.gelu(x @ x).sum().backward()  # what the first operations set up
    torch.optim.SGD([x], lr=0.1).step()
    gc.collect()
    gc.freeze()
    collapse()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupted grader ends its sandboxes itself
    sock = socket.socket(fileno=fd)
    sock.send(b"{}")
    while True:
        raw, fds, _, _ = socket.recv_fds(sock, 1 << 16, 1)
        if not raw:
            return
        if os.fork() == 0:
            warden.live(fds[0], json.loads(raw))
        os.close(fds[0])


if __name__ == "__main__":
    main(int(sys.argv[1]))
