"""What a process really sent over TCP, as the kernel counts it.

gloo's native collectives move their bytes behind `Group`'s back. So their traffic is measured, not computed:
Linux counts for every TCP connection the bytes it was given (`TCP_INFO`). gloo's own framing is included.
"""

from __future__ import annotations

import os
import socket
import struct
import sys

# offsets in struct tcp_info (linux/tcp.h): u64 tcpi_bytes_sent (then u64 tcpi_bytes_retrans), u32 tcpi_notsent_bytes
_BYTES_SENT, _NOT_SENT = 200, 144
AVAILABLE = sys.platform == "linux"


class TcpMeter:
    """Bytes this process gave to its TCP sockets since the last reading, by (local port, remote port)."""

    def __init__(self) -> None:
        self._sockets: dict[str, tuple[socket.socket, tuple[int, int]] | None] = {}  # by inode; None: not TCP
        self._seen: dict[tuple[int, int], int] = {}

    def read(self) -> dict[tuple[int, int], int]:
        """What was sent on each connection since the previous `read`."""
        if not AVAILABLE:
            return {}
        self._find()
        grown: dict[tuple[int, int], int] = {}
        for found in self._sockets.values():
            if found is None:
                continue
            sock, ports = found
            try:
                info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 232)
            except OSError:
                continue
            # What the kernel sent again (even loopback probes a slow receiver) was given to it only once.
            sent, again = struct.unpack_from("<QQ", info, _BYTES_SENT)
            given = sent - again + struct.unpack_from("<I", info, _NOT_SENT)[0]
            before = self._seen.get(ports, 0)
            if given != before:
                self._seen[ports] = given
                grown[ports] = given - before
        return grown

    def _find(self) -> None:
        """Look for connections opened since last time."""
        for name in os.listdir("/proc/self/fd"):
            try:
                inode = os.readlink(f"/proc/self/fd/{name}")
            except OSError:
                continue  # the descriptor of the listing itself
            if inode.startswith("socket:") and inode not in self._sockets:
                self._sockets[inode] = _connection(int(name))


def _connection(fd: int) -> tuple[socket.socket, tuple[int, int]] | None:
    """A copy of a connected TCP socket and its two ports; None for any other socket."""
    sock = socket.socket(fileno=os.dup(fd))
    try:
        if sock.family in (socket.AF_INET, socket.AF_INET6) and sock.type == socket.SOCK_STREAM:
            return sock, (sock.getsockname()[1], sock.getpeername()[1])
    except OSError:
        pass  # not connected
    sock.close()
    return None
