"""The client of the quorum service: what a replica's ranks call, and what its supervisor calls."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Any

from .connection import Address, Connection, parse
from .errors import TROUBLE, BadCall, Unanswered
from .heartbeat import Beat
from .membership import Quorum, Registration


class QuorumClient:
    """Calls to the service at `address` ("host:port" or a pair). Nothing is sent before the first call.

    token: the service's. timeout: seconds that `join` and `register` wait unless they say otherwise.
    code: a fingerprint of the training code, for instance a hash of the configuration; replicas that live at the same
    time have to bring the same one (WrongVersion). Any thread may call; each waiting call has its own connection.
    Raises `Unanswered`, `WrongToken`, `WrongVersion`, `OldIncarnation`, `BadCall`, `NoQuorum`; see `errors.py`.
    """

    def __init__(self, address: str | Address, token: str, *, timeout: float = 60.0, code: str = ""):
        self.address, self.token, self.timeout, self.code = parse(address), token, timeout, code
        self._idle: list[Connection] = []
        self._lock = threading.Lock()
        self._owner = os.getpid()

    # -- what a replica calls ------------------------------------------------------------------------------------

    def register(
        self, replica: int, rank: int, ranks: int, data: dict[str, Any] | None = None, *,
        incarnation: int | None = None, timeout: float | None = None,
    ) -> Registration:  # fmt: skip
        """Check in as one rank of a replica; returns when all `ranks` of this incarnation have, with what each brought.

        Without a supervisor's `begin` the first to check in opens the incarnation. incarnation: refuse any other.
        OldIncarnation if the incarnation ends meanwhile, NoQuorum if the others do not come in time.
        """
        wait = self.timeout if timeout is None else timeout
        found = self._call(
            "register", wait, replica=replica, rank=rank, ranks=ranks, data=data or {}, incarnation=incarnation,
            code=self.code,
        )  # fmt: skip
        return Registration(replica, found["incarnation"], tuple(found["peers"]))

    def join(
        self, replica: int, incarnation: int, step: int, *, lineage: int | None = None, failed: bool = False,
        shrink_only: bool = False, data: dict[str, Any] | None = None, timeout: float | None = None,
    ) -> Quorum:  # fmt: skip
        """Ask with whom to train `step`; returns when the quorum is formed. Called by the leader of the replica.

        step, lineage: the version of this replica's state (see `membership.py`): the step it is about to train, and
        the id of the quorum under which its last update was committed, kept with the state and in its checkpoints, 0
        as built. None: the service works it out from what it handed out, right unless a state came from elsewhere.
        failed: the last exchange failed; the new quorum has a new id whoever is in it.
        shrink_only: no replica may be added in this round. data: plain data that the other members get to see.

        Called again when it has returned, it asks for the next quorum, whose other members must ask too; it has the
        same id only if the same lives come back one step further, having committed under it, and nobody says `failed`.
        Called again while the first call still waits (from another thread, or after its time-out), the second question
        takes the place of the first, and the first raises NoQuorum.
        """
        wait = self.timeout if timeout is None else timeout
        found = self._call(
            "join", wait, replica=replica, incarnation=incarnation, step=step, lineage=lineage, failed=failed,
            shrink_only=shrink_only, data=data or {}, code=self.code,
        )  # fmt: skip
        return Quorum.from_json(found)

    def beat(self, replica: int, incarnation: int, *, rank: int = 0, every: float = 0.5) -> Beat:
        """Start a thread that says every `every` seconds that this rank lives; `.stop()` ends it.

        If its connection closes, the replica counts as lost a moment later. Any rank may beat; all that do must live.
        """
        return Beat(self.address, self.token, replica, incarnation, rank, every)

    def confirm(self, replica: int, incarnation: int, quorum: int) -> bool:
        """Whether `quorum` is the latest and this replica a living member: ask before a commit that nobody shares."""
        return self._call("confirm", replica=replica, incarnation=incarnation, quorum=quorum)["valid"]

    def leave(self, replica: int, incarnation: int) -> None:
        """This replica has finished: nobody waits for it any more."""
        self._call("leave", replica=replica, incarnation=incarnation)

    def standby(self, replica: int, *, timeout: float | None = None) -> dict[str, Any]:
        """Wait as a warm spare with this number; returns the data that `promote` brings. NoQuorum after `timeout`."""
        return self._call("standby", self.timeout if timeout is None else timeout, replica=replica)["data"]

    # -- what a supervisor calls ---------------------------------------------------------------------------------

    def begin(self, replica: int) -> int:
        """Open a new incarnation and return its number; the old one is dead at once. End its processes first."""
        return self._call("begin", replica=replica)["incarnation"]

    def dead(self, replica: int, incarnation: int | None = None) -> None:
        """This incarnation (None: the present one) is dead for good; an older one's death changes nothing."""
        self._call("dead", replica=replica, incarnation=incarnation)

    def promote(self, replica: int, data: dict[str, Any] | None = None) -> None:
        """Let the spare with this number take part; `data` says as what. It is kept for one that is not waiting yet."""
        self._call("promote", replica=replica, data=data or {})

    def status(self) -> dict[str, Any]:
        """What the service knows: "replicas" (a dict each), "quorum" (or None), "waiting" (in words), counts."""
        return self._call("status")

    def close(self) -> None:
        """Close idle connections. Beats go on until they are stopped."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def __enter__(self) -> QuorumClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, name: str, wait: float = 0.0, /, **arguments: Any) -> dict[str, Any]:
        if not 0 <= wait < float("inf"):
            raise BadCall(f"{name}(timeout={wait}): needs a finite number of seconds, 0 or more")
        request = {"call": name, "timeout": wait, **arguments}
        connection, fresh = self._take()
        try:
            result = connection.call(request, wait)
        except Unanswered:
            connection.close()
            if fresh or name in ("join", "begin", "register", "promote"):  # it may have counted already: not twice
                raise
            connection = Connection(self.address, self.token)
            result = connection.call(request, wait)
        except TROUBLE:
            self._give(connection)
            raise
        except BaseException:  # an interrupt leaves an answer that nobody would take
            connection.close()
            raise
        self._give(connection)
        return result

    def _take(self) -> tuple[Connection, bool]:
        with self._lock:
            if self._owner != os.getpid():  # a fork: the parent goes on talking on the old ones
                self._owner, self._idle = os.getpid(), []
            while self._idle:
                connection = self._idle.pop()
                if not connection.ended:
                    return connection, False
                connection.close()
        return Connection(self.address, self.token), True

    def _give(self, connection: Connection) -> None:
        with self._lock:
            self._idle.append(connection)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()
