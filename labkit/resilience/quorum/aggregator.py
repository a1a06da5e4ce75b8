"""One host's heartbeats in one message: 100 messages a second at the service in place of 100,000.

The members of a host send small datagrams to a Unix socket that only their user can reach. The aggregator keeps when it
heard each of them, and tells the service, for each replica that has members here, how long its quietest member has been
silent (a duration, so clocks need not agree), and at once when one is gone. In the other direction it hears of every
quorum and passes it on. If the aggregator ends, that is no evidence about its members: they become lost when the
service's `heartbeat` is over, unless another aggregator speaks for them.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import socket
import struct
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from .connection import Address, Connection, parse
from .errors import BadCall, Unanswered
from .greeting import raise_refusal
from .membership import Quorum

BEAT = struct.Struct("<IIQ")  # replica, incarnation, rank
RETRY = 0.05  # seconds before a lost service is tried again


@dataclass
class Part:
    """Members of one replica on this host: ranks `first` to `first + len(heard) - 1`, and when each was heard."""

    replica: int
    incarnation: int
    first: int
    heard: list[float]
    gone: bool = False


class MemberBeat:
    """What a member uses: `beat()` sends one datagram to the aggregator at `path`."""

    def __init__(self, path: str):
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.connect(path)

    def beat(self, replica: int, incarnation: int, rank: int) -> None:
        """Say that this rank lives."""
        self._socket.send(BEAT.pack(replica, incarnation, rank))

    def close(self) -> None:
        self._socket.close()


class Aggregator:
    """host: its name. every: seconds between two messages. on_quorum: called with each quorum as it is formed.

    path: of the socket for members. Call `step` again and again, from one thread.
    """

    def __init__(
        self, address: str | Address, token: str, host: str, *, every: float = 1.0,
        on_quorum: Callable[[Quorum], None] | None = None,
    ):  # fmt: skip
        if not 0 < every < float("inf"):
            raise BadCall(f"Aggregator(every={every}): needs a finite number of seconds above 0")
        self.host, self.every, self.sent = host, every, 0
        self._address, self._token, self._on_quorum = parse(address), token, on_quorum
        self._parts: dict[int, Part] = {}
        self._due = self._retry = 0.0
        self._directory = tempfile.mkdtemp(prefix="labkit-")  # mode 0700
        self.path = os.path.join(self._directory, "beats")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.path)
        self._socket.setblocking(False)
        self._connection: Connection | None = None
        self._connect()

    def check_in(self, blocks: Iterable[tuple[int, int, int, int]], timeout: float = 60.0) -> None:
        """Register (replica, first rank, count, ranks of the replica) each; returns when all of those are complete.

        From then on their members have to beat.
        """
        asked = []
        try:
            for replica, first, count, ranks in blocks:
                connection = Connection(self._address, self._token)
                asked.append((connection, replica, first, count))
                request = {"replica": replica, "rank": first, "count": count, "ranks": ranks, "timeout": timeout}
                connection.send({"call": "register", **request})
            for connection, replica, first, count in asked:
                reply = connection.receive(timeout + 5.0)
                raise_refusal(reply)
                self._parts[replica] = Part(replica, reply["ok"]["incarnation"], first, [time.monotonic()] * count)
        finally:
            for connection, *_ in asked:
                connection.close()
        self._due = 0.0

    def incarnation(self, replica: int) -> int:
        """Of the members of `replica` on this host."""
        return self._parts[replica].incarnation

    def gone(self, replica: int, rank: int) -> None:
        """A member has died: the host saw its process end. The service is told with the next `step`."""
        part = self._parts[replica]
        if not 0 <= rank - part.first < len(part.heard):
            raise BadCall(f"rank {rank} of replica {replica} is not on host {self.host}")
        part.gone, self._due = True, 0.0

    def step(self, timeout: float, also: Sequence[Any] = ()) -> None:
        """Wait at most `timeout` seconds for beats, a quorum, or news in `also`; take and send what is due."""
        now = time.monotonic()
        if self._connection is None and now >= self._retry:
            self._retry = now + RETRY
            with contextlib.suppress(Unanswered):
                self._connect()
        if now >= self._due and self._connection is not None and self._parts:
            self._tell(now)
        waits: list[Any] = [self._socket, *([self._connection] if self._connection else []), *also]
        ready, _, _ = select.select(waits, [], [], max(0.0, min(timeout, self._due - now if self._parts else timeout)))
        if self._socket in ready:
            self._hear()
        if self._connection in ready:
            self._take()

    def _connect(self) -> None:
        connection = Connection(self._address, self._token)
        self._deliver(connection.call({"call": "watch"}))
        self._connection = connection

    def _tell(self, now: float) -> None:
        parts = [[p.replica, p.incarnation, max(0.0, now - min(p.heard)), p.gone] for p in self._parts.values()]
        self._due = now + self.every
        self.sent += 1
        assert self._connection is not None
        try:
            self._connection.send({"call": "host", "host": self.host, "parts": parts})
        except Unanswered:
            self._lose()

    def _hear(self) -> None:
        now = time.monotonic()
        while True:
            try:
                data = self._socket.recv(64)
            except BlockingIOError:
                return
            if len(data) == BEAT.size:
                replica, incarnation, rank = BEAT.unpack(data)
                part = self._parts.get(replica)
                if part is not None and part.incarnation == incarnation and 0 <= rank - part.first < len(part.heard):
                    part.heard[rank - part.first] = now

    def _take(self) -> None:
        assert self._connection is not None
        try:
            messages = self._connection.arrived()
        except Unanswered:
            return self._lose()
        for message in messages:
            raise_refusal(message)
            found = message["ok"]
            self._deliver(found)
            for replica, incarnation in found.get("over", ()):
                part = self._parts.get(replica)
                if part is not None and part.incarnation == incarnation:
                    del self._parts[replica]

    def _deliver(self, found: dict[str, Any]) -> None:
        if self._on_quorum is not None and found.get("quorum"):
            self._on_quorum(Quorum.from_json(found["quorum"]))

    def _lose(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def close(self) -> None:
        """Close what is open and remove the socket for members."""
        self._lose()
        self._socket.close()
        shutil.rmtree(self._directory, ignore_errors=True)
