"""How messages move over the sockets of the `local` transport.

A message moves a step at a time, as much as its socket takes or has; in between the lane waits for any of its sockets.
An incoming sum is added piece by piece as it arrives, while the piece is still in the processor's cache.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from ..errors import PeerLost
from ..message import ACK, CREDIT, HEADER, Message
from . import FOREVER, Lane, too_late
from .background import LOOK, Background
from .epoch import Epoch

if TYPE_CHECKING:
    from .local import LocalTransport

PIECE = 1 << 18  # bytes added at a time: small enough for the second-level cache
WRITE = 1 << 20  # bytes offered to one send call


class LocalLane(Lane):
    """The sockets of one lane of one group, and the loop that moves messages over them."""

    def __init__(self, transport: LocalTransport, key: int, lane: int, timeout: float, epoch: Epoch | None = None):
        self.transport, self.key, self.lane, self.timeout, self.epoch = transport, key, lane, timeout, epoch
        self.out: dict[int, socket.socket] = {}
        self.into: dict[int, socket.socket] = {}
        self.owed: dict[int, int] = {}  # messages to each peer that it has not said it took (CREDIT)
        self._gone, self._leaving = False, threading.Lock()
        self._scratch: torch.Tensor | None = None
        self._background: Background | None = None

    # -- the two doors ---------------------------------------------------------------------------------------

    def run(self, *messages: tuple[Any, Message], limit: float = FOREVER) -> None:
        """Move the messages now and return when all are done. Each is (`push` or `pull`, message).

        limit: seconds that this may take, if less than the lane's own `timeout`.
        """
        limit = min(limit, self.timeout)
        if self._background is not None and self._background.busy():
            for advance, m in messages:
                self._background.post(advance, m)
            for _, m in messages:
                self._background.wait(m, limit)
            return
        self._drive(list(messages), time.monotonic() + limit, limit)

    def post(self, advance: Any, m: Message) -> None:
        """Start a message; `m.done` is set when it is over."""
        if self._background is None:
            self._background = Background(self)
        self._background.post(advance, m)

    def wait(self, m: Message, limit: float = FOREVER) -> None:
        """Wait for a posted message, `limit` seconds at most, and raise what went wrong with it."""
        assert self._background is not None
        self._background.wait(m, min(limit, self.timeout))

    def _drive(self, pending: list[tuple[Any, Message]], deadline: float, limit: float) -> None:
        while True:
            pending = [(advance, m) for advance, m in pending if not advance(m)]
            if not pending:
                return
            poll = select.poll()
            for _, m in pending:
                poll.register(*m.stuck)  # type: ignore[misc]
            if not poll.poll(LOOK if limit > 1 else max(1, min(LOOK, 1000 * (deadline - time.monotonic())))):
                self._look_around(pending, deadline, limit)

    def _look_around(self, pending: list[tuple[Any, Message]], deadline: float, limit: float) -> None:
        """Nothing moved for a while: has somebody gone without a word, or is it too late?"""
        for advance, m in pending:
            if not self.lives(m.peer) and not advance(m):
                raise self._lost(m.peer, OSError("it is no longer running"))
        if time.monotonic() > deadline:
            self._late(m.peer, limit)

    def lives(self, peer: int) -> bool:
        """Whether the process that this lane talks to as `peer` still runs its function."""
        transport, epoch = self.transport, self.epoch
        return transport.alive(peer) and (epoch is None or epoch.addresses[peer] == transport.address(peer))

    def _late(self, peer: int, limit: float) -> NoReturn:
        raise too_late(self.transport.rank, peer, limit, self.timeout)

    # -- one step of one message: True when it is over, else `stuck` says what to wait for -------------------

    def push(self, m: Message) -> bool:
        """Send as much of `m` as the socket takes."""
        sock = m.sock
        if sock is None:
            sock = self.out.get(m.peer)
            if sock is None:
                sock = self.open_to(m.peer)
            m.sock = sock
            m.head = memoryview(m.header())
            if type(m.raw) is not memoryview:
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
                self._stay()
                wanted = m.peer, self.key, self.lane, self.epoch
                sock = self.transport.accept(*wanted, wait=True)
                if sock is None:
                    m.stuck = (self.transport.doorstep(*wanted), select.POLLIN)
                    return False
                self.into[m.peer] = sock
            m.sock = sock
            m.head = bytearray(HEADER.size)
            if m.op is not None:
                m.scratch = self._borrow()
                m.raw = memoryview(m.scratch.numpy())
                m.at = 0
                m.into = m.x.detach().view(-1)
            elif type(m.raw) is not memoryview:
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
                    kind, words = wrong
                    raise kind(f"rank {m.peer} sent rank {self.transport.rank} {words}")
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
        into = m.into
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
        if self._gone:
            return PeerLost(f"rank {self.transport.rank} has left this group itself", -1)
        reason = str(why.strerror or why).lower()
        return PeerLost(f"rank {self.transport.rank} lost rank {peer}: {reason}", peer)

    def open_to(self, peer: int) -> socket.socket:
        """The socket on which this rank sends to `peer`, opened now if need be."""
        sock = self.out.get(peer)
        if sock is None:
            self._stay()
            sock = self.out[peer] = self.transport.dial(peer, self.key, self.lane, self.epoch)
        return sock

    def _stay(self) -> None:
        """Raise if this rank has left: another thread of it may have come here meanwhile."""
        if self._gone:
            raise PeerLost(f"rank {self.transport.rank} has left this group itself", -1)

    def credit(self, m: Message) -> None:
        """Tell the sender of `m` that it was taken, if it wants to know."""
        if m.flags & CREDIT:
            with contextlib.suppress(OSError):  # the sender may be through, and gone
                m.sock.send(b"\1")

    def credits(self, peer: int) -> None:
        """Take note of what `peer` has said it took. Raises PeerLost if it is gone and has not taken everything."""
        while self.owed[peer]:
            try:
                taken = len(self.out[peer].recv(256))
            except BlockingIOError:
                return
            except OSError as why:
                raise self._lost(peer, why) from why
            if not taken:
                raise self._lost(peer, ConnectionResetError("the connection was closed"))
            self.owed[peer] -= taken

    def leave(self, peers: list[int]) -> None:
        """Wake whoever waits for this rank on this lane, now or later: nothing more will come."""
        with self._leaving:  # a thread that fails, and one that gives it up
            if not self._gone:
                self._leave(peers)

    def _leave(self, peers: list[int]) -> None:
        for peer in peers:
            with contextlib.suppress(PeerLost):
                self.open_to(peer)
            with contextlib.suppress(PeerLost):
                if peer not in self.into:
                    sock = self.transport.accept(peer, self.key, self.lane, self.epoch)
                    if sock is not None:
                        self.into[peer] = sock
        self._gone = True
        self.transport.left(self)
        for sock in (*self.out.values(), *self.into.values()):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)  # not close: another thread may be waiting on it

    def idle(self) -> bool:
        """Whether no message is under way in the background."""
        return self._background is None or not self._background.busy()

    def close(self) -> None:
        """Close all sockets of this lane."""
        if self._background is not None:
            self._background.stop()
        for sock in (*self.out.values(), *self.into.values()):
            sock.close()
        self.out.clear()
        self.into.clear()
