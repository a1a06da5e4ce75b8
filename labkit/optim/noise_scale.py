"""The gradient noise scale from gradients at two batch sizes (McCandlish et al. 2018, appendix A.1).

A batch of B examples gives a gradient with E|G_B|^2 = |G|^2 + tr(Sigma) / B: the true gradient, and noise that averages
out. Two batch sizes give two equations for the two unknowns. In data parallel training both batches are there at every
step: each rank's own gradient is the small one, their average the large one.

    |G|^2     estimated by G2 = (B |G_B|^2 - b |G_b|^2) / (B - b)      the signal
    tr(Sigma) estimated by S  = (|G_b|^2 - |G_B|^2) / (1/b - 1/B)      the noise, of one example
    noise scale = tr(Sigma) / |G|^2: the batch at which signal and noise are equal

Of one step, both are very noisy, and G2 is often negative. S and G2 are therefore averaged over steps, each by itself,
and divided at the end. The mean of S / G2 would be wrong however many steps there were.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist

from labkit.wire.errors import RefusedError

NO_SIGNAL = "no signal: the mean of G2 is not above zero. Take more steps, or a larger batch"
NO_NOISE = "no noise: the mean of S is not above zero. Are the small gradients of different examples?"
OPEN = "no upper bound: the signal cannot be told from zero at this confidence. Take more steps"
FEW = "one step: no interval"


def signal_and_noise(small_norm2: float, large_norm2: float, small: int, large: int) -> tuple[float, float]:
    """(G2, S): unbiased estimates of |G|^2 and tr(Sigma) from one pair of squared gradient norms.

    small_norm2: |G_b|^2 at `small` examples, or a mean of several. large_norm2: |G_B|^2 at `large` examples.
    Either result may be negative. Raises RefusedError unless 0 < small < large.
    """
    check_sizes(small, large)
    signal = (large * large_norm2 - small * small_norm2) / (large - small)
    noise = (small_norm2 - large_norm2) / (1 / small - 1 / large)
    return signal, noise


def check_sizes(small: int, large: int) -> None:
    """Refuse batch sizes from which nothing can be estimated."""
    if not 0 < small < large:
        raise RefusedError(
            f"small={small}, large={large}: the noise scale needs two batch sizes, the small one at least 1. "
            f"With one rank there is one size only: use two ranks, or two microbatches"
        )


@dataclass(frozen=True)
class Estimate:
    """The noise scale, in examples, and what it is made of.

    scale: noise / signal; NaN if the signal is not above zero, 0 if the noise is not. low, high: the interval; high is
    infinite where no upper bound can be given. steps: how many pairs of norms went in, effective: how many they
    count for (fewer if old ones fade). word: empty, or why this is not yet an answer.
    """

    scale: float
    low: float
    high: float
    signal: float
    noise: float
    steps: int
    effective: float
    confidence: float
    word: str

    def __str__(self) -> str:
        if math.isnan(self.scale):
            return f"{self.word} ({self.steps} steps)"
        interval = f"{self.confidence:.0%} interval {self.low:.4g} to {self.high:.4g}"
        return f"{self.scale:.4g} examples, {interval}, {self.steps} steps" + (f" ({self.word})" if self.word else "")


class NoiseScale:
    """Running means of S and G2, and their ratio with a confidence interval.

    small, large: examples behind the two gradients of a step. fade: 1 weighs all steps alike; below 1, a step that
    lies k steps back counts fade^k, since the noise scale grows while training goes on (0.99: about the last 100).

    The interval is Fieller's (1954), for the ratio of two means of pairs: it takes into account that S and G2 of a
    step go together, and it has no upper end when the signal's own interval reaches zero. It treats steps as
    independent. That is right for the noise; a signal that drifts through the window makes the interval wider.
    """

    def __init__(self, small: int, large: int, fade: float = 1.0) -> None:
        check_sizes(small, large)
        if not 0 < fade <= 1:
            raise RefusedError(f"fade={fade}: what a step keeps of its weight at the next one, above 0 and at most 1")
        self.small, self.large, self.fade = small, large, fade
        self.steps = 0
        self.weight = self.weight2 = 0.0  # sum of weights, sum of their squares
        self.signal = self.noise = 0.0  # the means of G2 and of S
        self.last = (math.nan, math.nan)  # G2 and S of the last step alone
        self._squares = [0.0, 0.0, 0.0]  # weighted sums of dG2^2, dS^2, dG2 dS about the means

    def add(self, small_norm2: float, large_norm2: float) -> None:
        """Count one step: the mean over ranks of |G_b|^2, and |G_B|^2 of the average. NaN and infinity are refused."""
        if not (math.isfinite(small_norm2) and math.isfinite(large_norm2)):
            raise RefusedError(
                f"step {self.steps}: squared gradient norms {small_norm2} and {large_norm2}. "
                f"Skip a step that overflowed: one such number would spoil the mean for good"
            )
        signal, noise = signal_and_noise(small_norm2, large_norm2, self.small, self.large)
        self.last, self.steps = (signal, noise), self.steps + 1
        self.weight = self.weight * self.fade + 1
        self.weight2 = self.weight2 * self.fade**2 + 1
        self._squares = [x * self.fade for x in self._squares]
        off_signal, off_noise = signal - self.signal, noise - self.noise  # West 1979: means and spreads in one pass
        self.signal += off_signal / self.weight
        self.noise += off_noise / self.weight
        rest_signal, rest_noise = signal - self.signal, noise - self.noise
        products = (off_signal * rest_signal, off_noise * rest_noise, off_signal * rest_noise)
        self._squares = [x + product for x, product in zip(self._squares, products, strict=True)]

    def estimate(self, confidence: float = 0.95) -> Estimate:
        """The noise scale so far. Raises RefusedError before the first step."""
        if not self.steps:
            raise RefusedError("no step was counted yet: call add(small_norm2, large_norm2) at each step first")
        if not 0 < confidence < 1:
            raise RefusedError(f"confidence={confidence}: give a part of one, such as 0.95")
        effective = self.weight**2 / self.weight2
        low, high, word = self._interval(effective, confidence)
        if self.signal <= 0:
            scale, word = math.nan, NO_SIGNAL
        elif self.noise <= 0:
            scale, word = 0.0, NO_NOISE
        else:
            scale = self.noise / self.signal
        return Estimate(scale, low, high, self.signal, self.noise, self.steps, effective, confidence, word)

    def _interval(self, effective: float, confidence: float) -> tuple[float, float, str]:
        """Fieller: all ratios q for which the mean of S - q G2 is not told from zero. (0, inf) before two steps."""
        if effective < 1.5:
            return 0.0, math.inf, FEW
        spread = [x / self.weight / (effective - 1) for x in self._squares]  # (co)variances of the two means
        t2 = student_t(confidence, effective - 1) ** 2
        a = self.signal**2 - t2 * spread[0]
        b = self.signal * self.noise - t2 * spread[2]
        c = self.noise**2 - t2 * spread[1]
        root = math.sqrt(max(b * b - a * c, 0.0))
        if a > 0 and self.signal > 0:
            return max((b - root) / a, 0.0), max((b + root) / a, 0.0), ""
        low = (b - root) / a if a < 0 and b * b > a * c else 0.0  # the signal may be zero: the set is open above
        return max(low, 0.0), math.inf, OPEN


def student_t(confidence: float, freedom: float) -> float:
    """The two-sided quantile of Student's t, by its expansion around the normal one (Abramowitz & Stegun 26.7.5).

    Within 1 % of the tables from 4 degrees of freedom on (at 95 %); too small by 10 % at 2, and by more at 1.
    """
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / freedom**k for k, term in enumerate(terms, 1))
