"""The grader's side of all messages: it forwards frames between ranks and writes down what passes.

For each direction, group and lane there is a `Link`: two sockets, one to the sender and one to the receiver. A frame
is labkit's header (labkit/wire/message.py) and its payload. The switch reads the header, holds it against what can
be, forwards header and payload as fast as the receiver takes them, and passes the receiver's acknowledgement back. It
never holds more than one buffer a link, and what it counts are bytes that passed.
With `hold` it works in rounds instead: messages are kept until every rank waits (asleep.py), and then all of them are
delivered at once. A message of round k thus needed messages of round k - 1 and none later: rounds count what had to
follow one another, whatever the machine does meanwhile. A rank that sleeps looks like one that waits.

A frame that cannot be raises `IllFormed`: it ends the call, not the grader.
"""

from __future__ import annotations

import math
import selectors
import socket
from collections.abc import Callable
from typing import Any

from labkit.wire.dtypes import DTYPES, NAMES
from labkit.wire.message import ACK, HEADER, MAGIC
from labkit.wire.transports.local import BUFFER

from .evidence import Delivery
from .limits import Limits
from .transport import DIAL, GONE, LINK

_CHUNK = 1 << 18
MOST_HELD = 256 << 20  # bytes of a round


class IllFormed(Exception):
    """What a rank wrote cannot be a message. rank: which."""

    def __init__(self, rank: int, text: str):
        super().__init__(text)
        self.rank = rank


class Switch:
    """All links of one call. `selector` gets the callbacks of their sockets."""

    def __init__(
        self, size: int, bells: list[socket.socket], limits: Limits, selector: selectors.BaseSelector,
        hold: bool = False,
    ):  # fmt: skip
        self.size, self.bells, self.limits, self.selector = size, bells, limits, selector
        self.links: dict[tuple[int, int, int, int], Link] = {}
        self.bytes_between = [[0] * size for _ in range(size)]
        self.messages = [0] * size
        self.gone: set[int] = set()
        self.hold, self.round = hold, 1 if hold else 0
        self.traffic = self.events = self.held = 0
        self.log: list[list[Any]] = []
        self.most_links = 64 + 8 * size * size
        self.buffer = memoryview(bytearray(_CHUNK))

    def dial(self, src: int, peer: int, group: int, lane: int) -> socket.socket | None:
        """The sender's end of a new link; None if `peer` is gone. Raises IllFormed."""
        if not 0 <= peer < self.size or peer == src:
            raise IllFormed(src, f"asked for a connection to rank {peer}, which is not there")
        place = (src, peer, group, lane)
        if place in self.links or len(self.links) >= self.most_links:
            raise IllFormed(src, f"opened a connection twice, or more than {self.most_links} in all")
        if peer in self.gone:
            return None
        try:
            ours, theirs = socket.socketpair()
            out, into = socket.socketpair()
        except OSError as why:
            raise IllFormed(src, f"opened more connections than the grader has descriptors for ({why})") from None
        for sock in (ours, theirs, out, into):
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
        self.links[place] = Link(self, place, ours, out)
        self._ring(peer, DIAL.pack(LINK, group, lane, src), into)
        into.close()
        return theirs

    def leave(self, rank: int) -> None:
        """A rank is over: those who wait for its first word learn that there will be none."""
        if rank in self.gone:
            return
        self.gone.add(rank)
        for peer in range(self.size):
            if peer != rank and peer not in self.gone:
                self._ring(peer, DIAL.pack(GONE, 0, 0, rank), None)

    def _ring(self, rank: int, news: bytes, end: socket.socket | None) -> None:
        try:
            socket.send_fds(self.bells[rank], [news], [end.fileno()] if end is not None else [])
        except BlockingIOError:
            raise IllFormed(rank, "does not take its connections") from None
        except OSError:
            pass  # it is gone; whoever sends to it will notice

    def release(self) -> bool:
        """Deliver what is held, as one round; whether there was anything."""
        held = [link for link in self.links.values() if link.held]
        self.round += bool(held)
        for link in held:
            link.deliver()
        return bool(held)

    def event(self) -> int:
        """The next place in the order of all that happens."""
        self.events += 1
        return self.events - 1

    def order(self) -> list[Delivery]:
        """Every message that was begun."""
        return [Delivery(*row) for row in self.log]

    def close(self) -> None:
        """Close all sockets."""
        for link in self.links.values():
            link.close()


class Link:
    """From one rank to another, on one lane of one group."""

    def __init__(self, switch: Switch, place: tuple[int, int, int, int], source: socket.socket, sink: socket.socket):
        self.switch, self.source, self.sink = switch, source, sink
        self.src, self.dst, self.group, self.lane = place
        self.head = bytearray()
        self.left = self.seq = self.row = 0
        self.flags = 0
        self.owed = 0  # acknowledgements that the receiver has yet to give
        self.waiting = memoryview(b"")  # what the receiver has not yet taken
        self.open, self.sinks = True, True
        self.unfinished = False
        self.held: list[bytes] = []
        self._watched: dict[socket.socket, int] = {}
        self._watch()

    def _watch(self) -> None:
        """Listen to the sender while nothing waits; to the receiver for its acknowledgements and its end."""
        want = {
            self.source: selectors.EVENT_READ if self.open and not self.waiting else 0,
            self.sink: (selectors.EVENT_READ | (selectors.EVENT_WRITE if self.waiting else 0)) if self.sinks else 0,
        }
        selector = self.switch.selector
        for sock, events in want.items():
            was = self._watched.get(sock, 0)
            if events == was:
                continue
            do: Callable[[int], None] = self.from_source if sock is self.source else self.from_sink
            if not was:
                selector.register(sock, events, do)
            elif events:
                selector.modify(sock, events, do)
            else:
                selector.unregister(sock)
            self._watched[sock] = events

    def from_source(self, _: int) -> None:
        """Take what the sender has written, as much as one buffer holds."""
        try:
            if len(self.head) < HEADER.size:
                raw = self.source.recv(HEADER.size - len(self.head))
                if raw:
                    self.head += raw
                    if len(self.head) == HEADER.size:
                        self._begin()
                        self._forward(memoryview(bytes(self.head)))
            else:
                n = self.source.recv_into(self.switch.buffer[: min(self.left, _CHUNK)])
                raw = b"x" * bool(n)
                if n:
                    self.left -= n
                    self._count(n)
                    self._forward(self.switch.buffer[:n])
        except BlockingIOError:
            return
        except OSError:
            raw = b""
        if not raw:
            self._sender_left()
        elif len(self.head) == HEADER.size and not self.left:
            self.unfinished = True
            self._finish()
        self._watch()

    def _begin(self) -> None:
        switch, limits = self.switch, self.switch.limits
        magic, seq, operation, call, nbytes, _, dtype, ndim, flags, *dims = HEADER.unpack(self.head)
        if magic != MAGIC:
            raise IllFormed(self.src, "wrote something that is not the header of a message")
        if dtype not in NAMES or ndim > 8 or flags & ~ACK or any(d < 0 for d in dims) or any(dims[ndim:]):
            raise IllFormed(self.src, "wrote a header with an impossible dtype, shape or flag")
        shape = tuple(dims[:ndim])
        if nbytes < 0 or nbytes != math.prod(shape) * DTYPES[dtype - 1].itemsize:
            raise IllFormed(self.src, f"wrote a header of {nbytes} bytes that does not fit its shape {shape}")
        if seq != self.seq + 1:
            raise IllFormed(self.src, f"sent message {seq} after message {self.seq}")
        switch.messages[self.src] += 1
        if len(switch.log) >= limits.messages:
            raise IllFormed(self.src, f"sent one of more than {limits.messages} messages")
        if switch.traffic + nbytes > limits.traffic:
            raise IllFormed(self.src, f"sent one of more than {limits.traffic} bytes")
        self.seq, self.left, self.flags = seq, nbytes, flags
        self.row = len(switch.log)
        place = (self.group, self.lane, seq, switch.event(), -1, switch.round)
        switch.log.append([self.src, self.dst, 0, NAMES[dtype], shape, operation, call, *place])
        self.owed += flags & ACK

    def _count(self, n: int) -> None:
        self.switch.traffic += n
        self.switch.bytes_between[self.src][self.dst] += n
        self.switch.log[self.row][2] += n

    def _forward(self, data: memoryview) -> None:
        """Give the receiver what it takes now; keep the rest. One that is gone takes everything."""
        if not self.sinks:
            return
        if self.switch.hold:
            self.held.append(bytes(data))
            self.switch.held += len(data)
            if self.switch.held > MOST_HELD:
                raise IllFormed(self.src, f"sent one of more than {MOST_HELD} bytes at once")
            return
        if self.waiting:
            self.waiting = memoryview(bytes(self.waiting) + bytes(data))
            return
        try:
            n = self.sink.send(data)
        except BlockingIOError:
            n = 0
        except OSError:
            return self._receiver_left()
        if n < len(data):
            self.waiting = memoryview(bytes(data[n:]))

    def _finish(self) -> None:
        """The whole message has come; it has passed when the receiver's socket has taken it."""
        if self.waiting or not self.unfinished:
            return
        self.unfinished = False
        self.switch.log[self.row][-2] = self.switch.event()
        self.head.clear()
        if not self.sinks and self.owed:
            self._sender_left()  # it waits for an acknowledgement that cannot come

    def deliver(self) -> None:
        """What was held goes to the receiver now."""
        self.waiting, self.held = memoryview(b"".join(self.held)), []
        self.switch.held -= len(self.waiting)
        self._watch()

    def from_sink(self, events: int) -> None:
        """The receiver takes more, acknowledges, or is gone."""
        if events & selectors.EVENT_WRITE and self.waiting:
            try:
                self.waiting = self.waiting[self.sink.send(self.waiting) :]
                self._finish()
                if not self.waiting and not self.open:
                    self._sender_left()
            except BlockingIOError:
                pass
            except OSError:
                self._receiver_left()
        if events & selectors.EVENT_READ and self.sinks:
            try:
                got = self.sink.recv(64)
            except BlockingIOError:
                got = None
            except OSError:
                got = b""
            if got == b"":
                self._receiver_left()
            elif got is not None:
                if got.strip(b"\1") or len(got) > self.owed:
                    raise IllFormed(self.dst, "acknowledged what it was not sent")
                self.owed -= len(got)
                try:
                    self.source.send(got)
                except OSError:
                    pass  # the sender is gone, or does not read: its loss
        self._watch()

    def _sender_left(self) -> None:
        """Nothing more comes: the receiver may read what waits for it, then meets the end."""
        self.open = False
        if not self.waiting and not self.held and self.sinks:
            try:
                self.sink.shutdown(socket.SHUT_WR)
            except OSError:
                pass
        try:
            self.source.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def _receiver_left(self) -> None:
        self.sinks, self.waiting, self.held = False, memoryview(b""), []
        self._finish()
        if self.owed:
            self._sender_left()

    def close(self) -> None:
        for sock, events in self._watched.items():
            if events:
                self.switch.selector.unregister(sock)
        self._watched.clear()
        self.source.close()
        self.sink.close()
