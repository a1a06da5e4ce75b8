"""The thread that tells the service, again and again, that this process lives."""

from __future__ import annotations

import contextlib
import threading
import time

from .connection import Address, Connection
from .errors import TROUBLE, BadCall, Trouble, Unanswered

SOON = 0.02  # seconds before a lost connection is tried again


class Beat:
    """Beats every `every` seconds on a connection of its own. The first beat is answered when this returns.

    What the answers say is kept: `over` (this incarnation has ended: an OldIncarnation, or None), `quorum` (id of the
    service's latest quorum), `member` (whether this replica is in it). Sleeps of this process are noticed by `fresh`.
    """

    def __init__(self, address: Address, token: str, replica: int, incarnation: int, rank: int, every: float):
        if not 0 < every < float("inf"):
            raise BadCall(f"beat(every={every}): needs a finite number of seconds above 0")
        self._address, self._token, self._every = address, token, every
        self._call = {"call": "beat", "replica": replica, "incarnation": incarnation, "rank": rank}
        self.over: Trouble | None = None
        self.quorum, self.member, self.lease = 0, False, 0.0
        self.error: Trouble | None = None  # of the last try, None when it was answered
        self._acknowledged = float("-inf")
        self._connection: Connection | None = Connection(address, token)
        self._stop = threading.Event()
        try:
            self._once()
        except BaseException:
            self._drop()
            raise
        self._thread = threading.Thread(target=self._run, name="labkit-beat", daemon=True)
        self._thread.start()

    @property
    def fresh(self) -> bool:
        """Whether less than the service's time-out has passed since a beat was sent that it answered.

        The service counts from the arrival, which is later. So it still counts on who is fresh, whatever their clocks
        say; one that is not fresh must not commit alone.
        """
        return self.over is None and time.monotonic() - self._acknowledged < self.lease

    def _once(self) -> None:
        if self._connection is None:
            self._connection = Connection(self._address, self._token)
        sent = time.monotonic()
        found = self._connection.call(self._call)
        self._acknowledged, self.error = sent, None
        self.quorum, self.member, self.lease = found["quorum"], found["member"], found["heartbeat"]

    def _run(self) -> None:
        pause = self._every
        while not self._stop.wait(pause):
            try:
                self._once()
                pause = self._every
            except Unanswered as why:
                self.error, pause = why, SOON if self.error is None else min(self._every, 0.1)
                self._drop()
            except TROUBLE as why:
                self.over = self.error = why
                break
        if self.over is None and self._connection is not None:
            with contextlib.suppress(*TROUBLE):
                self._connection.call({**self._call, "call": "rest"})
        self._drop()

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def stop(self) -> None:
        """End the beats and say so, so that the closing connection is not taken for a death. May be called twice."""
        if not self._stop.is_set():
            self._stop.set()
            self._thread.join()

    def __enter__(self) -> Beat:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
