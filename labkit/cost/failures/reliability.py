"""How often a world of many parts fails, when one failed part stops them all. Times in hours.

Parts fail independently and at a constant rate, so their lives are exponential: a job of N parts fails N times as
often as one of them. MTBF is the mean time between failures.
"""

from __future__ import annotations

import math

from labkit.cost.refuse import not_negative, positive, probability, whole

__all__ = ["mtbf_from_survival", "mtbf_of", "observed_mtbf", "survival", "survival_hours", "unit_mtbf_of"]


def mtbf_of(unit_mtbf: float, size: int) -> float:
    """Hours between failures of `size` parts, each of which fails every `unit_mtbf` hours: unit_mtbf / size.

    1,024 GPUs of 50,000 h: 48.83 h.
    """
    positive(unit_mtbf=unit_mtbf)
    whole(size=size)
    return unit_mtbf / size


def survival(unit_survival: float, size: int, hours: float = 1.0) -> float:
    """The probability that `size` parts all run for `hours`, when each survives an hour with `unit_survival`.

    unit_survival ** (size * hours). 100 nodes at 99.9 percent: 0.9048, so one hour in ten (9.52 percent) is broken.
    """
    probability(unit_survival=unit_survival)
    whole(size=size)
    not_negative(hours=hours)
    return float(unit_survival ** (size * hours))


def mtbf_from_survival(unit_survival: float, size: int = 1) -> float:
    """Hours between failures of `size` parts that each survive an hour with `unit_survival`: 9.995 h for 100 at 0.999.

    -1 / (size ln unit_survival); infinite if nothing ever fails.
    """
    probability(unit_survival=unit_survival)
    whole(size=size)
    if unit_survival in (0, 1):
        return math.inf if unit_survival else 0.0
    return -1 / (size * math.log(unit_survival))


def survival_hours(mtbf: float, hours: float) -> float:
    """The probability that a job which fails every `mtbf` hours runs `hours` without a failure: exp(-hours / mtbf)."""
    positive(mtbf=mtbf)
    not_negative(hours=hours)
    return math.exp(-hours / mtbf)


def observed_mtbf(interruptions: int, hours: float) -> float:
    """Hours between the interruptions of a job that had `interruptions` in `hours`.

    Llama 3: 419 unexpected ones in 54 days on 16,384 GPUs, one every 3.09 h; a GPU and its share of the rest then
    has 50,676 h (`unit_mtbf_of`).
    """
    whole(interruptions=interruptions)
    positive(hours=hours)
    return hours / interruptions


def unit_mtbf_of(mtbf: float, size: int) -> float:
    """Hours between failures of one part, when `size` of them fail every `mtbf` hours: the inverse of `mtbf_of`."""
    positive(mtbf=mtbf)
    whole(size=size)
    return mtbf * size
