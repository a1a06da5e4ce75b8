"""Who watches the replicas from outside: ends what is left of one that broke, and starts it anew.

A *unit* is the processes of one replica: world ranks u * ranks to (u + 1) * ranks - 1. A replica is a place in the run,
held by one unit at a time; units without a place are spares. When a rank of a unit dies, raises or shows no sign of
progress for the hang deadline, the whole unit is ended, because what the others of it hold is of no use alone. Then a
spare takes the place, or the unit is started again. Deaths are heard of within milliseconds, from the job's events.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from labkit.wire.errors import RefusedError
from labkit.wire.recording import record as rec

from .incidents import Incident
from .units import Calls, ReplicaProcesses

if TYPE_CHECKING:
    from labkit.world.job import Job

LOOK = 0.05  # seconds between two looks at whether all ranks move
SAME = 3  # lives of a unit that end with one and the same error: it would come again


class Supervisor:
    """Of one job with `replicas` places, `ranks` processes each, and spares in the ranks that are left.

    hang: seconds a rank may go without beginning anything. start: the same while it is being born, builds its model and
    warms up: until joined(replica, incarnation) is true, or its function runs where this is not told. restarts: how
    often a unit is started again before it is given up (sooner if it raises the same error each time). incarnations:
    those that the replicas begin with. From the supervisor's thread are called: tell with each incident, and mind with
    `lives()` again and again, which may look after the service. Use as a context manager, or call `start` and `stop`.
    """

    def __init__(
        self, job: Job, service: Calls | None, replicas: int, ranks: int = 1, *, hang: float = 60.0,
        start: float = 120.0, restarts: int = 20, incarnations: dict[int, int] | None = None,
        tell: Callable[[Incident], None] | None = None, mind: Callable[[dict[int, int]], Any] | None = None,
        joined: Callable[[int, int], bool] | None = None,
    ):  # fmt: skip
        size = job.spec.world_size
        if replicas < 1 or ranks < 1 or size % ranks or size < replicas * ranks:
            raise RefusedError(f"a world of {size} ranks does not hold {replicas} replicas of {ranks} ranks")
        if job.spec.on_failure != "continue":
            raise RefusedError("a supervised job needs on_failure='continue': its ranks go on when one of them fails")
        self.job, self.service, self.ranks = job, service, ranks
        self.hang, self.start_limit, self.restarts, self.tell, self.mind = hang, start, restarts, tell, mind
        self.joined = joined
        self.units = [ReplicaProcesses(u, range(u * ranks, (u + 1) * ranks), u if u < replicas else None,
                           (incarnations or {}).get(u, 0)) for u in range(size // ranks)]  # fmt: skip
        for unit in self.units:
            unit.alive = set(unit.ranks)
        self.incidents: list[Incident] = []
        self.errors: list[str] = []
        self.zero = time.monotonic() - (time.perf_counter() - job._start)  # when the job's clock began
        self._seen = 0
        self._marks: dict[int, tuple[bytes, float]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="labkit-supervisor", daemon=True)

    # -- what a caller does --------------------------------------------------------------------------------------

    def start(self) -> Supervisor:
        self._hold(True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Watch no more; returns when the thread is gone. The run ends when its ranks are through."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self._hold(False)

    def _hold(self, on: bool) -> None:
        """While this supervisor can start ranks again, the run may go on without any: all may be lost at once."""
        with contextlib.suppress(RefusedError):  # it is over
            self.job.hold(on)
        self._held = on

    def __enter__(self) -> Supervisor:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def lives(self) -> dict[int, int]:
        """Replica -> incarnation of the unit that holds the place now."""
        return {u.replica: u.incarnation for u in self.units if u.replica is not None}

    def survivors(self) -> list[tuple[int, int]]:
        """(replica, incarnation) of the places whose ranks have all handed in a result."""
        done = set(self.job.finished)
        return [(u.replica, u.incarnation) for u in self.units if u.replica is not None and done >= set(u.ranks)]

    # -- the loop ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._watch()
        except Exception as why:  # unwatched, the run could wait for ever
            self.errors.append(f"the supervisor failed: {type(why).__name__}: {why}")
            self.job.stop()

    def _watch(self) -> None:
        watch = self.job.watch()
        looked = 0.0
        while not self._stop.is_set() and not self.job.over:
            news = self.job.await_events(self._seen, LOOK)
            self._seen += len(news)
            for at, rank, text in news:
                if rank >= 0:
                    self._hear(at, rank, text)
            for unit in self.units:
                if unit.state == "ending" and not unit.alive:
                    self._renew(unit)
            if self._held and (self.survivors() or all(u.state == "down" for u in self.units)):
                self._hold(False)
            if (now := time.monotonic()) - looked >= LOOK:
                looked = now
                self._mind()
                self._look(watch.marks(), now)

    def _hear(self, at: float, rank: int, text: str) -> None:
        unit = self.units[rank // self.ranks]
        if text.startswith(("fault: Kill", "fault: Hang", "fault: Raise")) and unit.state == "up":
            unit.struck = at if unit.struck is None else unit.struck
        elif text.startswith("failed: "):
            kind = self.job.how_it_failed(rank)
            self._broken(
                unit, {"died": "died", "wire": "waited", "lost": "waited"}.get(kind, "raised"), rank, text[8:], at
            )
        elif text == "ended":
            unit.alive.discard(rank)
            if rank not in self.job.finished:
                self._broken(unit, "died", rank, "it ended without a result", at)
        elif text == "restarted":
            unit.unborn.discard(rank)
            self._marks.pop(rank, None)
            if unit.state == "starting" and not unit.unborn:
                unit.state = "up"
                if unit.incident is not None and unit.incident.restarted is None:
                    unit.incident.restarted = at

    def _look(self, marks: Sequence[tuple[int, bytes]], now: float) -> None:
        """End the units of ranks that have not moved for too long."""
        done = set(self.job.finished)
        for rank, (state, mark) in enumerate(marks):
            unit = self.units[rank // self.ranks]
            known = self._marks.get(rank)
            waits = unit.replica is None or unit.state != "up" or rank in done  # nobody counts on its progress
            if known is None or known[0] != mark or waits:
                self._marks[rank] = (mark, now)
                continue
            begun = self.joined is None or self.joined(unit.replica or 0, unit.incarnation)
            still, limit = now - known[1], self.hang if state == rec.RUNNING and begun else self.start_limit
            if still > limit:
                why = f"it has begun nothing for {still:.3g} s, and {limit:g} s are allowed"
                self._broken(unit, "hung", rank, why, now - self.zero)

    # -- ending and beginning ------------------------------------------------------------------------------------

    def _broken(self, unit: ReplicaProcesses, cause: str, rank: int, why: str, at: float) -> None:
        """A rank of this unit is of no more use: end them all."""
        if unit.state not in ("up", "starting"):
            return
        unit.state = "ending"
        known = unit.incident is not None and (unit.incident.cause, unit.incident.why) == (cause, why)
        unit.same = 0 if cause != "raised" else unit.same + 1 if known else 1
        unit.incident = Incident(unit.number, unit.replica, unit.incarnation, cause, rank, why, at, unit.struck)
        self.incidents.append(unit.incident)
        unit.struck = None
        self._call(lambda s: s.dead(unit.replica, unit.incarnation or None) if unit.replica is not None else None)
        for other in unit.alive:
            with contextlib.suppress(RefusedError):  # the run is over
                self.job.kill(other)
        if self.tell is not None:
            self.tell(unit.incident)

    def _renew(self, unit: ReplicaProcesses) -> None:
        """Nothing of the unit is left: let a spare take its place, and start it again unless the others are through."""
        incident = unit.incident
        assert incident is not None
        incident.ended = time.monotonic() - self.zero
        if self.survivors():
            unit.state = "down"
            return
        spare = next((u for u in self.units if u.replica is None and u.state == "up"), None)
        if unit.replica is not None and spare is not None:
            self._promote(spare, unit.replica, incident)
            unit.replica, unit.incarnation = None, 0
        if unit.restarts >= self.restarts or unit.same >= SAME:
            unit.state = "down"
            self.errors.append(f"unit {unit.number} was given up after {unit.restarts} restarts: {incident.why}")
            return
        unit.restarts += 1
        unit.state, unit.alive, unit.unborn = "starting", set(unit.ranks), set(unit.ranks)
        if unit.replica is not None:
            incident.next = unit.incarnation = self._begin(unit.replica)
        with contextlib.suppress(RefusedError):
            for rank in unit.ranks:
                self.job.restart(rank)

    def _promote(self, spare: ReplicaProcesses, replica: int, incident: Incident) -> None:
        spare.replica, spare.incarnation = replica, self._begin(replica)
        incident.next, incident.by = spare.incarnation, spare.number
        place = {"replica": replica, "incarnation": spare.incarnation}
        for rank in spare.ranks:
            self._call(partial(_promote, rank, place))
        incident.restarted = time.monotonic() - self.zero

    def _begin(self, replica: int) -> int:
        return self._call(lambda s: s.begin(replica)) or 0

    def _mind(self) -> None:
        if self.mind is not None:
            self.mind(self.lives())

    def _call(self, say: Callable[[Calls], Any]) -> Any:
        """Tell the service. One that does not answer even after it was minded is noted, and will show elsewhere."""
        for last in (False, True):
            try:
                return say(self.service) if self.service is not None else None
            except Exception as why:
                if last:
                    self.errors.append(f"{type(why).__name__}: {why}")
                else:
                    self._mind()
        return None


def _promote(rank: int, place: dict[str, Any], service: Calls) -> None:
    service.promote(rank, place)
