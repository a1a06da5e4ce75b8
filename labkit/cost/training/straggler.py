"""How long a step takes when all wait for the slowest: the expected maximum of N random times. Seconds.

Each rank's time is drawn by itself from one distribution. How the maximum grows with N depends on the tail:

    Normal          about sqrt(2 ln N) deviations above the mean
    Exponential     base + delay (1 + 1/2 + ... + 1/N): like ln N
    Lomax           a power of N, N^(1/tail): smooth, with a tail so heavy that one long delay dwarfs all others
    RareDelay       linear in N while stalls are rare, then not at all: some rank stalls in every step

No distribution makes it grow faster than N: the maximum of N positive times is at most their sum.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import NormalDist

from labkit.cost.refuse import not_negative, positive, probability, whole

__all__ = ["Exponential", "Lomax", "Normal", "RareDelay", "expected_maximum_of", "harmonic", "normal_maximum"]

_STANDARD = NormalDist()


def harmonic(size: int) -> float:
    """1 + 1/2 + ... + 1/size: 7.509 for 1,024."""
    whole(size=size)
    return math.fsum(1 / k for k in range(1, size + 1))


def normal_maximum(size: int) -> float:
    """The expected maximum of `size` draws from a normal distribution of mean 0 and deviation 1.

    0.564 for 2, 3.248 for 1,024. It is the integral of 1 - F(x)^N - F(-x)^N over x > 0, with F the distribution
    function, taken here by Simpson's rule to about nine digits.
    """
    whole(size=size)
    steps, width = 4000, 12.0
    h = width / steps

    def inner(x: float) -> float:
        tail = 0.5 * math.erfc(x / math.sqrt(2))  # F(-x)
        return -math.expm1(size * math.log1p(-tail)) - tail**size

    ends = inner(0.0) + inner(width)
    odd = math.fsum(inner(h * i) for i in range(1, steps, 2))
    even = math.fsum(inner(h * i) for i in range(2, steps, 2))
    return h / 3 * (ends + 4 * odd + 2 * even)


@dataclass(frozen=True)
class Normal:
    """Times that spread evenly to both sides: noise of many small causes."""

    mean: float
    deviation: float

    def __post_init__(self) -> None:
        not_negative(mean=self.mean, deviation=self.deviation)

    def expected_maximum(self, size: int) -> float:
        """Of `size` ranks."""
        return self.mean + self.deviation * normal_maximum(size)

    def quantile_of_maximum(self, size: int, q: float) -> float:
        """The time that the slowest of `size` ranks stays below in a part `q` of the steps."""
        return self.mean - self.deviation * _STANDARD.inv_cdf(_upper_tail(size, q))

    @classmethod
    def fitted(cls, mean: float, mean_maximum: float, size: int) -> Normal:
        """The one with this mean and this expected maximum of `size` ranks."""
        _check_fit(mean, mean_maximum, size)
        return cls(mean, (mean_maximum - mean) / normal_maximum(size))


@dataclass(frozen=True)
class Exponential:
    """A shortest possible time, and a random delay of which long ones are exponentially rare: queues."""

    base: float
    delay: float

    def __post_init__(self) -> None:
        not_negative(base=self.base, delay=self.delay)

    @property
    def mean(self) -> float:
        """base + delay."""
        return self.base + self.delay

    def expected_maximum(self, size: int) -> float:
        """base + delay (1 + 1/2 + ... + 1/N): exact."""
        return self.base + self.delay * harmonic(size)

    def quantile_of_maximum(self, size: int, q: float) -> float:
        """The time that the slowest of `size` ranks stays below in a part `q` of the steps."""
        return self.base - self.delay * math.log(_upper_tail(size, q))

    @classmethod
    def fitted(cls, mean: float, mean_maximum: float, size: int) -> Exponential:
        """The one with this mean and this expected maximum of `size` ranks. Raises ValueError if base is below 0."""
        _check_fit(mean, mean_maximum, size)
        delay = (mean_maximum - mean) / (harmonic(size) - 1)
        if delay > mean:
            raise ValueError(
                f"mean={mean:g} s is too short: a mean maximum of {mean_maximum:g} s on {size} ranks needs a mean "
                f"delay of {delay:g} s"
            )
        return cls(mean - delay, delay)


@dataclass(frozen=True)
class Lomax:
    """A shortest possible time, and a random delay that is longer than x with probability (1 + x/scale)^-tail.

    A power law (Lomax 1954, also Pareto II). scale in seconds; tail above 1, since with less there is no mean.
    """

    base: float
    scale: float
    tail: float

    def __post_init__(self) -> None:
        not_negative(base=self.base, scale=self.scale)
        if not 1 < self.tail < math.inf:
            raise ValueError(f"tail must be above 1 and finite, not {self.tail!r}: with less the mean is infinite")

    @property
    def mean(self) -> float:
        """base + scale / (tail - 1)."""
        return self.base + self.scale / (self.tail - 1)

    def expected_maximum(self, size: int) -> float:
        """base + scale (G - 1) with G = Gamma(N + 1) Gamma(1 - 1/tail) / Gamma(N + 1 - 1/tail): exact."""
        return self.base + self.scale * (_lomax_maximum(self.tail, size) - 1)

    def quantile_of_maximum(self, size: int, q: float) -> float:
        """The time that the slowest of `size` ranks stays below in a part `q` of the steps."""
        return self.base + self.scale * (_upper_tail(size, q) ** (-1 / self.tail) - 1)

    @classmethod
    def fitted(cls, mean: float, mean_maximum: float, slow: float, size: int, q: float = 0.99) -> Lomax:
        """The one with this mean, this expected maximum of `size` ranks, and this q-quantile of it.

        Looked for among tails from 1.5 on. Raises ValueError if none of them has the three, or base is below 0.
        """
        _check_fit(mean, mean_maximum, size)

        def above(tail: float) -> float:  # what the quantile exceeds the mean by, in units of what the maximum does
            free, up = 1 / (tail - 1), _upper_tail(size, q) ** (-1 / tail)
            return (up - 1 - free) / (_lomax_maximum(tail, size) - 1 - free)

        low, high, wanted = 1.5, 1e3, (slow - mean) / (mean_maximum - mean)
        if not above(high) < wanted < above(low):
            raise ValueError(
                f"slow={slow:g} s: no power law with a mean of {mean:g} s and a mean maximum of "
                f"{mean_maximum:g} s on {size} ranks has it"
            )
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (middle, high) if above(middle) > wanted else (low, middle)
        scale = (mean_maximum - mean) / (_lomax_maximum(low, size) - 1 - 1 / (low - 1))
        return cls(mean - scale / (low - 1), scale, low)


@dataclass(frozen=True)
class RareDelay:
    """The same time each step, but with probability `chance` a stall of `delay` seconds on top."""

    base: float
    delay: float
    chance: float

    def __post_init__(self) -> None:
        not_negative(base=self.base, delay=self.delay)
        probability(chance=self.chance)

    @property
    def mean(self) -> float:
        """base + chance * delay."""
        return self.base + self.chance * self.delay

    def stalled_steps(self, size: int) -> float:
        """The part of the steps in which at least one of `size` ranks stalls, 1 - (1 - chance)^N."""
        whole(size=size)
        return 1.0 if self.chance == 1 else -math.expm1(size * math.log1p(-self.chance))

    def expected_maximum(self, size: int) -> float:
        """base + delay (1 - (1 - chance)^N)."""
        return self.base + self.delay * self.stalled_steps(size)

    def quantile_of_maximum(self, size: int, q: float) -> float:
        """base, or base + delay once more than 1 - q of the steps stall."""
        probability(q=q)
        return self.base + (self.delay if self.stalled_steps(size) > 1 - q else 0.0)

    @classmethod
    def fitted(cls, base: float, mean_maximum: float, slow: float, size: int) -> RareDelay:
        """From the step without a stall, the mean step, and the slow step (a high quantile), on `size` ranks."""
        _check_fit(base, mean_maximum, size)
        if not mean_maximum < slow:
            raise ValueError(f"slow={slow:g} s must be above the mean step of {mean_maximum:g} s")
        stalled = (mean_maximum - base) / (slow - base)
        return cls(base, slow - base, -math.expm1(math.log1p(-stalled) / size))


def expected_maximum_of(samples: Iterable[float], size: int) -> float:
    """The expected maximum of `size` draws, with replacement, from measured times.

    Exact for the times given: the sum of x_i ((i/n)^N - ((i-1)/n)^N) over the sorted n times. It never exceeds the
    largest of them, so it is too low as soon as N is no longer small against n.
    """
    ordered = sorted(float(x) for x in samples)
    whole(size=size, samples=len(ordered))
    n = len(ordered)
    return math.fsum(x * (((i + 1) / n) ** size - (i / n) ** size) for i, x in enumerate(ordered))


def _lomax_maximum(tail: float, size: int) -> float:
    """1 + the expected maximum of `size` delays of scale 1."""
    whole(size=size)
    return math.exp(math.lgamma(size + 1) + math.lgamma(1 - 1 / tail) - math.lgamma(size + 1 - 1 / tail))


def _upper_tail(size: int, q: float) -> float:
    """P(one rank is slower) at the q-quantile of the slowest of `size`: 1 - q^(1/N)."""
    whole(size=size)
    if isinstance(q, bool) or not 0 < q < 1:
        raise ValueError(f"q must be between 0 and 1, not {q!r}")
    return -math.expm1(math.log(q) / size)


def _check_fit(mean: float, mean_maximum: float, size: int) -> None:
    positive(mean=mean, mean_maximum=mean_maximum)
    whole(size=size)
    if size < 2 or mean_maximum < mean:
        raise ValueError(
            f"the mean maximum ({mean_maximum:g} s) of at least two ranks ({size}) is not below the mean ({mean:g} s)"
        )
