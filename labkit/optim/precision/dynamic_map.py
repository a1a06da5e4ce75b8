"""The dynamic map: 256 numbers from -1 to 1, or from 0 to 1, dense near 0 (Dettmers 2016; Dettmers et al. 2022).

A byte is read from the left: the sign, then k zeros, a 1, and a fraction in the bits that are left. Each zero is a
factor of 1/10, so numbers between 10^-(k + 1) and 10^-k have 6 - k bits of a fraction:

    0  0 0 1  0 1 1 0       + 10^-2 * (0.1 + (6 + 1/2) / 16 * 0.9) = + 0.00466

So seven decades are covered, the largest numbers with the finest fractions, while the smallest number above 0 of a map
with equal steps is 1/127 or 1/255. A code is the place of its number in ascending order, as in bitsandbytes.
"""

from __future__ import annotations

import torch
from torch import Tensor

BITS = 8


def dynamic_map(signed: bool) -> Tensor:
    """The numbers of all codes, ascending: (256), float32. Without a sign, fractions have a bit more.

    A fraction is the middle of an equal part of 0.1 .. 1. Two codes are left over, and mean 0 and 1.
    """
    zeros = BITS - 1
    found = [torch.tensor([0.0, 1.0], dtype=torch.float64)]
    for k in range(zeros):
        parts = 2 ** (zeros - 1 - k + (not signed))
        fractions = 0.1 + 0.9 * (torch.arange(parts, dtype=torch.float64) + 0.5) / parts
        found += [10.0**-k * fractions, -(10.0**-k) * fractions][: 1 + signed]
    return torch.cat(found).sort().values.to(torch.float32)


SIGNED, UNSIGNED = dynamic_map(True), dynamic_map(False)


def nearest_code(x: Tensor, numbers: Tensor) -> Tensor:
    """The code of the nearest of `numbers` (256, ascending), of equally near ones the lower: uint8, the shape of x."""
    return torch.bucketize(x, (numbers[1:] + numbers[:-1]) / 2).to(torch.uint8)
