"""Every quorum that the service issues, as it issues it: for the audit, and for who draws a run that goes on."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from labkit.resilience.quorum import Member, Quorum
from labkit.resilience.quorum.connection import Connection, parse
from labkit.resilience.quorum.errors import TROUBLE

GLANCE = 0.2  # seconds between two looks at whether it is over


class QuorumWatch:
    """Listens in a thread until `stop`. rounds: (when, quorum), oldest first; when is on the monotonic clock.
    lives: (replica, incarnation) of all that ever were a member.

    tell: called with each of them, from that thread. The service may issue one id for many steps in a row.
    """

    def __init__(self, address: Any, token: str, tell: Callable[[Quorum], None] | None = None):
        self.rounds: list[tuple[float, Quorum]] = []
        self.lives: set[tuple[int, int]] = set()
        self._address, self._token, self._tell = parse(address), token, tell
        self._over = threading.Event()
        self._connect()
        self._thread = threading.Thread(target=self._run, name="labkit-quorum-watch", daemon=True)
        self._thread.start()

    def _connect(self) -> None:
        self._connection = Connection(self._address, self._token)
        self._take(self._connection.call({"call": "watch"}))

    def _take(self, found: dict[str, Any]) -> None:
        if found["quorum"] is None:
            return
        quorum = Quorum.from_json(found["quorum"])
        self.lives |= quorum.lives
        self.rounds.append((time.monotonic(), quorum))
        if self._tell is not None:
            self._tell(quorum)

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                found = self._connection.more(GLANCE)
                if found is not None:
                    self._take(found)
            except (*TROUBLE, OSError, ValueError):  # the service is gone; another one may take its place
                self._connection.close()
                self._over.wait(GLANCE)
                with contextlib.suppress(*TROUBLE):
                    self._connect()

    def catch_up(self) -> None:
        """Listen no more; what the service has sent so far is in `rounds` afterwards. May be called twice."""
        self._over.set()
        self._thread.join()
        with contextlib.suppress(*TROUBLE, OSError, ValueError):  # it may be closed
            while (found := self._connection.more(0)) is not None:
                self._take(found)

    def stop(self) -> None:
        """End the thread and the connection. May be called twice."""
        self.catch_up()
        self._connection.close()

    @property
    def last(self) -> int:
        """The highest id so far, 0 without any."""
        return max((q.id for _, q in self.rounds), default=0)

    def issued(self) -> dict[tuple[int, int], Quorum]:
        """(id, step) -> quorum: what the audit compares commits with."""
        return {(q.id, q.step): q for _, q in self.rounds}


def noted(
    quorums: Mapping[int, Sequence[tuple[int, int, int]]], steps: Iterable[tuple[int, int]]
) -> dict[tuple[int, int], Quorum]:
    """The same from the notes of the replicas' leaders, for what was issued while nobody listened.

    quorums: id -> (replica, incarnation, step when it joined) of the members. steps: (id, step) that were committed.
    An id that stays is that of a quorum in which nobody has been behind since.
    """
    found = {}
    for number, step in steps:
        members = quorums.get(number, ())
        if members:
            first = max(s for _, _, s in members)
            made = tuple(Member(r, i, s if step == first else step) for r, i, s in members)
            found[number, step] = Quorum(number, step, 0, made)
    return found
