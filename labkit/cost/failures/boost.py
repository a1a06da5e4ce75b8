"""What more power does for the speed of a GPU, from two numbers of a paper. Power and speed are 1 at the usual limit.

Nonuniform tensor parallelism (arXiv 2504.06095, sensitivity study): performance per watt falls by 2.8 percent at 1.1
times the power and by 6.5 percent at 1.2 times; its racks can give up to 1.3 times.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from labkit.cost.refuse import positive, whole

__all__ = ["PowerBoost"]

PAPER_POINTS = ((1.0, 0.0), (1.1, 0.028), (1.2, 0.065))  # power, part of performance per watt that is lost
PAPER_LIMIT = 1.3


@dataclass(frozen=True)
class PowerBoost:
    """speed = power * (1 - loss(power)).

    points: (power, loss of performance per watt), the first (1, 0). Between and beyond them the loss is the one
    polynomial through all points: for the paper's three a parabola, 11.1 percent at 1.3, which the paper does not
    state. A line on through the last two would give 10.2. limit: the most power there is.
    """

    points: tuple[tuple[float, float], ...] = PAPER_POINTS
    limit: float = PAPER_LIMIT

    def __post_init__(self) -> None:
        positive(limit=self.limit)
        powers = [power for power, _ in self.points]
        if len(powers) < 1 or powers != sorted(set(powers)) or self.points[0] != (1.0, 0.0):
            raise ValueError(f"points must begin with (1.0, 0.0), with rising powers, not {self.points!r}")
        if self.limit < 1:
            raise ValueError(f"limit={self.limit!r} must be at least 1: less power than usual is no boost")
        steps = [self._speed(1 + (self.limit - 1) * i / 100) for i in range(101)]
        if any(later < sooner for sooner, later in zip(steps, steps[1:], strict=False)):
            raise ValueError(f"more power must not be slower up to limit={self.limit!r}: lower the limit")

    def loss(self, power: float) -> float:
        """The part of the performance per watt that is lost at `power`: 0.028 at 1.1."""
        self._check(power)
        return 1 - self._speed(power) / power

    def speed(self, power: float) -> float:
        """How fast a GPU is at `power`: 1.069 at 1.1, 1.122 at 1.2, 1.156 at 1.3."""
        self._check(power)
        return self._speed(power)

    def power_for(self, speed: float) -> float:
        """The least power for `speed`: 1.096 for 32/30, 1.254 for 32/28; 1 for a speed up to 1.

        Raises ValueError for more than `limit` can give.
        """
        positive(speed=speed)
        top = self._speed(self.limit)
        if speed > top * (1 + 1e-12):
            raise ValueError(f"speed={speed:.4g} is more than {top:.4g}, all that power={self.limit:g} can give")
        low, high = 1.0, self.limit
        for _ in range(60):  # bisection: the speed rises with the power
            middle = (low + high) / 2
            low, high = (low, middle) if self._speed(middle) >= speed else (middle, high)
        return 1.0 if speed <= 1 else high

    def domain_power(self, width: int, full: int) -> float:
        """What `width` GPUs draw that keep pace with `full` ones, over what `full` ones draw.

        Above 1 whenever performance per watt falls: 1.027 for 30 of 32, 1.098 for 28. So the power that the failed
        GPUs no longer take does not suffice, though the paper says that no supply has to be added.
        """
        whole(width=width, full=full)
        if width > full:
            raise ValueError(f"width={width!r} must be at most full={full!r}")
        return width * self.power_for(full / width) / full

    def _speed(self, power: float) -> float:
        loss = math.fsum(
            value * math.prod((power - other) / (at - other) for other, _ in self.points if other != at)
            for at, value in self.points
        )
        return power * (1 - loss)

    def _check(self, power: float) -> None:
        positive(power=power)
        if not 1 <= power <= self.limit:
            raise ValueError(f"power must be from 1 to {self.limit:g}, not {power!r}")
