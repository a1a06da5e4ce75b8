"""One host's heartbeats in one message: 100 messages a second at the service in place of 100,000.

The members of a host write the time of their heartbeats into memory that they share with the aggregator, in files
that only their user can open. They are on one host, so it is one clock. The aggregator tells the service, for each
replica that has members here, for how long its quietest member has been silent (a duration: clocks of hosts need not
agree), and at once when a member is gone. In the other direction it hears of every quorum and passes it on. If the
aggregator ends, that is no evidence about its members: they become lost when the service's `heartbeat` is over, unless
another aggregator speaks for them.
"""

from __future__ import annotations

import contextlib
import select
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .connection import Address, Connection, parse
from .errors import BadCall, Unanswered
from .greeting import raise_refusal
from .member_beats import Part
from .membership import Quorum

RETRY = 0.05  # seconds before a lost service is tried again


class Aggregator:
    """host: its name. every: seconds between two messages. on_quorum: called with each quorum as it is formed.

    folder: where members find their memory (see `MemberBeat`). Call `step` again and again, from one thread.
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
        self.folder = tempfile.mkdtemp(prefix="labkit-")  # mode 0700
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
                self._forget(replica)
                self._parts[replica] = Part(self.folder, replica, reply["ok"]["incarnation"], first, count)
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
        if not 0 <= rank - part.first < part.count:
            raise BadCall(f"rank {rank} of replica {replica} is not on host {self.host}")
        part.gone, self._due = True, 0.0

    def step(self, timeout: float, also: Sequence[Any] = ()) -> None:
        """Wait at most `timeout` seconds for a quorum, or for news in `also`; send what is due."""
        now = time.monotonic()
        if self._connection is None and now >= self._retry:
            with contextlib.suppress(Unanswered):
                self._connect()
            self._retry = time.monotonic() + RETRY
        if now >= self._due and self._connection is not None and self._parts:
            self._tell(now)
        waits: list[Any] = [*([self._connection] if self._connection else []), *also]
        if self._connection is None:
            timeout = min(timeout, self._retry - now)
        elif self._parts:
            timeout = min(timeout, self._due - now)
        ready, _, _ = select.select(waits, [], [], max(0.0, timeout))
        if self._connection in ready:
            self._take()

    def _connect(self) -> None:
        connection = Connection(self._address, self._token)
        self._deliver(connection.call({"call": "watch"}))
        self._connection = connection

    def _tell(self, now: float) -> None:
        parts = [[p.replica, p.incarnation, max(0.0, now - p.quietest()), p.gone] for p in self._parts.values()]
        self._due = now + self.every
        self.sent += 1
        assert self._connection is not None
        try:
            self._connection.send({"call": "host", "host": self.host, "parts": parts})
        except Unanswered:
            self._lose()

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
                    self._forget(replica)

    def _deliver(self, found: dict[str, Any]) -> None:
        if self._on_quorum is not None and found.get("quorum"):
            self._on_quorum(Quorum.from_json(found["quorum"]))

    def _lose(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def close(self) -> None:
        """Close what is open, and remove the members' memory."""
        self._lose()
        for replica in list(self._parts):
            self._forget(replica)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _forget(self, replica: int) -> None:
        part = self._parts.pop(replica, None)
        if part is not None:
            part.close()
