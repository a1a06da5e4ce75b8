"""A rank's side of the switch: labkit's `local` transport, whose sockets all end in the grader's process.

A rank has no way to make a socket to anyone. It asks the grader for one (`dial`), and is handed one end; the other
end stays with the grader, who hands an end of a second pair to the receiver. Which rank sends on a socket is thus
known from the socket, not from anything that is written on it.

Two sockets are born with the rank: `talk`, for questions and the result, and `bell`, on which ends of sockets arrive
that others opened towards it, and the news that a rank is gone.
"""

from __future__ import annotations

import socket
import struct
import threading

from labkit.wire.errors import PeerLost
from labkit.wire.transports import Sockets
from labkit.wire.transports.epoch import Epoch
from labkit.wire.transports.lane import LocalLane
from labkit.wire.transports.local import BUFFER, LocalTransport

DIAL = struct.Struct("<cIIi")  # what, group, lane, rank
LINK, GONE = b"L", b"G"


class SwitchTransport(LocalTransport):
    """Sockets from the grader instead of from the kernel.

    No rank is started again here. So an epoch says nothing that the group's key, which is made of it, does not.
    """

    def __init__(self, rank: int, size: int, talk: socket.socket, bell: socket.socket):
        super().__init__(rank, Sockets(bell, list(range(size)), b"", self._lives))
        self._talk, self._asking = talk, threading.Lock()
        self._gone: set[int] = set()

    def dial(self, peer: int, key: int, lane: int, epoch: Epoch | None = None) -> socket.socket:
        """The socket on which this rank sends to `peer`."""
        with self._asking:
            try:
                self._talk.sendall(DIAL.pack(b"D", key, lane, peer))
                answer, fds, _, _ = socket.recv_fds(self._talk, 1, 1)
            except OSError as why:
                raise PeerLost(f"rank {self.rank} cannot reach rank {peer}: {why}", peer) from why
        if not fds:
            raise PeerLost(f"rank {self.rank} cannot reach rank {peer}: it is no longer running", peer)
        return _tuned(fds[0])

    def accept(
        self, peer: int, key: int, lane: int, epoch: Epoch | None = None, wait: bool = False
    ) -> socket.socket | None:
        """The socket on which `peer` sends to this rank, if it has been opened."""
        wanted = (key, 0, lane, peer)
        with self._lock:
            while wanted not in self._accepted:
                if not self._hear():
                    if wait:
                        self._wait_for(wanted)
                    return None
            return self._take(wanted)[0]

    def left(self, lane: LocalLane) -> None:
        """This rank left a lane: who comes for it later is turned away."""
        self._left.add((lane.key, 0, lane.lane))

    def _lives(self, peer: int) -> bool:
        with self._lock:
            while self._hear():
                pass
            return peer not in self._gone

    def _hear(self) -> bool:
        """Take one piece of news from the bell; False if there is none."""
        try:
            news, fds, _, _ = socket.recv_fds(self.listener, DIAL.size, 1)
            what, key, lane, source = DIAL.unpack(news)
        except (BlockingIOError, struct.error):
            return False
        if what == GONE:
            self._gone.add(source)
        elif fds and (key, 0, lane) in self._left:
            _tuned(fds[0]).close()
        elif fds:
            self._let_in((key, 0, lane, source), _tuned(fds[0]), 0)
        return True


def _tuned(fd: int) -> socket.socket:
    sock = socket.socket(fileno=fd)
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
    return sock
