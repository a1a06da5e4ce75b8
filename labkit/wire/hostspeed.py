"""What this machine can do at best between two threads, to refuse an emulated link that is faster.

An emulated link delays messages; it cannot speed them up. A run in real time over a link that the host cannot
match would show the host's times under the link's name. The virtual clock has no such limit.
"""

from __future__ import annotations

import functools
import socket
import threading
import time

from labkit.cost.units import format_bandwidth, format_seconds

from .errors import RefusedError
from .network import Link, Network

MARGIN = 2.0  # refuse only what is faster by this factor: the measurement is a rough one
ROUNDS, BLOCK = 50, 1 << 20


@functools.cache
def best_of_host() -> Link:
    """The shortest hop and the highest bandwidth seen over a pair of Unix sockets; measured once, in milliseconds."""
    a, b = socket.socketpair()
    with a, b:
        echo = threading.Thread(target=_echo, args=(b,), daemon=True)
        echo.start()
        hops: list[float] = []
        blocks: list[float] = []
        for nbytes, times in ((1, hops), (BLOCK, blocks)):
            data = bytes(nbytes)
            for _ in range(ROUNDS if nbytes == 1 else 5):
                begin = time.perf_counter()
                a.sendall(data)
                while len(a.recv(1)) < 1:
                    pass
                times.append(time.perf_counter() - begin)
        a.shutdown(socket.SHUT_RDWR)
        echo.join()
    return Link(BLOCK / min(blocks), min(hops) / 2)


def _echo(sock: socket.socket) -> None:
    """Answer a single byte, and each whole block."""
    room = bytearray(BLOCK)
    for _ in range(ROUNDS):
        sock.sendall(sock.recv(1))
    while True:
        left = BLOCK
        while left:
            n = sock.recv_into(room, left)
            if n == 0:
                return
            left -= n
        sock.sendall(b"!")


def refuse_faster_links(network: Network) -> None:
    """Raise `RefusedError` if a link asks for more than this machine can do.

    Infinite bandwidth and no latency, as a `Link()` has them, ask for nothing: they stand for the wire as it is.
    """
    host = best_of_host()
    for name, link in (("intra", network.intra), ("inter", network.inter)):
        for what, asked, best in (
            (f"a bandwidth of {format_bandwidth(link.bandwidth)}", link.bandwidth, host.bandwidth * MARGIN),
            (f"a latency of {format_seconds(link.latency)}", -link.latency, -host.latency / MARGIN),
        ):
            if asked > best and asked not in (float("inf"), 0.0):
                raise RefusedError(
                    f"network: the {name} link has {what}, which is faster than this machine "
                    f"(about {format_bandwidth(host.bandwidth, 2)}, {format_seconds(host.latency, 2)} a hop). "
                    "A real run can only be slowed down: use clock='virtual' for faster links"
                )
