"""The `local` transport: framed sockets, one for each direction between two ranks.

A message is a header of 104 bytes (operation, order, dtype, shape, the sender's time) and the tensor's bytes.
Sockets are Unix ones on a host and TCP across hosts; they are opened on the first message, by the sender.
The first bytes on a socket are the run's secret, because loopback is shared with other users.

Three properties that gloo's point-to-point lacks: a receiver checks each message against what it expected;
a wait that timed out spoils nothing; and groups can be formed anew over the living (`Group.rebuild`).
An incoming sum is added piece by piece as it arrives, while the piece is still in the processor's cache.
"""

from __future__ import annotations

import collections
import contextlib
import hmac
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

from ..errors import Mismatch, PeerLost, WaitTimeout
from ..message import ACK, HEADER, Message

PIECE = 1 << 18  # bytes added at a time: small enough for the second-level cache
WRITE = 1 << 20  # bytes offered to one send call
BUFFER = 1 << 20  # bytes a socket holds between two ranks
LOOK = 100  # milliseconds between two looks at whether the other rank still lives
_HELLO = struct.Struct("<16sIIi")


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


class LocalTransport:
    """A rank's sockets: its listener, and the way to everyone else's."""

    name = "local"
    rebuildable = True
    numbers_messages = True

    def __init__(
        self,
        rank: int,
        listener: socket.socket,
        addresses: Any,
        secret: bytes,
        alive: Callable[[int], bool] | None = None,
    ):
        self.rank, self.listener, self.addresses, self.secret = rank, listener, addresses, secret
        self.alive = alive or (lambda peer: True)
        self._accepted: dict[tuple[int, int, int], socket.socket] = {}
        self._left: set[tuple[int, int]] = set()  # lanes that this rank has left
        self._lock = threading.Lock()
        self._lanes: list[LocalLane] = []
        listener.setblocking(False)

    def lane(self, key: int, lane: int, timeout: float) -> LocalLane:
        """A set of sockets of its own for one lane of one group."""
        made = LocalLane(self, key, lane, timeout)
        self._lanes.append(made)
        return made

    def address(self, peer: int) -> Any:
        """Where `peer` listens; another one after a restart."""
        return self.addresses[peer]

    def dial(self, peer: int, key: int, lane: int) -> socket.socket:
        """Open the socket on which this rank sends to `peer`."""
        address = self.addresses[peer]
        family = socket.AF_INET if isinstance(address, (tuple, list)) else socket.AF_UNIX
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.connect(tuple(address) if family == socket.AF_INET else address)
            sock.sendall(_HELLO.pack(self.secret, key, lane, self.rank))
        except OSError as why:
            sock.close()
            raise PeerLost(f"rank {self.rank} cannot reach rank {peer}: {why}", peer) from why
        _tune(sock)
        return sock

    def accept(self, peer: int, key: int, lane: int) -> socket.socket | None:
        """The socket on which `peer` sends to this rank, if it has been opened."""
        wanted = (key, lane, peer)
        with self._lock:
            while wanted not in self._accepted:
                try:
                    sock, _ = self.listener.accept()
                except BlockingIOError:
                    return None
                if not _of_this_user(sock):
                    sock.close()
                    continue
                sock.settimeout(5)
                try:
                    hello = sock.recv(_HELLO.size, socket.MSG_WAITALL)
                    secret, k, la, source = _HELLO.unpack(hello)
                except (OSError, struct.error):
                    sock.close()
                    continue
                if not hmac.compare_digest(secret, self.secret):
                    sock.close()  # somebody else on this machine knocked
                    continue
                if (k, la) in self._left:
                    sock.close()
                    continue
                _tune(sock)
                self._accepted[k, la, source] = sock
            return self._accepted.pop(wanted)

    def close(self) -> None:
        """Close the listener and every socket: whoever waits for this rank learns that it is gone."""
        self.listener.close()
        for lane in self._lanes:
            lane.close()
        for sock in self._accepted.values():
            sock.close()


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


class LocalLane:
    """The sockets of one lane of one group, and the loop that moves messages over them."""

    def __init__(self, transport: LocalTransport, key: int, lane: int, timeout: float):
        self.transport, self.key, self.lane, self.timeout = transport, key, lane, timeout
        self.out: dict[int, socket.socket] = {}
        self.into: dict[int, socket.socket] = {}
        self._scratch: torch.Tensor | None = None
        self._background: Background | None = None

    # -- the two doors ---------------------------------------------------------------------------------------

    def run(self, *messages: tuple[Any, Message]) -> None:
        """Move the messages now and return when all are done. Each is (`push` or `pull`, message)."""
        if self._background is not None and self._background.busy():
            for advance, m in messages:
                self._background.post(advance, m)
            for _, m in messages:
                self._background.wait(m, self.timeout)
            return
        self._drive(list(messages), time.monotonic() + self.timeout)

    def post(self, advance: Any, m: Message) -> None:
        """Start a message; `m.done` is set when it is over."""
        if self._background is None:
            self._background = Background(self)
        self._background.post(advance, m)

    def wait(self, m: Message) -> None:
        """Wait for a posted message and raise what went wrong with it."""
        assert self._background is not None
        self._background.wait(m, self.timeout)

    def _drive(self, pending: list[tuple[Any, Message]], deadline: float) -> None:
        while True:
            pending = [(advance, m) for advance, m in pending if not advance(m)]
            if not pending:
                return
            poll = select.poll()
            for _, m in pending:
                poll.register(*m.stuck)  # type: ignore[misc]
            if not poll.poll(LOOK):
                self._look_around(pending, deadline)

    def _look_around(self, pending: list[tuple[Any, Message]], deadline: float) -> None:
        """Nothing moved for a while: has somebody gone without a word, or is it too late?"""
        for advance, m in pending:
            if not self.transport.alive(m.peer) and not advance(m):
                raise self._lost(m.peer, OSError("it is no longer running"))
        if time.monotonic() > deadline:
            self._late(pending[0][1])

    def _late(self, m: Message) -> None:
        raise WaitTimeout(
            f"rank {self.transport.rank} waited {self.timeout:g} s for rank {m.peer}: nothing moved. "
            f"Is rank {m.peer} in the same operation? `timeout=` sets the longest single wait"
        )

    # -- one step of one message: True when it is over, else `stuck` says what to wait for -------------------

    def push(self, m: Message) -> bool:
        """Send as much of `m` as the socket takes."""
        sock = m.sock
        if sock is None:
            sock = self.out.get(m.peer)
            if sock is None:
                sock = self.out[m.peer] = self.transport.dial(m.peer, self.key, self.lane)
            m.sock = sock
            m.head = memoryview(m.header())
            m.raw = memoryview(m.raw.numpy())
        total = m.nbytes
        try:
            while m.state == 0:
                n = sock.sendmsg([m.head, m.raw[:WRITE]])
                if n >= len(m.head):
                    m.at, m.state = n - len(m.head), 1
                else:
                    m.head = m.head[n:]
            while m.at < total:
                m.at += sock.send(m.raw[m.at : m.at + WRITE])
            if m.flags & ACK:
                if sock.recv(1) == b"":
                    raise ConnectionResetError("closed before the message was taken")
            return True
        except BlockingIOError:
            wants = select.POLLOUT if m.at < total or m.state == 0 else select.POLLIN
            m.stuck = (sock.fileno(), wants)
            return False
        except OSError as why:
            raise self._lost(m.peer, why) from why

    def pull(self, m: Message) -> bool:
        """Receive as much of `m` as has come."""
        sock = m.sock
        if sock is None:
            sock = self.into.get(m.peer)
            if sock is None:
                sock = self.transport.accept(m.peer, self.key, self.lane)
                if sock is None:
                    m.stuck = (self.transport.listener.fileno(), select.POLLIN)
                    return False
                self.into[m.peer] = sock
            m.sock = sock
            m.head = bytearray(HEADER.size)
            if m.op is not None:
                m.scratch = self._borrow()
                m.raw = memoryview(m.scratch.numpy())
                m.at = 0
            else:
                m.raw = memoryview(m.raw.numpy())
        try:
            while m.state < HEADER.size:
                head = memoryview(m.head)[m.state :]
                first = m.raw[: min(PIECE, m.nbytes)]
                n = sock.recvmsg_into([head, first])[0] if m.nbytes else sock.recv_into(head)
                if n == 0:
                    raise ConnectionResetError("the connection was closed")
                got = min(n, len(head))
                m.state += got
                if m.state < HEADER.size:
                    continue
                wrong = m.check(bytes(m.head))
                if wrong:
                    raise Mismatch(f"rank {m.peer} sent rank {self.transport.rank} {wrong}")
                m.at = n - got
            if m.op is None:
                while m.at < m.nbytes:
                    n = sock.recv_into(m.raw[m.at : m.at + WRITE])
                    if n == 0:
                        raise ConnectionResetError("the connection was closed in the middle of a message")
                    m.at += n
            else:
                self._pull_and_combine(m, sock)
            if m.flags & ACK:
                sock.send(b"\1")
            return True
        except BlockingIOError:
            m.stuck = (sock.fileno(), select.POLLIN)
            return False
        except OSError as why:
            raise self._lost(m.peer, why) from why

    def _pull_and_combine(self, m: Message, sock: socket.socket) -> None:
        into = m.x.detach().view(-1)
        size = into.element_size()
        while True:
            start, end = m.free, min(m.free + PIECE, m.nbytes)  # the piece in work
            while m.at < end:
                n = sock.recv_into(m.raw[m.at - start : end - start])
                if n == 0:
                    raise ConnectionResetError("the connection was closed in the middle of a message")
                m.at += n
            if end > start:
                m.op.combine_(into[start // size : end // size], m.scratch[: end - start].view(m.x.dtype))
            m.free = end
            if end == m.nbytes:
                self._scratch = m.scratch
                return

    def _borrow(self) -> torch.Tensor:
        scratch, self._scratch = self._scratch, None
        return torch.empty(PIECE, dtype=torch.uint8) if scratch is None else scratch

    def _lost(self, peer: int, why: OSError) -> PeerLost:
        reason = str(why.strerror or why).lower()
        return PeerLost(f"rank {self.transport.rank} lost rank {peer}: {reason}", peer)

    def leave(self, peers: list[int]) -> None:
        """Wake whoever waits for this rank on this lane, now or later: nothing more will come."""
        for peer in peers:
            with contextlib.suppress(PeerLost):
                if peer not in self.out:
                    self.out[peer] = self.transport.dial(peer, self.key, self.lane)
            if peer not in self.into:
                sock = self.transport.accept(peer, self.key, self.lane)
                if sock is not None:
                    self.into[peer] = sock
        self.transport._left.add((self.key, self.lane))
        for sock in (*self.out.values(), *self.into.values()):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)  # not close: another thread may be waiting on it

    def close(self) -> None:
        """Close all sockets of this lane."""
        if self._background is not None:
            self._background.stop()
        for sock in (*self.out.values(), *self.into.values()):
            sock.close()
        self.out.clear()
        self.into.clear()


class Background:
    """The thread that finishes what `isend` and `irecv` began, in order for each peer and direction."""

    def __init__(self, lane: LocalLane):
        self.lane = lane
        self.queues: dict[tuple[Any, int], collections.deque[Message]] = {}
        self.outstanding = 0
        self.lock = threading.Lock()
        self.bell, self._rope = socket.socketpair()
        self.bell.setblocking(False)
        self._rope.setblocking(False)
        self.thread = threading.Thread(target=self._loop, name="labkit-messages", daemon=True)
        self.thread.start()

    def busy(self) -> bool:
        return self.outstanding > 0

    def post(self, advance: Any, m: Message) -> None:
        if m.done is None:
            m.done = threading.Event()
        with self.lock:
            self.outstanding += 1
            self.queues.setdefault((advance.__name__, m.peer), collections.deque()).append(m)
        self._ring()

    def _ring(self) -> None:
        try:
            self._rope.send(b"\1")
        except BlockingIOError:
            pass

    def wait(self, m: Message, timeout: float) -> None:
        assert m.done is not None
        if not m.done.wait(timeout):
            self.lane._late(m)
        if m.error is not None:
            raise m.error

    def stop(self) -> None:
        self._rope.close()

    def _loop(self) -> None:
        quiet = False
        while True:
            poll = select.poll()
            poll.register(self.bell.fileno(), select.POLLIN)
            with self.lock:
                heads = [(key, q) for key, q in self.queues.items() if q]
            for (name, _), queue in heads:
                advance = getattr(self.lane, name)
                while queue:
                    m = queue[0]
                    try:
                        if not advance(m):
                            if quiet and not self.lane.transport.alive(m.peer) and not advance(m):
                                raise self.lane._lost(m.peer, OSError("it is no longer running"))
                            poll.register(*m.stuck)  # type: ignore[misc]
                            break
                    except BaseException as error:
                        m.error = error
                    with self.lock:
                        queue.popleft()
                        self.outstanding -= 1
                    m.finish()
            quiet = not poll.poll(LOOK if self.outstanding else None)
            try:
                if self.bell.recv(4096) == b"":
                    self.bell.close()
                    return
            except BlockingIOError:
                pass
