"""The critical batch size from training runs: batch sizes, and the steps that each took to the same loss.

McCandlish et al. 2018 (section 2.3): with the best rate for each batch size B, steps S and examples E = B S obey
(S / S_min - 1) (E / E_min - 1) = 1, or, written for S alone,

    S(B) = S_min (1 + B_crit / B),    B_crit = E_min / S_min

which is a straight line in 1 / B. `labkit.cost.training.batch` has what follows from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from statistics import median

from labkit.wire.errors import RefusedError


@dataclass(frozen=True)
class CriticalBatch:
    """least_steps: with a batch without end. least_examples: with the smallest batch. critical: their quotient.

    residual: the typical relative error of the fit in steps (root mean square).
    """

    least_steps: float
    least_examples: float
    residual: float

    @property
    def critical(self) -> float:
        """The batch that takes twice the least steps and twice the least examples."""
        return self.least_examples / self.least_steps

    def steps(self, batch: float) -> float:
        """Steps to the target at `batch` examples a step."""
        return self.least_steps + self.least_examples / batch


def fit_critical_batch(points: Sequence[tuple[float, float]]) -> CriticalBatch:
    """S_min and E_min from (batch, steps) pairs, with the least squares of *relative* errors, in closed form.

    Raises RefusedError for fewer than two batch sizes, and for points that no such law gives (a larger batch that takes
    more steps).
    """
    if len({batch for batch, _ in points}) < 2:
        raise RefusedError(
            f"{len(points)} points: two numbers are fitted, so runs at two batch sizes or more are needed"
        )
    if min(min(point) for point in points) <= 0:
        raise RefusedError("batch sizes and steps must be above zero; leave out runs that never reached the target")
    rows = [(1 / steps, 1 / (batch * steps)) for batch, steps in points]  # (a + e / B) / S should be 1
    aa, ae, ee = (sum(row[i] * row[j] for row in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    a1, e1 = sum(row[0] for row in rows), sum(row[1] for row in rows)
    bottom = aa * ee - ae * ae
    a, e = (a1 * ee - e1 * ae) / bottom, (e1 * aa - a1 * ae) / bottom
    if a <= 0 or e <= 0:
        raise RefusedError(
            "these points have no critical batch: steps do not fall like S_min + E_min / B. Tune the learning rate "
            "for each batch size, and include batches small enough to be noisy and large enough not to be"
        )
    errors = [a * row[0] + e * row[1] - 1 for row in rows]
    return CriticalBatch(a, e, (sum(x * x for x in errors) / len(errors)) ** 0.5)


def critical_batch_interval(
    runs: Mapping[int, Sequence[float]], confidence: float = 0.95, resamples: int = 1000, seed: int = 0
) -> tuple[float, float]:
    """The percentile bootstrap over seeds, for the critical batch of the *medians* (Efron & Tibshirani 1993, ch. 13).

    runs: batch -> steps to the target, one number a seed. Resamples that admit no fit are left out. What the interval
    holds is the luck of seeds; that the law itself may be wrong is not in it.
    """
    random, found = Random(seed), []
    for _ in range(resamples):
        points = [(batch, median(random.choices(steps, k=len(steps)))) for batch, steps in runs.items()]
        try:
            found.append(fit_critical_batch(points).critical)
        except RefusedError:
            continue
    if not found:
        raise RefusedError("no resample of these runs admits a critical batch: see fit_critical_batch")
    found.sort()
    cut = round((1 - confidence) / 2 * (len(found) - 1))
    return found[cut], found[len(found) - 1 - cut]
