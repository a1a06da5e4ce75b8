"""From which size on one algorithm overtakes another.

In the alpha-beta model (Hockney 1994) nearly all times are `rounds * alpha + factor * nbytes * beta`, so two
algorithms are two straight lines in `nbytes`, and they cross where
`nbytes = (rounds_b - rounds_a) * alpha / ((factor_a - factor_b) * beta)`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from labkit.cost.collectives.checks import check
from labkit.cost.collectives.registry import cost_of
from labkit.cost.collectives.ring import ring_all_reduce
from labkit.cost.collectives.tree import tree_all_reduce

__all__ = [
    "crossover",
    "crossover_by_bisection",
    "line_crossing",
    "ring_recursive_doubling_crossover",
    "ring_tree_crossover",
]


def line_crossing(
    rounds_a: float, factor_a: float, rounds_b: float, factor_b: float, alpha: float, beta: float
) -> float:
    """The size in bytes from which b is at least as fast as a; 0 if always, infinity if never.

    a takes rounds_a * alpha + factor_a * nbytes * beta seconds, and so for b.
    """
    check(alpha=alpha, beta=beta)
    dearer_start = (rounds_b - rounds_a) * alpha
    saving = (factor_a - factor_b) * beta
    if math.isclose(factor_a, factor_b, rel_tol=1e-12):  # equal but for rounding
        saving = 0.0
    if saving > 0:
        return max(0.0, dearer_start / saving)
    # b does not gain with size: it is as good from the start and stays so, or it is never better for good.
    return 0.0 if dearer_start <= 0 and saving == 0 else math.inf


def crossover(collective: str, small: str, large: str, size: int, alpha: float, beta: float) -> float:
    """The size in bytes from which algorithm `large` is at least as fast as `small`.

    0 if always, infinity if never. Closed form. The chain is not a straight line (its chunks change with the
    size): use `crossover_by_bisection`.
    """
    a, b = cost_of(collective, small), cost_of(collective, large)
    if "chain" in (a.algorithm, b.algorithm):
        raise ValueError("the time of a chain is not a straight line in nbytes: use crossover_by_bisection")
    return line_crossing(
        a.rounds(size), a.seconds(1, size, 0, 1), b.rounds(size), b.seconds(1, size, 0, 1), alpha, beta
    )


def ring_tree_crossover(size: int, alpha: float, beta: float) -> float:
    """Bytes from which the ring all_reduce overtakes the binomial tree.

    (p - 1 - ceil(log2 p)) alpha / ((ceil(log2 p) - (p - 1) / p) beta).
    """
    lg = tree_all_reduce.rounds(size) / 2
    return line_crossing(2 * lg, 2 * lg, ring_all_reduce.rounds(size), 2 * (size - 1) / size, alpha, beta)


def ring_recursive_doubling_crossover(size: int, alpha: float, beta: float) -> float:
    """Bytes from which the ring all_reduce overtakes recursive doubling.

    (2 (p - 1) - R) alpha / ((R - 2 (p - 1) / p) beta), where R is log2 p, or log2 p2 + 2 for p that is not a
    power of two. Infinity for two ranks: both send the tensor once, the ring in two messages.
    """
    return crossover("all_reduce", "recursive_doubling", "ring", size, alpha, beta)


def crossover_by_bisection(
    time_small: Callable[[float], float], time_large: Callable[[float], float], limit: float = 2.0**50
) -> float:
    """The same for any two functions of nbytes: where `time_large` has caught up for good.

    Looks at sizes up to `limit` bytes: 0 if it is at least as fast from the start, infinity if it is slower
    at `limit`. Times that differ by less than 1e-12 of themselves count as equal, so an advantage of mere
    latency must not drown in the bytes of `limit`. The difference of the two must change sign at most once.
    """

    def caught_up(nbytes: float) -> bool:
        return time_large(nbytes) <= time_small(nbytes) * (1 + 1e-12)

    if not caught_up(limit):
        return math.inf
    if caught_up(0.0):
        return 0.0
    low, high = 0.0, limit
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if caught_up(middle) else (middle, high)
    return high
