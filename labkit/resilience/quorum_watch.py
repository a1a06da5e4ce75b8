"""Every quorum that the service issues, as it issues it: for the audit, and for who draws a run that goes on."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

from .quorum import Quorum
from .quorum.errors import TROUBLE

GLANCE = 0.2  # seconds between two looks at whether it is over


class QuorumWatch:
    """Listens in a thread until `stop`. rounds: (when, quorum), oldest first; when is on the monotonic clock.

    tell: called with each of them, from that thread. The service may issue one id for many steps in a row.
    """

    def __init__(self, address: Any, token: str, tell: Callable[[Quorum], None] | None = None):
        from .quorum.connection import Connection, parse

        self.rounds: list[tuple[float, Quorum]] = []
        self._tell = tell
        self._over = threading.Event()
        self._connection = Connection(parse(address), token)
        self._take(self._connection.call({"call": "watch"}))
        self._thread = threading.Thread(target=self._run, name="labkit-quorum-watch", daemon=True)
        self._thread.start()

    def _take(self, found: dict[str, Any]) -> None:
        if found["quorum"] is None:
            return
        quorum = Quorum.from_json(found["quorum"])
        self.rounds.append((time.monotonic(), quorum))
        if self._tell is not None:
            self._tell(quorum)

    def _run(self) -> None:
        with contextlib.suppress(*TROUBLE):  # the service is gone: nothing more will come
            while not self._over.is_set():
                found = self._connection.more(GLANCE)
                if found is not None:
                    self._take(found)

    def catch_up(self) -> None:
        """Listen no more; what the service has sent so far is in `rounds` afterwards. May be called twice."""
        self._over.set()
        self._thread.join()
        with contextlib.suppress(*TROUBLE):
            while (found := self._connection.more(0)) is not None:
                self._take(found)

    def stop(self) -> None:
        """End the thread and the connection. May be called twice."""
        self.catch_up()
        self._connection.close()

    def issued(self) -> dict[tuple[int, int], Quorum]:
        """(id, step) -> quorum: what the audit compares commits with."""
        return {(q.id, q.step): q for _, q in self.rounds}
