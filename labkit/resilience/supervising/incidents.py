"""What happened to the replicas of a run, and how long the others stood still for it."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from labkit.resilience.audit.records import Commit, Line


@dataclass
class Incident:
    """One failure of one replica, in seconds since the run began; None for what did not happen or is not known.

    unit: which processes: unit u has world ranks u * ranks to (u + 1) * ranks - 1. replica: the place that they held,
    None for a spare without one. cause: "died", "raised" (an error of its own), "waited" (in vain, for another rank
    of its unit) or "hung". rank: the world rank that showed it. struck: when
    a fault of the run hit the unit. detected: when its supervisor knew. ended: no process of it was left. restarted:
    new processes run, or a spare took over (by). rejoined: the replica's next life was given the state. committed: its
    first commit.
    """

    unit: int
    replica: int | None
    incarnation: int
    cause: str
    rank: int
    why: str
    detected: float
    struck: float | None = None
    ended: float | None = None
    restarted: float | None = None
    rejoined: float | None = None
    committed: float | None = None
    by: int | None = None
    next: int | None = None

    @property
    def detection(self) -> float | None:
        """Seconds from the fault to its detection."""
        return None if self.struck is None else self.detected - self.struck

    def __str__(self) -> str:
        parts = [f"replica {self.replica} (unit {self.unit}) {self.cause} on rank {self.rank}"]
        for name in ("struck", "detected", "ended", "restarted", "rejoined", "committed"):
            at = getattr(self, name)
            parts.append(f"{name} {'-' if at is None else f'{at:.3f} s'}")
        return ", ".join(parts)


@dataclass(frozen=True)
class Stall:
    """How long a replica that went on stood still around an incident.

    gap: seconds between its last commit before the incident was over and the next one. step: median of its other gaps.
    """

    incident: int
    replica: int
    what: str  # "kill" or "rejoin"
    gap: float
    step: float

    @property
    def extra(self) -> float:
        """Seconds beyond an ordinary step."""
        return self.gap - self.step


def follow_up(incidents: Sequence[Incident], lines: Sequence[Line], zero: float) -> None:
    """Fill in `rejoined` and `committed` from the audit log. zero: the run's beginning on the monotonic clock."""
    for incident in incidents:
        if incident.next is None:
            continue
        mine = [x for x in lines if (x.replica, x.incarnation) == (incident.replica, incident.next)]
        took = [x.at for x in mine if x.kind == "fetch"]
        made = [x.at for x in mine if isinstance(x, Commit)]
        incident.rejoined = max(took) - zero if took else None
        incident.committed = min(made) - zero if made else None


def stalls(incidents: Sequence[Incident], lines: Sequence[Line], zero: float) -> list[Stall]:
    """For each incident and each replica that went on: the gap between commits in which it fell, and its return's."""
    commits: dict[tuple[int, int], list[float]] = defaultdict(list)
    for line in lines:
        if isinstance(line, Commit) and line.rank == 0:
            commits[line.replica, line.incarnation].append(line.at - zero)
    found = []
    for n, incident in enumerate(incidents):
        moments = {"kill": incident.struck if incident.struck is not None else incident.detected}
        if incident.committed is not None:
            moments["rejoin"] = incident.committed
        for (replica, _), times in commits.items():
            gaps = list(pairwise(times))
            if replica == incident.replica or len(gaps) < 3:
                continue
            usual = statistics.median(b - a for a, b in gaps)
            for what, at in moments.items():
                # The newcomer's first commit is everybody's: it ends the gap.
                around = [b - a for a, b in gaps if a <= at <= b + (usual / 2 if what == "rejoin" else 0)]
                if around:
                    found.append(Stall(n, replica, what, max(around), usual))
    return found
