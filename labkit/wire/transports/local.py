"""The `local` transport: framed sockets, one for each direction between two ranks.

A message is a header of 104 bytes (operation, order, dtype, shape, the sender's time) and the tensor's bytes.
Sockets are Unix ones on a host and TCP across hosts; they are opened on the first message, by the sender.
The first bytes on a socket are the run's secret, because loopback is shared with other users.

Three properties that gloo's point-to-point lacks: a receiver checks each message against what it expected;
a wait that timed out spoils nothing; and groups can be formed anew over the living (`Group.rebuild`).
Here are the sockets; how messages move over them is in lane.py, and what goes on in the background in background.py.
"""

from __future__ import annotations

import hmac
import os
import select
import socket
import struct
import threading
from typing import Any

from ..errors import PeerLost
from . import Site, Sockets, Transport, kind
from .epoch import Epoch
from .lane import LocalLane

BUFFER = 1 << 20  # bytes a socket holds between two ranks
DIAL = 10.0  # seconds that a connection may take; on one host it takes none
_HELLO = struct.Struct("<16sIIiqI")  # the run's secret, key of the group, its lane, the sender, epoch and its lives


def abstract_listener() -> tuple[socket.socket, Any]:
    """A listening Unix socket without a file (Linux), or a TCP one on loopback; and its address."""
    if hasattr(socket, "AF_UNIX") and os.uname().sysname == "Linux":
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.bind("")  # the kernel picks a free abstract name
    else:
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.bind(("127.0.0.1", 0))
    sock.listen(4096)
    return sock, sock.getsockname()


class Doorstep:
    """Where a thread waits for a connection. Ready to be read when somebody knocks, or when another thread, which takes
    what comes first, has let in whom this one waits for: else it would sleep on beside its open door."""

    def __init__(self, listener: socket.socket):
        self._called = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._either = select.epoll()
        self._either.register(listener, select.EPOLLIN)
        self._either.register(self._called, select.EPOLLIN)

    def fileno(self) -> int:
        return self._either.fileno()

    def call(self) -> None:
        os.eventfd_write(self._called, 1)

    def close(self) -> None:
        self._either.close()
        os.close(self._called)


class LocalTransport(Transport):
    """A rank's sockets: its listener, and the way to everyone else's."""

    name = "local"
    rebuildable = True
    numbers_messages = True

    def __init__(self, rank: int, sockets: Sockets):
        self.rank = rank
        self.listener, self.addresses, self.secret, alive = sockets
        self.alive = alive or (lambda peer: True)
        self._accepted: dict[tuple[int, int, int, int], tuple[socket.socket, int]] = {}
        self._waiting: dict[tuple[int, int, int, int], Doorstep] = {}
        self._left: set[tuple[int, int, int]] = set()  # lanes that this rank has left
        self._lock = threading.Lock()
        self._lanes: list[LocalLane] = []
        self.listener.setblocking(False)

    def lane(self, key: int, lane: int, timeout: float, epoch: Epoch | None = None) -> LocalLane:
        """A set of sockets of its own for one lane of one group."""
        made = LocalLane(self, key, lane, timeout, epoch)
        self._lanes.append(made)
        return made

    def left(self, lane: LocalLane) -> None:
        """This rank left a lane: who comes for it later is turned away."""
        self._left.add((lane.key, 0 if lane.epoch is None else lane.epoch.number, lane.lane))

    def forget(self, lane: Any) -> None:
        """A lane was closed before the end of the run."""
        lane.close()
        if lane in self._lanes:
            self._lanes.remove(lane)
        with self._lock:
            here = lane.key, 0 if lane.epoch is None else lane.epoch.number, lane.lane
            for wanted in [one for one in self._waiting if one[:3] == here]:
                self._waiting.pop(wanted).close()

    def address(self, peer: int) -> Any:
        """Where `peer` listens; another one after a restart."""
        return self.addresses[peer]

    def dial(self, peer: int, key: int, lane: int, epoch: Epoch | None = None) -> socket.socket:
        """Open the socket on which this rank sends to `peer`: of an epoch's members, to the life it then had."""
        address = self.addresses[peer] if epoch is None else epoch.addresses[peer]
        number, lives = (0, 0) if epoch is None else (epoch.number, epoch.lives)
        family = socket.AF_INET if isinstance(address, (tuple, list)) else socket.AF_UNIX
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.settimeout(DIAL)
            sock.connect(tuple(address) if family == socket.AF_INET else address)
            sock.sendall(_HELLO.pack(self.secret, key, lane, self.rank, number, lives))
        except OSError as why:
            sock.close()
            gone = isinstance(why, ConnectionRefusedError)  # nobody listens there any more
            words = f"lost rank {peer}: it is no longer running" if gone else f"cannot reach rank {peer}: {why}"
            raise PeerLost(f"rank {self.rank} {words}", peer) from why
        _tune(sock)
        return sock

    def doorstep(self, peer: int, key: int, lane: int, epoch: Epoch | None = None) -> int:
        """A descriptor that is ready to be read when `accept` with these arguments may find a socket at last."""
        with self._lock:
            found = self._waiting.get((key, 0 if epoch is None else epoch.number, lane, peer))
        return self.listener.fileno() if found is None else found.fileno()

    def _let_in(self, whose: tuple[int, int, int, int], sock: socket.socket, lives: int) -> None:
        """Keep the socket of a connection for the thread that wants it, and wake that thread."""
        self._accepted[whose] = sock, lives
        if whose in self._waiting:
            self._waiting[whose].call()

    def _take(self, wanted: tuple[int, int, int, int]) -> tuple[socket.socket, int]:
        if wanted in self._waiting:
            self._waiting.pop(wanted).close()
        return self._accepted.pop(wanted)

    def _wait_for(self, wanted: tuple[int, int, int, int]) -> None:
        """From now on whoever lets this connection in says so."""
        if wanted not in self._waiting and hasattr(os, "eventfd"):
            self._waiting[wanted] = Doorstep(self.listener)

    def accept(
        self, peer: int, key: int, lane: int, epoch: Epoch | None = None, wait: bool = False
    ) -> socket.socket | None:
        """The socket on which `peer` sends to this rank, if it has been opened. wait: the caller waits at `doorstep`.

        Raises PeerLost if the peer takes another life of some member for the one that belongs to this epoch.
        """
        wanted = (key, 0 if epoch is None else epoch.number, lane, peer)
        with self._lock:
            while wanted not in self._accepted:
                try:
                    sock, _ = self.listener.accept()
                except BlockingIOError:
                    if wait:
                        self._wait_for(wanted)
                    return None
                if not _of_this_user(sock):
                    sock.close()
                    continue
                sock.settimeout(5)
                try:
                    hello = sock.recv(_HELLO.size, socket.MSG_WAITALL)
                    secret, k, la, source, number, lives = _HELLO.unpack(hello)
                except (OSError, struct.error):
                    sock.close()
                    continue
                if not hmac.compare_digest(secret, self.secret):
                    sock.close()  # somebody else on this machine knocked
                    continue
                if (k, number, la) in self._left:
                    sock.close()
                    continue
                _tune(sock)
                self._let_in((k, number, la, source), sock, lives)
            sock, lives = self._take(wanted)
        if epoch is not None and lives != epoch.lives:
            sock.close()
            raise PeerLost(f"rank {self.rank} lost rank {peer}: a member of their group was restarted", peer)
        return sock

    def close(self) -> None:
        """Close the listener and every socket: whoever waits for this rank learns that it is gone."""
        self.listener.close()
        for lane in list(self._lanes):
            lane.close()
        for sock, _ in self._accepted.values():
            sock.close()
        for one in self._waiting.values():
            one.close()


@kind("local", own_sockets=True)
def _local(site: Site) -> LocalTransport:
    return LocalTransport(site.rank, site.sockets())


def _of_this_user(sock: socket.socket) -> bool:
    """Whether the other end of a Unix socket may be one of ours; where the kernel cannot tell, the secret must."""
    if sock.family != getattr(socket, "AF_UNIX", None) or not hasattr(socket, "SO_PEERCRED"):
        return True
    _, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return uid == os.getuid()


def _tune(sock: socket.socket) -> None:
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
    if sock.family == socket.AF_INET:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
