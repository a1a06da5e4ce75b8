"""What the runs of `accuracy` say: differences from the run without faults of the same seed, with their spread.

Two runs are compared after equally many steps, or after equally many samples. A run that lost replicas has trained
fewer samples after the same steps, and taken more steps for the same samples.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from labkit.data.runs import AccuracyRow
from labkit.resilience.accuracy.experiment import FIRST, STEPS

AXES = ("steps", "samples")


@dataclass(frozen=True)
class Shift:
    """Mean over seeds of a difference in loss (nats), its standard error, and the spread between seeds."""

    mean: float
    error: float
    spread: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Shift:
        """Raises ValueError for fewer than two seeds."""
        if len(values) < 2:
            raise ValueError(f"{len(values)} seed says nothing about the spread between seeds: take at least 2")
        spread = stdev(values)
        return cls(fmean(values), spread / math.sqrt(len(values)), spread)

    @property
    def clear(self) -> bool:
        """Whether it is more than three standard errors from zero."""
        return abs(self.mean) > 3 * self.error

    def __str__(self) -> str:
        return f"{self.mean:+.4f} ± {self.error:.4f}"


def difference(row: AccuracyRow, base: AccuracyRow, against: str) -> list[tuple[int, float]]:
    """(step of `row`, its loss minus that of `base` after equally many steps or samples), where `base` has gone so far.

    Between two looks of `base` its loss is taken as a straight line.
    """
    if against not in AXES:
        raise ValueError(f"against={against!r}: choose {' or '.join(map(repr, AXES))}")
    where, there = (row.steps, base.steps) if against == "steps" else (row.samples, base.samples)
    found = []
    for step, x, loss in zip(row.steps, where, row.losses, strict=True):
        if there[0] <= x <= there[-1]:
            found.append((step, loss - _at(x, there, base.losses)))
    return found


def during(row: AccuracyRow, base: AccuracyRow, against: str) -> float:
    """The mean difference while replicas were away, the first third of each outage left out."""
    inside = [d for step, d in difference(row, base, against) if _settled(row, step)]
    return fmean(inside)


def at_end(row: AccuracyRow, base: AccuracyRow, against: str) -> float:
    """The difference after the planned steps; or, against samples, when all planned samples are trained."""
    last = dict(difference(row, base, against))
    return last[STEPS] if against == "steps" else row.losses[-1] - base.losses[-1]


def shift(
    rows: Sequence[AccuracyRow], measure: Callable[[AccuracyRow, AccuracyRow, str], float], against: str, **which: Any
) -> Shift:
    """`measure` of all runs that are as `which` says (lost=3, length=60, ...), each against the run of its seed without
    faults. Raises ValueError where there are none.
    """
    base = {row.seed: row for row in rows if row.lost == 0 == row.order}
    chosen = [row for row in rows if all(getattr(row, name) == value for name, value in which.items())]
    if not chosen:
        raise ValueError(f"no runs with {which}")
    return Shift.of([measure(row, base[row.seed], against) for row in chosen])


def flattened(rows: Sequence[AccuracyRow], lost: int, length: int, by: str = "sqrt", against: str = "steps") -> Shift:
    """How much closer to the run without faults `by` is than "none" is, while replicas are away; above 0: closer.

    |mean of none| - |mean of by|, with the error of the difference of the two, seed by seed.
    """
    base = {row.seed: row for row in rows if row.lost == 0 == row.order}
    found: dict[str, dict[int, float]] = {"none": {}, by: {}}
    for row in rows:
        if (row.lost, row.length) == (lost, length) and row.intervention in found:
            found[row.intervention][row.seed] = during(row, base[row.seed], against)
    signs = {how: math.copysign(1, fmean(values.values())) for how, values in found.items()}
    each = [signs["none"] * found["none"][s] - signs[by] * found[by][s] for s in found["none"]]
    return Shift.of(each)


def _settled(row: AccuracyRow, step: int) -> bool:
    begins = FIRST.get(row.length, ())
    if not begins:  # no faults: as long as the outages of others
        return STEPS // 10 < step <= STEPS
    return any(begin + row.length / 3 < step <= begin + row.length for begin in begins)


def _at(x: float, xs: Sequence[float], ys: Sequence[float]) -> float:
    i = min(max(bisect_right(xs, x) - 1, 0), len(xs) - 2)
    part = (x - xs[i]) / (xs[i + 1] - xs[i])
    return ys[i] + part * (ys[i + 1] - ys[i])
