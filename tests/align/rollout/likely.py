"""Whether counts are those of a distribution."""

from __future__ import annotations

import torch
from torch import Tensor


def chi_square(counts: Tensor, expected: Tensor) -> float:
    """The probability that counts differ by so much, or more, from what is expected (Pearson's test)."""
    statistic = ((counts - expected) ** 2 / expected).sum().double()
    return float(torch.special.gammaincc(torch.tensor((len(counts) - 1) / 2).double(), statistic / 2))
