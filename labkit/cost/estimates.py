"""A mean over samples and how far to trust it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Estimate"]


@dataclass(frozen=True)
class Estimate:
    """mean over `samples` values; error: its standard error; lowest and highest: the values' ends."""

    mean: float
    error: float
    lowest: float
    highest: float
    samples: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Estimate:
        """From one value per sample. Raises ValueError for fewer than two: one value has no spread."""
        found = [float(value) for value in values]
        n = len(found)
        if n < 2:
            raise ValueError(f"an estimate needs at least 2 samples, not {n}: one value has no spread")
        mean = math.fsum(found) / n
        variance = math.fsum((value - mean) ** 2 for value in found) / (n - 1)
        return cls(mean, math.sqrt(variance / n), min(found), max(found), n)

    @property
    def deviation(self) -> float:
        """The standard deviation of one sample: error * sqrt(samples)."""
        return self.error * math.sqrt(self.samples)

    def __str__(self) -> str:
        return f"{self.mean:.4g} ± {self.error:.1g} ({self.lowest:.4g} to {self.highest:.4g})"
