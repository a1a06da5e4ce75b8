"""Batch size against steps and samples: the hyperbola of the critical batch, and time to a target.

McCandlish et al. 2018, "An Empirical Model of Large-Batch Training", equation 2.11. To reach a given loss

    steps(B) = least_steps (1 + critical / B)        samples(B) = B steps(B) = least_samples (1 + B / critical)

with least_samples = critical * least_steps. At the critical batch both are twice the least.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from labkit.cost.refuse import positive

__all__ = [
    "best_batch",
    "critical_batch_from",
    "information_gain",
    "least_steps_from",
    "sample_efficiency",
    "samples_to_target",
    "seconds_to_target",
    "simple_noise_scale",
    "steps_to_target",
]


def simple_noise_scale(trace: float, squared_norm: float) -> float:
    """tr(covariance of one sample's gradient) / |mean gradient|^2, an estimate of the critical batch.

    1.6e6 / 100 = 16,000. It needs the mean gradient without noise; two batch sizes give that without bias
    (appendix A.1 there; `labkit.optim`).
    """
    positive(trace=trace, squared_norm=squared_norm)
    return trace / squared_norm


def steps_to_target(batch: float, least_steps: float, critical: float) -> float:
    """Updates to the target with batches of `batch` samples: least_steps (1 + critical / batch)."""
    positive(batch=batch, least_steps=least_steps, critical=critical)
    return least_steps * (1 + critical / batch)


def samples_to_target(batch: float, least_steps: float, critical: float) -> float:
    """Samples to the target: batch times `steps_to_target`."""
    return batch * steps_to_target(batch, least_steps, critical)


def sample_efficiency(batch: float, critical: float, base: float | None = None) -> float:
    """Least samples over those needed, 1 / (1 + batch / critical); or relative to a batch of `base` samples.

    It falls with every larger batch: one half at the critical batch. (The textbook chapter says that it is at its
    highest there.)
    """
    positive(batch=batch, critical=critical)
    if base is None:
        return 1 / (1 + batch / critical)
    positive(base=base)
    return (1 + base / critical) / (1 + batch / critical)


def least_steps_from(batch: float, steps: float, critical: float) -> float:
    """The least number of steps, from a run that took `steps` with `batch`."""
    positive(batch=batch, steps=steps, critical=critical)
    return steps / (1 + critical / batch)


def critical_batch_from(batch: float, efficiency: float, base: float) -> float:
    """The critical batch at which `batch` has this `sample_efficiency` relative to `base`. Infinite for 1.

    Solves (1 + base / B) / (1 + batch / B) = efficiency. Raises ValueError where none does: the efficiency is above 1,
    or no higher than base / batch, which is what batches of the same noise-free gradient have.
    """
    positive(batch=batch, efficiency=efficiency, base=base)
    if batch <= base:
        raise ValueError(f"batch={batch!r} must be above the base={base!r} that it is compared with")
    if not base / batch < efficiency <= 1:
        raise ValueError(f"efficiency={efficiency!r}: this law allows more than {base / batch:.4g} and at most 1")
    return math.inf if efficiency == 1 else (efficiency * batch - base) / (1 - efficiency)


def information_gain(batch: float, base: float, critical: float) -> float:
    """How many steps of `base` samples one step of `batch` is worth: steps(base) / steps(batch).

    100K samples against 10K are worth 2 steps, not 10, where the critical batch is 12,500.
    """
    return steps_to_target(base, 1, critical) / steps_to_target(batch, 1, critical)


def seconds_to_target(batch: float, step_seconds: float, least_steps: float, critical: float) -> float:
    """Steps to the target times the seconds of a step of this batch: statistical and hardware efficiency together."""
    positive(step_seconds=step_seconds)
    return steps_to_target(batch, least_steps, critical) * step_seconds


def best_batch(
    batches: Iterable[float], step_seconds: Callable[[float], float], least_steps: float, critical: float
) -> float:
    """The one of `batches` that reaches the target first. step_seconds: seconds of a step of a batch, a function."""
    choices = list(batches)
    if not choices:
        raise ValueError("batches must have at least one batch size")
    return min(choices, key=lambda batch: seconds_to_target(batch, step_seconds(batch), least_steps, critical))
