"""The part of a cluster whose tensor-parallel groups are whole, when some GPUs have failed anywhere.

Nonuniform tensor parallelism (arXiv 2504.06095, figure 3): one failed GPU takes its whole group, so wide groups, which
need large scale-up domains, lose more. At 0.1 percent of 32K GPUs the figure shows .992, .985, .969 and .939 for groups
of 8, 16, 32 and 64.
"""

from __future__ import annotations

import math

from labkit.cost.refuse import divides, positive, probability, whole

__all__ = ["amplification", "group_availability", "group_availability_of"]


def group_availability(fraction: float, width: int) -> float:
    """(1 - fraction)^width: each GPU has failed with the same probability, whatever the others do.

    0.1 percent: .992, .984, .968, .938 for 8, 16, 32 and 64.
    """
    probability(fraction=fraction)
    whole(width=width)
    return float((1 - fraction) ** width)


def group_availability_of(gpus: int, failed: int, width: int) -> float:
    """The same where exactly `failed` of `gpus` have failed: the chance that none of them is among `width` GPUs.

    C(gpus - width, failed) / C(gpus, failed): hypergeometric, and exact as the mean over all placements. 32 of
    32,768, the whole GPUs in 0.1 percent: .9922, .9845, .9692, .9393. Rounded these are the figure's numbers, but for
    TP16: .984485 is just below .9845, the edge between .984 and .985.
    """
    whole(gpus=gpus, width=width)
    divides(width=width, gpus=gpus)
    if isinstance(failed, bool) or not isinstance(failed, int) or not 0 <= failed <= gpus:
        raise ValueError(f"failed must be a whole number from 0 to gpus={gpus}, not {failed!r}")
    few, many = sorted((width, failed))
    return math.prod((gpus - many - i) / (gpus - i) for i in range(few))


def amplification(fraction: float, width: int) -> float:
    """GPUs lost for each GPU that failed: (1 - availability) / fraction. Near `width` while failures are few."""
    positive(fraction=fraction)
    return (1 - group_availability(fraction, width)) / fraction
