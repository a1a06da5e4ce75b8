"""Audit lines of a run that never was: three replicas, one of which is lost and comes back."""

from __future__ import annotations

from labkit.resilience.audit.records import Commit, Line
from labkit.resilience.supervising.incidents import Incident

ZERO = 100.0


def commit(step: int, at: float, trained: tuple[int, ...], *, zeros: tuple[int, ...] = (), quorum: int = 1,
           replica: int = 0, rank: int = 0, loss: float = 3.0) -> Commit:  # fmt: skip
    return Commit(step, replica, rank, 1, quorum, trained, (0, 0, 0), "a", "b", loss, (*trained, *zeros), at=ZERO + at)


def three_replicas() -> list[Line]:
    """Steps of one second; replica 1 is lost in step 3, which takes 4 s, and comes back in step 5."""
    everyone, two = (0, 1, 2), (0, 2)
    return [
        *(commit(n, 1.0 + n, everyone, loss=5.0 - n) for n in range(3)),
        commit(3, 7.0, two, quorum=2, loss=2.0), commit(4, 8.0, two, quorum=2),
        commit(5, 9.0, two, zeros=(1,), quorum=3), commit(6, 10.0, everyone, quorum=3, loss=1.5),
    ]  # fmt: skip


LOST = Incident(1, 1, 1, "died", 3, "killed", detected=3.5, struck=3.4, restarted=4.0)
