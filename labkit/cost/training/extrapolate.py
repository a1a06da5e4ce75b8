"""Two measured sizes predict a third: step time as compute plus communication, fitted with an error.

    strong scaling  T(N) = A / N + C g(N)         weak scaling  T(N) = A + C g(N)

A: seconds that one rank computes. C: seconds of communication, in units of g. g is how communication grows:

    "bytes"     2 (N-1)/N    a ring's bytes: it stops growing
    "messages"  2 (N-1)      a ring's latencies: it never stops
    "none"      1            the same for every N above 1

Which g holds must be known, or tested with a third size: two points fit every g. Linear least squares, weighted by the
measured errors, which pass through to every prediction (Bevington & Robinson 2003, chapter 7).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from labkit.cost.refuse import one_of, positive, whole

__all__ = ["Measured", "ScalingFit", "communication_growth", "fit_scaling"]

KINDS = ("strong", "weak")
GROWTHS = ("bytes", "messages", "none")


def communication_growth(growth: str, size: int) -> float:
    """g(N) by its name; 0 for one rank."""
    one_of(GROWTHS, growth=growth)
    whole(size=size)
    if growth == "none":
        return float(size > 1)
    return 2 * (size - 1) / (size if growth == "bytes" else 1)


@dataclass(frozen=True)
class Measured:
    """A step on `size` ranks: its mean time, and the error of that mean, in seconds."""

    size: int
    seconds: float
    error: float

    def __post_init__(self) -> None:
        whole(size=self.size)
        positive(seconds=self.seconds, error=self.error)

    @classmethod
    def of(cls, size: int, times: Sequence[float]) -> Measured:
        """From single times: their mean, and their standard deviation over the root of their number."""
        if len(times) < 2:
            raise ValueError(f"an error needs at least two measured times, not {len(times)}")
        mean = math.fsum(times) / len(times)
        variance = math.fsum((t - mean) ** 2 for t in times) / (len(times) - 1)
        return cls(size, mean, math.sqrt(variance / len(times)))


@dataclass(frozen=True)
class ScalingFit:
    """A fitted law of scaling. compute: A. communication: C, in seconds. covariance: of A and C, as (AA, AC, CC)."""

    kind: str
    growth: str
    compute: float
    communication: float
    covariance: tuple[float, float, float]

    def _factors(self, size: int) -> tuple[float, float]:
        return (1 / size if self.kind == "strong" else 1.0), communication_growth(self.growth, size)

    def _spread(self, by_compute: float, by_communication: float) -> float:
        aa, ac, cc = self.covariance
        squared = by_compute**2 * aa + 2 * by_compute * by_communication * ac + by_communication**2 * cc
        return math.sqrt(max(0.0, squared))

    def seconds(self, size: int) -> float:
        """The step on `size` ranks."""
        per_compute, per_communication = self._factors(size)
        return self.compute * per_compute + self.communication * per_communication

    def error(self, size: int) -> float:
        """One standard error of `seconds(size)`, from the errors of the measurements only, not of the law."""
        return self._spread(*self._factors(size))

    def efficiency(self, size: int) -> float:
        """What the devices compute of their time: A/N over T(N), or A over T(N) for weak scaling."""
        return self.compute * self._factors(size)[0] / self.seconds(size)

    def efficiency_error(self, size: int) -> float:
        """One standard error of `efficiency(size)`."""
        f, g = self._factors(size)
        total = self.seconds(size) ** 2
        return self._spread(f * g * self.communication / total, -f * g * self.compute / total)

    def strong(self, ranks: int) -> ScalingFit:
        """The law of the same job under strong scaling, if the whole batch is that of `ranks` ranks of a weak one.

        Raises ValueError for a law that is strong already.
        """
        whole(ranks=ranks)
        if self.kind == "strong":
            raise ValueError("this law is one of strong scaling already: its work is divided by the number of ranks")
        aa, ac, cc = self.covariance
        covariance = (ranks**2 * aa, ranks * ac, cc)
        return ScalingFit("strong", self.growth, ranks * self.compute, self.communication, covariance)

    def size_at_efficiency(self, efficiency: float = 0.5, limit: int = 2**30) -> float:
        """The largest number of ranks with at least this `efficiency`; infinite if more than `limit` have it.

        The scaling cliff, if you call it a cliff where less than half of the fleet is of use.
        """
        if isinstance(efficiency, bool) or not 0 < efficiency < 1:
            raise ValueError(f"efficiency must be between 0 and 1, not {efficiency!r}")
        enough = efficiency * (1 - 1e-9)
        if self.efficiency(limit) >= enough:
            return math.inf
        low, high = 1, limit  # efficiency falls with N: high has too little, low has enough
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.efficiency(middle) >= enough else (low, middle)
        return low

    def size_interval(self, efficiency: float = 0.5, deviations: float = 2.0) -> tuple[float, float]:
        """`size_at_efficiency` where C/A is `deviations` standard errors higher, and lower."""
        positive(deviations=deviations)
        ratio = self.communication / self.compute
        spread = deviations * self._spread(-ratio / self.compute, 1 / self.compute)
        ends = [
            ScalingFit(self.kind, self.growth, 1.0, max(0.0, ratio + shift), (0.0, 0.0, 0.0))
            for shift in (spread, -spread)
        ]
        return ends[0].size_at_efficiency(efficiency), ends[1].size_at_efficiency(efficiency)

    def misses(self, measured: Measured) -> float:
        """By how many standard errors a further measurement misses the prediction; above 3 the law is in doubt."""
        return (measured.seconds - self.seconds(measured.size)) / math.hypot(measured.error, self.error(measured.size))


def fit_scaling(points: Sequence[Measured], kind: str = "strong", growth: str = "bytes") -> ScalingFit:
    """Fit A and C to at least two different sizes.

    Where there is next to no communication, C can come out below 0 by noise. Raises ValueError where that is more than
    three standard errors, or A is not above 0: then the law is not theirs; and where the points do not fix both.
    """
    one_of(KINDS, kind=kind)
    one_of(GROWTHS, growth=growth)
    if len({point.size for point in points}) < 2:
        raise ValueError(f"a law of two terms needs measurements at two sizes, not at {[p.size for p in points]}")
    empty = ScalingFit(kind, growth, 0.0, 0.0, (0.0, 0.0, 0.0))
    rows = [(*empty._factors(point.size), point.seconds, point.error**-2) for point in points]
    ff = math.fsum(w * f * f for f, _, _, w in rows)
    fg = math.fsum(w * f * g for f, g, _, w in rows)
    gg = math.fsum(w * g * g for _, g, _, w in rows)
    ft = math.fsum(w * f * t for f, _, t, w in rows)
    gt = math.fsum(w * g * t for _, g, t, w in rows)
    determinant = ff * gg - fg * fg
    if determinant <= 1e-12 * ff * gg:
        raise ValueError(f"sizes {[p.size for p in points]} cannot tell computing from communication under {growth!r}")
    compute, communication = (gg * ft - fg * gt) / determinant, (ff * gt - fg * ft) / determinant
    covariance = (gg / determinant, -fg / determinant, ff / determinant)
    if compute <= 0 or communication < -3 * math.sqrt(covariance[2]):
        raise ValueError(
            f"the best fit computes for {compute:g} s and communicates for {communication:g} s: "
            f"{kind} scaling with {growth!r} is not the law of these times"
        )
    return ScalingFit(kind, growth, compute, communication, covariance)
