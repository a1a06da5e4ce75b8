"""Numbers that change now and then, for many samples at once: piecewise constant, exact in time. Days."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["History"]

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class History:
    """Pieces of time in which nothing changes, by sample and then by time; together they are all days of all samples.

    sample, start, days: [pieces], whose piece it is, when it begins, how long it is. values: [pieces, ...].
    """

    samples: int
    sample: Ints
    start: Floats
    days: Floats
    values: Ints

    def mean(self, values: NDArray) -> Floats:
        """The mean over time of `values`, one for each piece: [samples]."""
        total = np.bincount(self.sample, self.days, self.samples)
        return np.bincount(self.sample, self.days * values, self.samples) / total

    def most(self, values: NDArray) -> Floats:
        """The largest of `values`, one for each piece: [samples]."""
        found = np.full(self.samples, -np.inf)
        np.maximum.at(found, self.sample, values)
        return found


@dataclass(frozen=True)
class Changes:
    """unit (a domain or a replica) of a sample goes at `time` from level `before` to `after`; by sample, unit, time."""

    sample: Ints
    unit: Ints
    time: Floats
    before: Ints
    after: Ints


def count_over_time(sample: Ints, start: Floats, end: Floats, samples: int, days: float) -> History:
    """How many of the intervals [start, end) hold, at each time from 0 to `days`."""
    inside = end < days
    who = np.concatenate([sample, sample[inside]])
    time = np.concatenate([np.maximum(start, 0.0), end[inside]])
    delta = np.repeat([1, -1], [len(sample), int(inside.sum())])
    return _summed(who, time, delta[:, None], np.zeros((samples, 1), np.int64), days, column=0)


def unit_changes(sample: Ints, unit: Ints, start: Floats, end: Floats, days: float) -> Changes:
    """How many of a unit's intervals hold: its level, each time that it changes."""
    inside = end < days
    who = np.concatenate([sample, sample[inside]])
    which = np.concatenate([unit, unit[inside]])
    time = np.concatenate([np.maximum(start, 0.0), end[inside]])
    delta = np.repeat([1, -1], [len(sample), int(inside.sum())])
    order = np.lexsort((time, which, who))
    who, which, time, delta = who[order], which[order], time[order], delta[order]
    first = np.flatnonzero(_begins(who, which, time))  # what happens to a unit at one time is one change
    delta = np.add.reduceat(delta, first) if len(first) else delta
    who, which, time = who[first], which[first], time[first]
    after = _within(delta, _begins(who, which))
    real = delta != 0
    return Changes(who[real], which[real], time[real], (after - delta)[real], after[real])


def worst_of_groups(changes: Changes, size: int) -> Changes:
    """The highest level among `size` neighbouring units, each time that one of them changes."""
    group = changes.unit // size
    order = np.lexsort((changes.time, group, changes.sample))
    who, which, time = changes.sample[order], group[order], changes.time[order]
    before, after = changes.before[order], changes.after[order]
    begins = _begins(who, which)
    worst = np.zeros(len(who), np.int64)
    for level in range(1, int(after.max(initial=0)) + 1):
        there = _within((after >= level).astype(np.int64) - (before >= level), begins)
        worst += there > 0
    previous = np.where(begins, 0, np.concatenate([[0], worst[:-1]])) if len(worst) else worst
    return Changes(who, which, time, previous, worst)


def units_by_level(changes: Changes, units: Ints, samples: int, days: float) -> History:
    """How many units have each level. units: [samples], all of which begin at 0. values: [pieces, levels]."""
    levels = int(changes.after.max(initial=0)) + 1
    step = np.zeros((len(changes.time), levels), np.int64)
    at = np.arange(len(step))
    step[at, changes.after] += 1
    step[at, changes.before] -= 1
    initial = np.zeros((samples, levels), np.int64)
    initial[:, 0] = units
    return _summed(changes.sample, changes.time, step, initial, days)


def _summed(who: Ints, time: Floats, step: Ints, initial: Ints, days: float, column: int | None = None) -> History:
    """The running sums of `step` from `initial` on, by sample and time; pieces of no length are left out."""
    samples = len(initial)
    who = np.concatenate([np.arange(samples), who])  # a change of nothing at 0 begins each sample
    time = np.concatenate([np.zeros(samples), time])
    step = np.concatenate([initial, step])
    order = np.lexsort((time, who))
    who, time, step = who[order], time[order], step[order]
    values = _within(step, _begins(who))
    last = np.concatenate([who[1:] != who[:-1], [True]])
    length = np.where(last, days, np.concatenate([time[1:], [days]])) - time
    kept = length > 0
    values = values[kept] if column is None else values[kept, column]
    return History(samples, who[kept], time[kept], length[kept], values)


def _begins(*keys: NDArray) -> NDArray[np.bool_]:
    """Where a run of equal keys begins."""
    if not len(keys[0]):
        return np.zeros(0, bool)
    return np.concatenate([[True], np.any([key[1:] != key[:-1] for key in keys], axis=0)])


def _within(step: Ints, begins: NDArray[np.bool_]) -> Ints:
    """Running sums along the first axis, begun anew where `begins`."""
    total = np.cumsum(step, axis=0)
    if not len(total):
        return total
    first = np.flatnonzero(begins)
    base = (total - step)[first]
    return total - np.repeat(base, np.diff(np.append(first, len(total))), axis=0)
