"""A fault-tolerant run as a story: its steps, who trained each, how long it took, and who was lost when.

Made from what the run writes down anyway (audit lines of the leaders, incidents of the supervisor), so it can be told
while the run goes on, and again when it is over.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise

from labkit.resilience.audit.records import Commit, Line
from labkit.resilience.supervising.incidents import Incident

STILL = 2.0  # a step that took so many usual ones is a standstill
TRAINS, ZEROS, AWAY = "trains", "gives zeros", "is away"


@dataclass(frozen=True)
class Told:
    """One committed step. at: when, in seconds since the run began. seconds: since the step before, None for the first.

    trained: replicas whose gradient is in it. zeros: those that took part with a gradient of zeros. samples: in it.
    """

    step: int
    at: float
    seconds: float | None
    quorum: int
    trained: tuple[int, ...]
    zeros: tuple[int, ...]
    samples: int
    loss: float | None

    @property
    def rate(self) -> float | None:
        """Samples a second."""
        return None if not self.seconds else self.samples / self.seconds

    def role(self, replica: int) -> str:
        return TRAINS if replica in self.trained else ZEROS if replica in self.zeros else AWAY


Phase = tuple[str, Told, Told]  # what a replica did from one step to another


@dataclass(frozen=True)
class Mark:
    """Something that happened to a replica at a moment. kind: "lost" or "started again"."""

    at: float
    replica: int
    kind: str
    text: str


@dataclass
class Story:
    """now: seconds since the run began, at the moment of telling. over: nothing more will come.

    steps: those in the history of the state that lives, by number. lost: those of states that nobody has any more, by
    time: all who had them died.
    """

    replicas: int
    steps: list[Told] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    now: float = 0.0
    over: bool = False
    lost: list[Told] = field(default_factory=list)

    @property
    def usual(self) -> float | None:
        """Seconds of a usual step: the median."""
        found = [s.seconds for s in self.steps if s.seconds is not None]
        return statistics.median(found) if found else None

    def stills(self) -> list[tuple[float, float]]:
        """(begin, end) of the steps that took `STILL` usual ones or more; the last may still go on."""
        usual = self.usual
        if not usual:
            return []
        times = sorted(s.at for s in [*self.steps, *self.lost]) + ([] if self.over else [self.now])
        return [(a, b) for a, b in pairwise(times) if b - a >= STILL * usual]

    @property
    def standing(self) -> float:
        """Seconds lost to standstills: what those steps took beyond usual ones."""
        return sum(b - a - (self.usual or 0.0) for a, b in self.stills())

    @property
    def samples(self) -> int:
        return sum(s.samples for s in self.steps)

    def phases(self, replica: int) -> list[Phase]:
        """(role, first step, last step) of what this replica did, in order."""
        return _phases(self.steps, replica)

    def lost_phases(self, replica: int) -> list[Phase]:
        """The same of the steps that are lost."""
        return _phases(self.lost, replica)

    def memberships(self) -> list[tuple[int, int, tuple[int, ...], tuple[int, ...]]]:
        """(first step, last step, who trained, who gave zeros) of each stretch of steps with the same members."""
        found = []
        for (trained, zeros), group in groupby(self.steps, key=lambda s: (s.trained, s.zeros)):
            steps = list(group)
            found.append((steps[0].step, steps[-1].step, trained, zeros))
        return found


def tell(
    lines: Iterable[Line], incidents: Sequence[Incident], replicas: int, batch: int, zero: float, now: float,
    over: bool = False,
) -> Story:  # fmt: skip
    """The story so far. zero: the run's beginning on the monotonic clock; now: seconds since then.

    Where replicas came to different updates of one step, the one of the later quorum counts: it is the one that lives
    on, as soon as there is a next step. What a later quorum trains again was lost.
    """
    first: dict[tuple[int, int], Commit] = {}  # of each step and quorum, by whoever was the first to commit it
    for line in lines:
        if isinstance(line, Commit) and line.rank == 0:
            known = first.get((line.step, line.quorum))
            if known is None or line.at < known.at:
                first[line.step, line.quorum] = line
    kept, lost, reached = list[Commit](), list[Commit](), 0
    for _, group in groupby(sorted(first), key=lambda key: key[0]):
        *others, best = [first[key] for key in group]
        lost += others
        (kept if best.quorum >= reached else lost).append(best)
        reached = max(reached, best.quorum)
    steps = _told(kept, batch, zero)
    gone = _told(sorted(lost, key=lambda c: c.at), batch, zero)
    marks = []
    for i in incidents:
        if i.replica is None:
            continue
        how = {"died": "was lost", "hung": "stood still", "raised": "failed", "waited": "waited in vain"}[i.cause]
        marks.append(Mark(i.detected if i.struck is None else i.struck, i.replica, "lost", f"rank {i.rank} {how}"))
        if i.restarted is not None:
            marks.append(Mark(i.restarted, i.replica, "started again", f"replica {i.replica} was started again"))
    return Story(replicas, steps, sorted(marks, key=lambda m: m.at), now, over, gone)


def _told(commits: Sequence[Commit], batch: int, zero: float) -> list[Told]:
    told: list[Told] = []
    for c in commits:
        at = c.at - zero
        before = told[-1].at if told and told[-1].step == c.step - 1 else None
        seconds = None if before is None else max(at - before, 0.0)
        zeros = tuple(r for r in sorted(c.members) if r not in c.contributors)
        samples = batch * len(c.contributors)
        told.append(Told(c.step, at, seconds, c.quorum, tuple(c.contributors), zeros, samples, c.loss))
    return told


def _phases(steps: Sequence[Told], replica: int) -> list[Phase]:
    found = []
    for (role, _), group in groupby(enumerate(steps), key=lambda x: (x[1].role(replica), x[1].step - x[0])):
        mine = [s for _, s in group]
        found.append((role, mine[0], mine[-1]))
    return found
