"""How many machines are being repaired at a time, and how many must stand by for them. Failures per day, days.

Failures at random at a constant rate, any distribution of repair times: the number in repair is Poisson, and its mean
is rate times mean repair time (Palm 1943).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from labkit.cost.refuse import not_negative, positive

__all__ = ["in_repair", "poisson_tail", "spares_needed"]


def in_repair(failures_a_day: float, repair_days: float | Mapping[float, float]) -> float:
    """The mean number in repair: failures_a_day * repair_days, once failures have come for longer than a repair takes.

    repair_days: one time, or a mapping of days to the part of the failures that take so long. Llama 3's rate on 32,768
    GPUs (15.5 a day), 78 percent of them for 5 days and 22 for 3 h: 61 GPUs.
    """
    not_negative(failures_a_day=failures_a_day)
    if isinstance(repair_days, Mapping):
        for days, part in repair_days.items():
            not_negative(days=days, part=part)
        if abs(math.fsum(repair_days.values()) - 1) > 1e-9:
            raise ValueError(f"the parts of repair_days must sum to 1, not {math.fsum(repair_days.values())!r}")
        return failures_a_day * math.fsum(days * part for days, part in repair_days.items())
    not_negative(repair_days=repair_days)
    return failures_a_day * repair_days


def poisson_tail(mean: float, count: int) -> float:
    """The probability that a Poisson number with `mean` is above `count`: the spares do not suffice."""
    not_negative(mean=mean)
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise ValueError(f"count must be a whole number of at least 0, not {count!r}")
    return max(0.0, 1 - math.fsum(_poisson(mean, k) for k in range(count + 1)))


def spares_needed(mean: float, enough: float = 0.99) -> int:
    """The fewest spares that suffice for a part `enough` of the time, when `mean` machines are in repair on average.

    For 187 in repair, 220 suffice for 99 percent of the time.
    """
    not_negative(mean=mean)
    positive(enough=enough)
    if enough >= 1:
        raise ValueError(f"enough must be below 1, not {enough!r}: no number of spares always suffices")
    count, below = max(0, int(mean - 12 * math.sqrt(mean))), 0.0  # what lies further below has no weight
    while True:
        below += _poisson(mean, count)
        if below >= enough:
            return count
        count += 1


def _poisson(mean: float, count: int) -> float:
    if mean == 0:
        return 1.0 if count == 0 else 0.0
    return math.exp(count * math.log(mean) - mean - math.lgamma(count + 1))
