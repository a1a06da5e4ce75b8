"""How long a fleet stands still, taken apart: a restart, connections that grow, the stalls of FT-HSDP. Seconds.

The numbers are those of the FT-HSDP paper (arXiv 2602.00277), sections 3, 5 and 6.1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from labkit.cost.refuse import not_negative, positive
from labkit.cost.units import MINUTE

__all__ = ["Growth", "Restart", "fit_growth", "kill_stall_seconds", "rejoin_stall_seconds"]

STEP = 20.0  # "normal steps take about 20 seconds"
RECOVERY = 10.0 * MINUTE  # of all of 98K GPUs
ALLOCATION = 5.0 * MINUTE  # "up to", when all GPUs are given back and asked for again
CONNECTIONS = ((16_384, 17.0), (98_304, 200.0))  # GPUs, seconds to start all of NCCL's connections
FIRST_STEP = 200.0  # "about", read off figure 2
KILL_STALL = {
    "the time-out": 60.0,
    "training the step again": 20.0,
    "the power smoother": 45.0,
    "a reconfiguration that was not needed": 45.0,
}
FIXED = ("the power smoother", "a reconfiguration that was not needed")  # after the run
REJOIN_STEP = 2.0 * MINUTE  # step n + 1, when the replica came back in step n


@dataclass(frozen=True)
class Restart:
    """What stands between a failure and training again, in seconds.

    allocation: other machines instead of the broken ones. connections: each rank to its peers. loading: PyTorch, the
    checkpoint, health checks. first_step: what the first step takes longer than others.
    """

    allocation: float = 0.0
    connections: float = 0.0
    loading: float = 0.0
    first_step: float = 0.0

    def __post_init__(self) -> None:
        not_negative(
            allocation=self.allocation,
            connections=self.connections,
            loading=self.loading,
            first_step=self.first_step,
        )

    @property
    def total(self) -> float:
        return self.allocation + self.connections + self.loading + self.first_step

    def warm(self, allocation: float = 0.0) -> Restart:
        """With machines that stand by: only the allocation changes."""
        return Restart(allocation, self.connections, self.loading, self.first_step)


@dataclass(frozen=True)
class Growth:
    """seconds = scale * size ** exponent. 1: linear; above: worse. residual: of the fit, in parts (0.1: 10 percent)."""

    scale: float
    exponent: float
    residual: float

    def seconds(self, size: float) -> float:
        positive(size=size)
        return float(self.scale * size**self.exponent)


def fit_growth(points: Sequence[tuple[float, float]]) -> Growth:
    """The power law through (size, seconds) by least squares of the logarithms; exact for two points.

    17 s at 16,384 GPUs and 200 s at 98,304: exponent 1.38. Raises ValueError for fewer than two sizes.
    """
    for size, seconds in points:
        positive(size=size, seconds=seconds)
    if len({size for size, _ in points}) < 2:
        raise ValueError(f"a growth needs at least two sizes, not {[size for size, _ in points]!r}")
    x = [math.log(size) for size, _ in points]
    y = [math.log(seconds) for _, seconds in points]
    mean_x, mean_y = math.fsum(x) / len(x), math.fsum(y) / len(y)
    slope = math.fsum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    slope /= math.fsum((a - mean_x) ** 2 for a in x)
    at_one = mean_y - slope * mean_x
    squares = math.fsum((b - at_one - slope * a) ** 2 for a, b in zip(x, y, strict=True))
    return Growth(math.exp(at_one), slope, math.expm1(math.sqrt(squares / len(x))))


def kill_stall_seconds(without: Sequence[str] = ()) -> float:
    """The named parts of the stall at a kill, 170 s in all, less some of them: 80 s without the two that were fixed.

    "A few seconds" to build the all-reduce's group again are not in it; the paper measured "about three minutes".
    Raises ValueError for a part that is not in `KILL_STALL`.
    """
    unknown = [part for part in without if part not in KILL_STALL]
    if unknown:
        raise ValueError(f"without={unknown!r}: no such part; there are {', '.join(KILL_STALL)}")
    return math.fsum(seconds for part, seconds in KILL_STALL.items() if part not in without)


def rejoin_stall_seconds() -> float:
    """What the others wait for when a replica comes back: the step that took two minutes, less a usual step: 100 s."""
    return REJOIN_STEP - STEP
