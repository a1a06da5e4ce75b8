"""A fleet that fails, many samples at once: restart from a checkpoint, or FT-HSDP. Times in one unit, any unit.

One replica is synchronous training: every failure stops it, and it goes back to its last checkpoint. Several are
FT-HSDP (arXiv 2602.00277): a failure stalls all, then the others go on; only when none is left does the fleet go back.
The closed forms of `recovery` and `checkpoint_tax` are special cases, so the best interval of one replica is Young's
and Daly's; `replica_runs` and `checkpoint_runs` do parts of the same, one run at a time, in plain Python.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from labkit.cost.estimates import Estimate
from labkit.cost.refuse import not_negative, one_of, positive, whole

__all__ = ["FleetRuns", "simulate_fleet"]

SPACINGS = ("random", "clock")
Strikes = Sequence[tuple[float, int]]  # (time, replica)


@dataclass(frozen=True)
class FleetRuns:
    """effective: part of the full throughput that is kept. parts: of all replicas' time, mean; they sum to 1.

    parts: useful; repeated, trained but lost with the last checkpoint; writing; stalled, when nobody trains; missing,
    replicas that are away while others train. failures and losses (of all replicas at once): mean number in a sample.
    """

    effective: Estimate
    parts: dict[str, float]
    failures: float
    losses: float


def simulate_fleet(
    every: float,
    recovery: float,
    stall: float = 0.0,
    replicas: int = 1,
    rejoin: float = 0.0,
    *,
    interval: float | None = None,
    write: float = 0.0,
    spacing: str = "random",
    time: float | None = None,
    samples: int = 100,
    seed: int = 0,
    strikes: Sequence[Strikes] | None = None,
) -> FleetRuns:
    """`samples` runs of `time` (1,000 times `every` when None). All replicas are there at first.

    every: between two failures in the fleet. recovery: until the replica that failed is back; a failure in it begins
    it anew. stall, rejoin: all stand still for so long at a failure, and when a replica is back. interval: training
    between two checkpoints; None: nothing is ever lost. write: all stand still for a checkpoint. spacing: "random",
    at a constant rate; or "clock", at 0, every, 2 every ..., as the paper counts. The replica is drawn in both.
    strikes: the failures themselves, (time, replica) in rising order, in place of drawn ones: one list for a sample. So
    a run that was measured can be computed with its own failures.
    """
    positive(every=every)
    not_negative(recovery=recovery, stall=stall, rejoin=rejoin, write=write)
    if strikes is not None:
        samples = len(strikes)
        _check_strikes(strikes, replicas)
    whole(replicas=replicas, samples=samples)
    one_of(SPACINGS, spacing=spacing)
    length = 1000 * every if time is None else time
    positive(time=length)
    if interval is not None:
        positive(interval=interval)
    elif write:
        raise ValueError(f"write={write!r} needs an interval after which a checkpoint is written")
    fleet = _Fleet(every, recovery, stall, replicas, rejoin, interval, write, spacing, length, samples, seed,
                   strikes)  # fmt: skip
    while fleet.step():
        pass
    parts = {name: values / length for name, values in fleet.spent.items()}
    return FleetRuns(
        effective=Estimate.of(parts["useful"]),
        parts={name: float(values.mean()) for name, values in parts.items()},
        failures=float(fleet.failures.mean()),
        losses=float(fleet.losses.mean()),
    )


class _Fleet:
    """All samples side by side; each has a clock of its own, and a step takes each to its next event."""

    def __init__(
        self,
        every: float,
        recovery: float,
        stall: float,
        replicas: int,
        rejoin: float,
        interval: float | None,
        write: float,
        spacing: str,
        length: float,
        samples: int,
        seed: int,
        strikes: Sequence[Strikes] | None = None,
    ) -> None:
        self.every, self.recovery, self.stall, self.rejoin = every, recovery, stall, rejoin
        self.replicas, self.length, self.spacing = replicas, length, spacing
        self.interval, self.write = math.inf if interval is None else interval, write
        self.keeps = interval is None
        self.random = np.random.default_rng(seed)
        self.strikes = None if strikes is None else [[*one, (math.inf, 0)] for one in strikes]
        self.now = np.zeros(samples)
        self.stalled_until = np.zeros(samples)
        self.back = np.full((samples, replicas), np.inf)  # when a replica is back; infinite: it is there
        self.present = np.full(samples, replicas)
        self.failures = np.zeros(samples, np.int64)
        self.losses = np.zeros(samples, np.int64)
        self.writing = np.zeros(samples, bool)
        self.left = np.full(samples, float(self.interval))  # of the interval, or of the write
        self.unsaved = np.zeros(samples)  # trained since the last checkpoint
        self.spent = {name: np.zeros(samples) for name in ("useful", "repeated", "writing", "stalled", "missing")}
        self.failure = self._next_failure(np.arange(samples))

    def step(self) -> bool:
        """Take every sample to its next event; False when all are at their end."""
        if (self.now >= self.length).all():
            self.spent["useful"] += self.unsaved
            return False
        there = self.present > 0
        begins = np.maximum(self.now, self.stalled_until)
        ready = np.where(there, begins + self.left, np.inf)
        nearest = self.back.min(1)
        then = np.minimum(np.minimum(self.failure, nearest), np.minimum(ready, self.length))
        moved = np.where(there, np.maximum(0, then - begins), 0.0)
        self._count(then, moved)
        self.now = then
        going = then < self.length
        self._checkpoint(np.flatnonzero(going & (ready == then)))
        self._return(np.flatnonzero(going & (nearest == then)))
        self._fail(np.flatnonzero(going & (self.failure == then)))
        return True

    def _count(self, then: np.ndarray, moved: np.ndarray) -> None:
        part = self.present / self.replicas
        training = np.where(self.writing, 0.0, moved)
        self.unsaved += training * part
        self.spent["missing"] += training * (1 - part)
        self.spent["writing"] += moved - training
        self.spent["stalled"] += then - self.now - moved
        self.left -= moved

    def _checkpoint(self, at: np.ndarray) -> None:
        """An interval is over, or a write: what is written is safe, and the next interval begins."""
        done = at[self.writing[at]] if self.write else at
        begun = at[~self.writing[at]] if self.write else at[:0]
        self.spent["useful"][done] += self.unsaved[done]
        self.unsaved[done], self.left[done], self.writing[done] = 0.0, self.interval, False
        self.left[begun], self.writing[begun] = self.write, True

    def _return(self, at: np.ndarray) -> None:
        if not len(at):
            return
        back = self.back[at]
        returned = back <= self.now[at, None]
        self.present[at] += returned.sum(1)
        self.back[at] = np.where(returned, np.inf, back)
        self.stalled_until[at] = np.maximum(self.stalled_until[at], self.now[at] + self.rejoin)

    def _fail(self, at: np.ndarray) -> None:
        if not len(at):
            return
        replica = self._struck(at)
        self.failures[at] += 1
        self.present[at] -= np.isinf(self.back[at, replica])
        self.back[at, replica] = self.now[at] + self.recovery
        self.stalled_until[at] = np.maximum(self.stalled_until[at], self.now[at] + self.stall)
        self.failure[at] = self._next_failure(at)
        lost = at[self.present[at] == 0]
        self.losses[lost] += 1
        if self.keeps:
            return
        self.spent["repeated"][lost] += self.unsaved[lost]
        self.unsaved[lost], self.left[lost], self.writing[lost] = 0.0, self.interval, False

    def _struck(self, at: np.ndarray) -> np.ndarray:
        """The replicas that fail now."""
        if self.strikes is not None:
            return np.array([self.strikes[i][self.failures[i]][1] for i in at])
        return self.random.integers(self.replicas, size=len(at))

    def _next_failure(self, at: np.ndarray) -> np.ndarray:
        if self.strikes is not None:
            return np.array([self.strikes[i][self.failures[i]][0] for i in at], float)  # infinity, after the last
        if self.spacing == "clock":
            return self.failures[at] * self.every
        return self.now[at] + self.random.exponential(self.every, len(at))


def _check_strikes(strikes: Sequence[Strikes], replicas: int) -> None:
    for one in strikes:
        times = [time for time, _ in one]
        if times != sorted(times) or any(time < 0 for time in times):
            raise ValueError(f"strikes must be in rising order of time, from 0 on, not at {times!r}")
        wrong = [replica for _, replica in one if not 0 <= replica < replicas]
        if wrong:
            raise ValueError(f"strikes hit replicas 0 to {replicas - 1}, and there is no replica {wrong[0]!r}")
