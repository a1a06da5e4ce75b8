"""What happens to a step when replicas are missing: its learning rate, its noise, its samples.

A gradient that is divided by the number of HEALTHY replicas stays unbiased; with k of n its variance is n / k times as
large. The three interventions are those of the FT-HSDP paper, section 6.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from labkit.cost.refuse import not_negative, one_of, whole

__all__ = ["INTERVENTIONS", "intervention_factor", "samples_lost", "step_noise_factor"]

INTERVENTIONS: dict[str, Callable[[float], float]] = {
    "none": lambda part: 1.0,
    "linear": lambda part: part,
    "sqrt": math.sqrt,
}


def intervention_factor(intervention: str, healthy: int, total: int) -> float:
    """The factor of the learning rate: 1, healthy / total ("linear"), or its square root ("sqrt").

    11 of 12: 1, 0.917, 0.957. 9 of 12: 1, 0.75, 0.866.
    """
    one_of(tuple(INTERVENTIONS), intervention=intervention)
    _check(healthy, total)
    return INTERVENTIONS[intervention](healthy / total)


def step_noise_factor(intervention: str, healthy: int, total: int) -> float:
    """How much noise a step of SGD has against a full one, as a standard deviation: factor * sqrt(total / healthy).

    1 for "sqrt". The paper says that its rate stays proportional to the deviation of the gradient's noise: that is so
    for the SUM over the healthy replicas; of their mean it is the inverse, and the product stays the same.
    """
    return intervention_factor(intervention, healthy, total) * math.sqrt(total / healthy)


def samples_lost(failures: int, length: int, lost: int, total: int, steps: int) -> float:
    """The part of the samples that `steps` steps do not train because replicas are missing.

    failures, each of `length` steps, each of `lost` out of `total` replicas. Two in 11,000 steps that take 3 of 12
    away for 4,000: 18.2 percent; all of them are trained later, or the run trains less.
    """
    whole(total=total, steps=steps)
    not_negative(failures=failures, length=length, lost=lost)
    if lost > total:
        raise ValueError(f"lost={lost!r} must be at most total={total!r}")
    if failures * length > steps:
        raise ValueError(f"failures={failures!r} of {length!r} steps each do not fit into {steps!r} steps")
    return failures * length * lost / (total * steps)


def _check(healthy: int, total: int) -> None:
    whole(healthy=healthy, total=total)
    if healthy > total:
        raise ValueError(f"healthy={healthy!r} must be at most total={total!r}")
