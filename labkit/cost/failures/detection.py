"""How long a failure goes unnoticed, how often a deadline is wrong, and how far to trust a diagnosis. Seconds."""

from __future__ import annotations

import math
from statistics import NormalDist

from labkit.cost.refuse import not_negative, positive, probability, whole

__all__ = ["deadline_for", "detection_seconds", "false_alarms", "share_interval"]


def detection_seconds(deadline: float, every: float = 0.0) -> tuple[float, float, float]:
    """(shortest, mean, longest) from a death to its detection, when a sign of life is missing for `deadline`.

    every: time between two signs. A death at any time between them is noticed `deadline` after the last sign, so
    `every` / 2 earlier on average. A closed connection needs no deadline: that is why one dead process can be seen in
    milliseconds, and one that hangs cannot. Raises ValueError for a deadline that is not above `every`.
    """
    positive(deadline=deadline)
    not_negative(every=every)
    if deadline <= every:
        raise ValueError(f"deadline={deadline!r} must be above every={every!r}, or everyone is declared dead")
    return deadline - every, deadline - every / 2, deadline


def false_alarms(deadline: float, mean: float, deviation: float, ranks: int, steps: int = 1) -> float:
    """How many of `steps` steps are stopped by mistake, on average: the slowest of `ranks` healthy ranks is too late.

    Times of a rank: normal, `mean` and `deviation`. A stall on all ranks at once is not in it: FT-HSDP's power smoother
    (45 s) on top of a step of 20 s is longer than its deadline of 60 s, with nobody dead.
    """
    positive(deadline=deadline, mean=mean)
    not_negative(deviation=deviation)
    whole(ranks=ranks, steps=steps)
    if deviation == 0:
        return 0.0 if mean <= deadline else float(steps)
    late = 0.5 * math.erfc((deadline - mean) / (deviation * math.sqrt(2)))
    return steps if late == 1 else -steps * math.expm1(ranks * math.log1p(-late))


def deadline_for(mean: float, deviation: float, ranks: int, steps: int, mistakes: float = 0.01) -> float:
    """The shortest deadline that stops on average at most `mistakes` of `steps` healthy steps: inverse of the above."""
    positive(mean=mean, deviation=deviation, mistakes=mistakes)
    whole(ranks=ranks, steps=steps)
    if mistakes >= steps:
        raise ValueError(f"mistakes={mistakes!r} must be below steps={steps!r}")
    late = -math.expm1(math.log1p(-mistakes / steps) / ranks)
    return mean - deviation * NormalDist().inv_cdf(late)


def share_interval(right: int, cases: int, confidence: float = 0.95) -> tuple[float, float]:
    """Between what bounds a rate lies, of which `right` out of `cases` was seen (Wilson 1927).

    97.8 percent of 1,500 injected failures: 96.9 to 98.4 percent. Of 200 cases 196 are as good.
    """
    whole(cases=cases)
    probability(confidence=confidence)
    if isinstance(right, bool) or not isinstance(right, int) or not 0 <= right <= cases:
        raise ValueError(f"right must be a whole number from 0 to cases={cases}, not {right!r}")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, not {confidence!r}")
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    share, spread = right / cases, z * z / cases
    middle = (share + spread / 2) / (1 + spread)
    half = math.sqrt(share * (1 - share) * spread + spread * spread / 4) / (1 + spread)
    return max(0.0, middle - half), min(1.0, middle + half)
