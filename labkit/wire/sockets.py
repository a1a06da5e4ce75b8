"""What a process really sent over TCP, as the kernel counts it.

gloo's native collectives move their bytes behind `Group`'s back. So their traffic is measured, not computed:
Linux counts for every TCP connection the bytes it was given (`TCP_INFO`). gloo's own framing is included.
"""

from __future__ import annotations

import os
import socket
import struct
import sys

_BYTES_SENT, _NOT_SENT = (
    200,
    160,
)  # offsets in struct tcp_info (linux/tcp.h): u64 tcpi_bytes_sent, u32 tcpi_notsent_bytes
AVAILABLE = sys.platform == "linux"


class TcpMeter:
    """Bytes this process gave to its TCP sockets since the last reading, by (local port, remote port)."""

    def __init__(self) -> None:
        self._sockets: dict[int, tuple[socket.socket, tuple[int, int]]] = {}
        self._seen: dict[tuple[int, int], int] = {}
        self._highest = -1

    def read(self) -> dict[tuple[int, int], int]:
        """What was sent on each connection since the previous `read`."""
        if not AVAILABLE:
            return {}
        self._find()
        grown: dict[tuple[int, int], int] = {}
        for fd, (sock, ports) in list(self._sockets.items()):
            try:
                info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 232)
            except OSError:
                del self._sockets[fd]
                continue
            given = (
                struct.unpack_from("<Q", info, _BYTES_SENT)[0] + struct.unpack_from("<I", info, _NOT_SENT)[0]
            )
            before = self._seen.get(ports, 0)
            if given != before:
                self._seen[ports] = given
                grown[ports] = given - before
        return grown

    def _find(self) -> None:
        """Look for connections opened since last time (a new one has made the number of descriptors grow)."""
        names = os.listdir("/proc/self/fd")
        if len(names) == self._highest:
            return
        self._highest = len(names)
        for name in names:
            fd = int(name)
            if fd in self._sockets:
                continue
            try:
                sock = socket.socket(fileno=os.dup(fd))
                if sock.family not in (socket.AF_INET, socket.AF_INET6) or sock.type != socket.SOCK_STREAM:
                    raise OSError
                ports = (sock.getsockname()[1], sock.getpeername()[1])
            except OSError:
                continue
            self._sockets[fd] = (sock, ports)
