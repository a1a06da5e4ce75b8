"""Fit the few efficiency figures to measured steps, and say how far the fitted model is off.

Gauss-Newton on the logarithms: what is small is the sum over the runs of (log predicted - log measured)^2, so a run of
10 ms counts as much as one of 10 s. One set of figures for all runs. A figure that the runs say nothing about (links
that no run needs) stays where it was, because each step is damped (Levenberg 1944). Loads NumPy when it is called.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from labkit.cost.planner.cluster import Cluster
from labkit.cost.planner.gpus import Efficiency
from labkit.cost.planner.model import Model
from labkit.cost.planner.plan import Plan
from labkit.cost.planner.predicted import estimate
from labkit.cost.refuse import one_of, positive

__all__ = ["Calibration", "FIGURES", "MeasuredStep", "calibrated"]

FIGURES = ("products", "attention", "memory", "inside", "across")
_LEAST = 1e-6  # of a figure: emulated kernels can be far below a data sheet


@dataclass(frozen=True)
class MeasuredStep:
    """One run: what was trained on what and how, and the seconds that a step took."""

    model: Model
    cluster: Cluster
    plan: Plan
    seconds: float

    def __post_init__(self) -> None:
        positive(seconds=self.seconds)

    def predicted(self, efficiency: Efficiency) -> float:
        """Seconds of a step by the model."""
        return estimate(self.model, replace(self.cluster, efficiency=efficiency), self.plan).seconds


@dataclass(frozen=True)
class Calibration:
    """Fitted figures. errors: of each run, predicted over measured, less 1. fitted: which figures were free."""

    efficiency: Efficiency
    errors: tuple[float, ...]
    fitted: tuple[str, ...]

    @property
    def median(self) -> float:
        """Half of the runs are predicted at least this well: the median of the errors' sizes."""
        return median(map(abs, self.errors))

    @property
    def mean(self) -> float:
        """Of the errors' sizes."""
        return math.fsum(map(abs, self.errors)) / len(self.errors)

    @property
    def worst(self) -> float:
        """The largest of the errors' sizes."""
        return max(map(abs, self.errors))

    def on(self, cluster: Cluster) -> Cluster:
        """A cluster with the fitted figures."""
        return replace(cluster, efficiency=self.efficiency)

    def __str__(self) -> str:
        figures = ", ".join(f"{name} {getattr(self.efficiency, name):.3g}" for name in self.fitted)
        return (
            f"{figures}: fitted to {len(self.errors)} runs, which the model then misses by {100 * self.median:.1f} % "
            f"in the median and {100 * self.worst:.1f} % at worst"
        )


def calibrated(
    runs: Iterable[MeasuredStep], figures: Sequence[str] = FIGURES, *, start: Efficiency | None = None, rounds: int = 40
) -> Calibration:  # fmt: skip
    """Fit `figures` of `start` (by default the efficiency of the first run's cluster) to all runs at once.

    A figure stays between 0 and 1. Raises ValueError for fewer runs than figures: then any error could be fitted away.
    """
    import numpy as np

    measured = list(runs)
    for figure in figures:
        one_of(FIGURES, figures=figure)
    if len(measured) < max(1, len(figures)):
        raise ValueError(
            f"{len(measured)} runs cannot fix {len(figures)} figures: measure {len(figures)} or more, or fit fewer"
        )
    base = measured[0].cluster.efficiency if start is None else start

    def set_to(logs: np.ndarray) -> Efficiency:
        values = {f: math.exp(min(0.0, max(math.log(_LEAST), float(x)))) for f, x in zip(figures, logs, strict=True)}
        return replace(base, **values)  # type: ignore[arg-type]

    def misses(logs: np.ndarray) -> np.ndarray:
        efficiency = set_to(logs)
        return np.array([math.log(run.predicted(efficiency) / run.seconds) for run in measured])

    logs = np.array([math.log(getattr(base, figure)) for figure in figures])
    damping, now = 1e-3, misses(logs)
    for _ in range(rounds):
        columns = [misses(logs - 1e-4 * unit) - now for unit in np.eye(len(figures))]
        slopes = np.stack(columns, axis=1) / -1e-4
        free = slopes.T @ slopes
        move = np.linalg.solve(free + damping * np.eye(len(figures)), -slopes.T @ now)
        tried = np.clip(logs + np.clip(move, -1, 1), math.log(_LEAST), 0.0)
        after = misses(tried)
        better = after @ after < now @ now
        if better:
            done = np.abs(tried - logs).max() < 1e-6
            logs, now, damping = tried, after, max(1e-9, damping / 4)
            if done:
                break
        else:
            damping *= 8
            if damping > 1e6:
                break
    return Calibration(set_to(logs), tuple(float(math.expm1(x)) for x in now), tuple(figures))
