"""Checkpoints and random failures by drawing them: what the closed forms must agree with. Times in one unit, any unit.

A run does `work` in intervals. After each it stands still for `stall`; a checkpoint can be loaded once its writing in
the background, if there is one, is complete as well. A failure throws the run back to the last such checkpoint and
costs a restart, in which the next failure may strike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

from labkit.cost.failures.checkpoint_tax import Tax
from labkit.cost.refuse import not_negative, positive, whole

__all__ = ["CheckpointRuns", "simulate_checkpoints"]


@dataclass(frozen=True)
class CheckpointRuns:
    """tax: mean over the runs. error: standard error of `tax.of_useful`. failures: mean number in a run."""

    tax: Tax
    error: float
    failures: float


def simulate_checkpoints(
    interval: float,
    stall: float,
    mtbf: float,
    restart: float = 0.0,
    *,
    background: float = 0.0,
    intervals: int = 100,
    runs: int = 200,
    seed: int = 0,
) -> CheckpointRuns:
    """`runs` runs of `intervals` intervals of work each, with failures drawn from `seed`.

    A synchronous checkpoint has its whole write as `stall`; an asynchronous one stalls for the copy and writes in
    the `background`. The next copy waits until the writing before it is complete.
    """
    positive(interval=interval, mtbf=mtbf)
    not_negative(stall=stall, restart=restart, background=background)
    whole(intervals=intervals, runs=runs)
    if runs < 2:
        raise ValueError("runs must be at least 2: one run has no spread")
    random, work = Random(seed), intervals * interval
    found = [_run(random, interval, stall, mtbf, restart, background, intervals) for _ in range(runs)]
    overheads = [elapsed / work - 1 for elapsed, _ in found]
    mean = math.fsum(overheads) / runs
    variance = math.fsum((x - mean) ** 2 for x in overheads) / (runs - 1)
    return CheckpointRuns(
        Tax(max(0.0, mean)), math.sqrt(variance / runs), math.fsum(failures for _, failures in found) / runs
    )


def _run(
    random: Random, interval: float, stall: float, mtbf: float, restart: float, background: float, intervals: int
) -> tuple[float, int]:
    """(time that passed, failures) of one run."""
    elapsed, failures, loadable = 0.0, 0, 0
    while True:
        failure = random.expovariate(1 / mtbf)  # from now; a constant rate does not remember
        now = restart if failures else 0.0
        done, writing, written = loadable, 0.0, loadable  # written: the checkpoint complete at time `writing`
        while done < intervals and now <= failure:
            now = max(now + interval, writing) + stall
            if writing <= failure:
                loadable = written
            done += 1
            writing, written = now + background, done
        end = writing if done == intervals else now
        if end <= failure:
            return elapsed + end, failures
        elapsed, failures = elapsed + failure, failures + 1
