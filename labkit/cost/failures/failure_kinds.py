"""Kinds of failure, how long each takes to repair, and how many GPUs are out at a time. Days; parts from 0 to 1.

The model of the nonuniform tensor parallelism paper (arXiv 2504.06095, figure 4): Llama 3's rate, 78 percent hardware
that takes 3 or 5 days, 22 percent software that takes 3 hours. `failure_traces` draws what is expected here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from labkit.cost.failures.failure_tables import LLAMA3_FAILURES
from labkit.cost.failures.spares import poisson_tail
from labkit.cost.refuse import not_negative, one_of, positive, probability, whole

__all__ = ["FailureKind", "LLAMA3_RATE", "llama3_kinds", "mean_failed", "time_above"]

# Failures of one GPU, with its share of everything else, in a day: 419 in 54 days on 16,384 GPUs.
LLAMA3_RATE = LLAMA3_FAILURES.total / (LLAMA3_FAILURES.days or 1) / LLAMA3_FAILURES.gpus
STARTS = ("empty", "steady")


@dataclass(frozen=True)
class FailureKind:
    """share: part of all failures. repair_days: from the failure until the GPU works again, always the same.

    blast: the GPUs that one failure takes, the one that failed and its neighbours: those with the same gpu // blast.
    """

    name: str
    share: float
    repair_days: float
    blast: int = 1

    def __post_init__(self) -> None:
        probability(share=self.share)
        positive(repair_days=self.repair_days)
        whole(blast=self.blast)


def llama3_kinds(repair_days: float = 5.0, blast: int = 1) -> tuple[FailureKind, ...]:
    """The two kinds of the NTP paper: hardware (78 percent, `repair_days`) and software (22 percent, 3 hours)."""
    return (FailureKind("hardware", 0.78, repair_days, blast), FailureKind("software", 0.22, 3 / 24, blast))


def check_kinds(kinds: Sequence[FailureKind]) -> None:
    """Raise ValueError unless there are kinds and their shares sum to 1."""
    total = math.fsum(kind.share for kind in kinds)
    if abs(total - 1) > 1e-9:
        raise ValueError(f"the shares of the kinds must sum to 1, not {total!r}; llama3_kinds() has two that do")


def mean_failed(
    gpus: int, kinds: Sequence[FailureKind], rate: float = LLAMA3_RATE, after_days: float | None = None
) -> float:
    """GPUs in repair on average: gpus x / (1 + x), x the days that a GPU is in repair for each day that it works.

    x = rate * sum(share * min(repair_days, after_days)); after_days=None is the steady state, where this is exact:
    each GPU works for 1 / rate days and is then repaired. After a start with all GPUs healthy it is right up to
    terms of x^2. Only for failures that take one GPU. Llama 3's rate, 32,768 GPUs, 5 days: 60.8.
    """
    whole(gpus=gpus)
    not_negative(rate=rate)
    check_kinds(kinds)
    _singles(kinds)
    horizon = math.inf
    if after_days is not None:
        not_negative(after_days=after_days)
        horizon = after_days
    x = rate * math.fsum(kind.share * min(kind.repair_days, horizon) for kind in kinds)
    return gpus * x / (1 + x)


def time_above(
    fraction: float,
    gpus: int,
    days: float,
    kinds: Sequence[FailureKind],
    rate: float = LLAMA3_RATE,
    start: str = "empty",
    points: int = 1000,
) -> float:
    """The expected part of `days` in which more than `fraction` of the GPUs are in repair.

    The number in repair is Poisson to the accuracy that matters here (Palm 1943; it is binomial, with a small
    fraction); its mean is `mean_failed` at `points` times, the middles of as many equal parts of the days.
    The paper: 81 percent of 15 days above 0.1 percent of 32K GPUs, with 5 days of repair. An "empty" start gives 82.0,
    a "steady" one 100.0: so the paper's trace began with all GPUs healthy.
    """
    probability(fraction=fraction)
    positive(days=days)
    whole(points=points)
    one_of(STARTS, start=start)
    most = math.floor(fraction * gpus * (1 + 1e-12))
    if start == "steady":
        return poisson_tail(mean_failed(gpus, kinds, rate), most)
    times = ((i + 0.5) / points * days for i in range(points))
    return math.fsum(poisson_tail(mean_failed(gpus, kinds, rate, t), most) for t in times) / points


def _singles(kinds: Sequence[FailureKind]) -> None:
    wide = [kind.name for kind in kinds if kind.blast != 1]
    if wide:
        raise ValueError(f"the closed form is for failures of one GPU, and {wide!r} take more: use draw_failures")
