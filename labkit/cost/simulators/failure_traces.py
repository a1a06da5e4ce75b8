"""Failures drawn for a whole cluster, many samples at once: who is in repair, from when until when. Days.

A GPU that works fails at a constant rate. A failure has a kind (`FailureKind`), which says how long the repair takes
and how many neighbours are out with it. A GPU in repair cannot fail; if a neighbour's failure takes it too, it is back
when the later of the two repairs ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labkit.cost.estimates import Estimate
from labkit.cost.failures.failure_kinds import LLAMA3_RATE, STARTS, FailureKind, check_kinds, llama3_kinds
from labkit.cost.refuse import divides, not_negative, one_of, positive, probability, whole
from labkit.cost.simulators.histories import Floats, History, Ints, count_over_time

__all__ = ["FailureTrace", "draw_failures"]


@dataclass(frozen=True)
class FailureTrace:
    """`samples` drawings of what happens to `gpus` GPUs in `days`. One row for each time that a GPU is out.

    sample, gpu, kind: int64, where kind counts into `kinds`. start, end: float64, in days; a start below 0 was before
    the trace begins, an end above `days` after it is over. Rows of one GPU of one sample do not overlap.
    struck: the failures within the days, by sample; with a blast above 1 there are more rows than failures.
    """

    gpus: int
    days: float
    samples: int
    kinds: tuple[FailureKind, ...]
    sample: Ints
    gpu: Ints
    kind: Ints
    start: Floats
    end: Floats
    struck: Ints

    def failed_at(self, day: float) -> Ints:
        """How many GPUs are out at time `day`, by sample: [samples]."""
        out = self._out_at(day)
        return np.bincount(self.sample[out], minlength=self.samples)

    def failed_by_domain(self, day: float, gpus_per_domain: int) -> Ints:
        """How many GPUs of each scale-up domain are out at time `day`: [samples, domains]."""
        whole(gpus_per_domain=gpus_per_domain)
        divides(gpus_per_domain=gpus_per_domain, gpus=self.gpus)
        domains = self.gpus // gpus_per_domain
        out = self._out_at(day)
        place = self.sample[out] * domains + self.gpu[out] // gpus_per_domain
        return np.bincount(place, minlength=self.samples * domains).reshape(self.samples, domains)

    def history(self) -> History:
        """The number of GPUs that are out, at all times: `values` [pieces]."""
        return count_over_time(self.sample, self.start, self.end, self.samples, self.days)

    def time_above(self, fraction: float) -> Estimate:
        """The part of the days in which more than `fraction` of the GPUs are out."""
        probability(fraction=fraction)
        history = self.history()
        return Estimate.of(history.mean(history.values > fraction * self.gpus))

    def peak(self) -> Estimate:
        """The most GPUs that are out at a time."""
        history = self.history()
        return Estimate.of(history.most(history.values))

    def gpu_days(self) -> dict[str, Estimate]:
        """GPU-days within the days, by sample: out, by the name of the kind; and "healthy", the rest."""
        within = np.minimum(self.end, self.days) - np.maximum(self.start, 0.0)
        lost = {
            kind.name: np.bincount(self.sample, within * (self.kind == i), self.samples)
            for i, kind in enumerate(self.kinds)
        }
        healthy = self.gpus * self.days - np.sum(list(lost.values()), axis=0)
        return {name: Estimate.of(values) for name, values in {"healthy": healthy, **lost}.items()}

    def _out_at(self, day: float) -> NDArray[np.bool_]:
        not_negative(day=day)
        if day >= self.days:
            raise ValueError(f"day={day!r} must be below days={self.days!r}, where the trace ends")
        return (self.start <= day) & (day < self.end)


def draw_failures(
    gpus: int = 32_768,
    days: float = 15.0,
    samples: int = 1000,
    seed: int = 0,
    *,
    rate: float = LLAMA3_RATE,
    kinds: Sequence[FailureKind] | None = None,
    start: str = "empty",
) -> FailureTrace:
    """`samples` traces of `days` days. rate: failures a day of each GPU that works. kinds: `llama3_kinds()` when None.

    start: "empty", all GPUs work at first; or "steady", failures came for two of the longest repairs before, so that
    as many are repaired as fail. The 81 percent of the NTP paper's figure 4 are those of an empty start. Raises
    ValueError for a negative rate, or a blast that does not divide the GPUs and the largest blast.
    """
    whole(gpus=gpus, samples=samples)
    positive(days=days)
    not_negative(rate=rate)
    one_of(STARTS, start=start)
    kinds = llama3_kinds() if kinds is None else tuple(kinds)
    check_kinds(kinds)
    unit = max(kind.blast for kind in kinds)
    divides(blast=unit, gpus=gpus)
    for kind in kinds:
        divides(blast=kind.blast, largest_blast=unit)
    before = 2 * max(kind.repair_days for kind in kinds) if start == "steady" else 0.0
    random = np.random.default_rng(seed)
    sample = np.repeat(np.arange(samples), random.poisson(gpus * rate * (before + days), samples))
    when = random.uniform(-before, days, len(sample))
    gpu = random.integers(gpus, size=len(sample))
    kind_of = random.choice(len(kinds), len(sample), p=[kind.share for kind in kinds])
    return _strike(gpus, days, samples, tuple(kinds), unit, sample, gpu, kind_of, when)


def _strike(
    gpus: int,
    days: float,
    samples: int,
    kinds: tuple[FailureKind, ...],
    unit: int,
    sample: Ints,
    gpu: Ints,
    kind: Ints,
    when: Floats,
) -> FailureTrace:
    """Leave out what would strike a GPU in repair, and give each GPU that is out a row of its own.

    GPUs are taken together in groups of `unit`, which no blast crosses. Failures of one group go by time, those of all
    groups and samples side by side: the first of each, then the second.
    """
    order = np.lexsort((when, gpu // unit, sample))
    sample, gpu, kind, when = sample[order], gpu[order], kind[order], when[order]
    _, first, group = np.unique(sample * (gpus // unit) + gpu // unit, return_index=True, return_inverse=True)
    turn = np.arange(len(group)) - first[group]
    repair = np.array([k.repair_days for k in kinds])
    blast = np.array([k.blast for k in kinds])
    busy = np.full((len(first), unit), -np.inf)  # until when each GPU of a group is out
    members = np.arange(unit)
    struck = np.zeros(samples, np.int64)
    none = np.empty(0, np.int64)
    rows: list[tuple[Ints, Ints, Ints, Floats, Floats]] = [(none, none, none, np.empty(0), np.empty(0))]
    for n in range(int(turn.max(initial=-1)) + 1):
        now = np.flatnonzero(turn == n)
        now = now[busy[group[now], gpu[now] % unit] <= when[now]]
        until = when[now] + repair[kind[now]]
        size = blast[kind[now]]
        taken = members // size[:, None] == (gpu[now] % unit // size)[:, None]
        begin = np.maximum(when[now][:, None], busy[group[now]])
        which, member = np.nonzero(taken & (begin < until[:, None]))
        at = now[which]
        rows.append((sample[at], gpu[at] // unit * unit + member, kind[at], begin[which, member], until[which]))
        busy[group[at], member] = until[which]
        struck += np.bincount(sample[now[when[now] >= 0]], minlength=samples)
    who, where, what, begins, ends = (np.concatenate(column) for column in zip(*rows, strict=True))
    seen = (ends > 0) & (begins < days)
    return FailureTrace(
        gpus, days, samples, kinds, who[seen], where[seen], what[seen], begins[seen], ends[seen], struck
    )
