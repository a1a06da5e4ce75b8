"""Find alpha and beta, the latency and the seconds per byte of a link, from measured messages.

The model is seconds = alpha + nbytes * beta (Hockney 1994). Sizes span many powers of ten, so errors are
weighed relative to the measured time: an ordinary least-squares fit would see only the largest messages and
give an alpha that is noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import Any

from labkit.cost.collectives.checks import check

__all__ = ["LinkFit", "fit_alpha_beta", "fit_sends", "points_of_sends"]


@dataclass(frozen=True)
class LinkFit:
    """A fitted link.

    alpha: seconds of latency a message. beta: seconds a byte. alpha_error, beta_error: one standard error of
    each (NaN with fewer than three points). residual: root mean square of (measured - model) / measured;
    worst: the largest of those. points: how many were fitted.
    """

    alpha: float
    beta: float
    alpha_error: float
    beta_error: float
    residual: float
    worst: float
    points: int

    @property
    def bandwidth(self) -> float:
        """Bytes per second of a very long message; infinite if beta is 0."""
        return 1 / self.beta if self.beta else math.inf

    @property
    def half_size(self) -> float:
        """The message size in bytes at which latency and bytes take the same time, alpha / beta."""
        return self.alpha / self.beta if self.beta else math.inf

    def seconds(self, nbytes: float) -> float:
        """What the model says a message of `nbytes` takes."""
        check(nbytes=nbytes)
        return self.alpha + nbytes * self.beta


def fit_alpha_beta(points: Iterable[tuple[float, float]]) -> LinkFit:
    """Fit alpha and beta, neither below 0, to measured (nbytes, seconds) points by relative least squares.

    Minimises the sum over points of ((alpha + nbytes * beta) / seconds - 1) ** 2. Where the best straight
    line would have a negative latency or a negative time per byte, that one is 0 and the other is fitted
    alone. Raises ValueError for fewer than two different sizes, a negative size, or a time that is not above
    0.
    """
    measured = [(float(nbytes), float(seconds)) for nbytes, seconds in points]
    for nbytes, seconds in measured:
        check(nbytes=nbytes, seconds=seconds)
        if seconds == 0:
            raise ValueError(f"a message of {nbytes:g} bytes cannot take 0 seconds")
    sizes = {nbytes for nbytes, _ in measured}
    if len(sizes) < 2:
        raise ValueError(f"alpha and beta need messages of at least two different sizes, not {len(sizes)}")

    # Around the weighted means the two unknowns do not mix, so that 1 byte and 1 GB fit in one sum.
    weights = [seconds**-2 for _, seconds in measured]
    total = math.fsum(weights)
    mean_n = math.fsum(w * n for w, (n, _) in zip(weights, measured, strict=True)) / total
    mean_t = math.fsum(1 / seconds for _, seconds in measured) / total
    spread = math.fsum(w * (n - mean_n) ** 2 for w, (n, _) in zip(weights, measured, strict=True))
    slope = math.fsum(w * (n - mean_n) * (t - mean_t) for w, (n, t) in zip(weights, measured, strict=True))
    beta = slope / spread
    alpha = mean_t - beta * mean_n
    if beta < 0:
        alpha, beta = mean_t, 0.0
    elif alpha < 0:
        rates = [nbytes / seconds for nbytes, seconds in measured]
        alpha, beta = 0.0, math.fsum(rates) / math.fsum(rate**2 for rate in rates)

    misses = [(alpha + nbytes * beta) / seconds - 1 for nbytes, seconds in measured]
    squares = math.fsum(miss**2 for miss in misses)
    variance = squares / (len(measured) - 2) if len(measured) > 2 else math.nan
    return LinkFit(
        alpha=alpha,
        beta=beta,
        alpha_error=math.sqrt(variance * (1 / total + mean_n**2 / spread)),
        beta_error=math.sqrt(variance / spread),
        residual=math.sqrt(squares / len(measured)),
        worst=max(abs(miss) for miss in misses),
        points=len(measured),
    )


def points_of_sends(sends: Iterable[Any]) -> list[tuple[int, float]]:
    """One (nbytes, seconds) point for each size among the messages of a trace: the median of their times.

    sends: objects with `nbytes`, `start` and `end` in seconds, such as `run.trace.sends`. A send that meets
    no receiver yet waits for it; where a message also has `recv_start`, when the receiver began to wait,
    only the time after that counts. Messages that took no measurable time are left out.
    """
    by_size: dict[int, list[float]] = {}
    for message in sends:
        ready = getattr(message, "recv_start", None)
        begun = message.start if ready is None else max(message.start, ready)
        if message.end > begun:
            by_size.setdefault(int(message.nbytes), []).append(message.end - begun)
    return [(nbytes, median(times)) for nbytes, times in sorted(by_size.items())]


def fit_sends(sends: Iterable[Any]) -> LinkFit:
    """Fit alpha and beta to the messages of a trace, one point a size (`points_of_sends`).

    Raises ValueError if they are not of at least two different sizes.
    """
    return fit_alpha_beta(points_of_sends(sends))
