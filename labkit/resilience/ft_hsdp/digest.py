"""A state in 16 hex digits, fast enough for every step.

A cryptographic digest of all bytes would take longer than the optimizer. So large tensors are folded first, where
they lie: their bits, taken as 64-bit integers, in rows of a fixed width, are added up column by column (modulo 2^64),
and the digest is of the sums. Any single change, such as a flipped bit, changes its column. Changes that cancel each
other in a column would not be seen; this guards against accidents, not against forgery.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from labkit.resilience.audit import checksum

WIDTH = 1 << 14  # 64-bit columns: 128 KiB of sums


@torch.no_grad()
def digest(said: str, tensors: Iterable[Tensor]) -> str:
    """Of `said`, and of the values, dtypes, shapes and order of `tensors`."""
    parts: list[Tensor | str] = [said]
    for x in tensors:
        parts.append(f"{x.dtype}{tuple(x.shape)}")
        parts += fold(x)
    return checksum(*parts)


def fold(x: Tensor) -> list[Tensor]:
    """`x` itself if it is small; else the sums of its columns, and what is left over at its end."""
    if x.nbytes <= 16 * WIDTH or not x.is_contiguous() or x.storage_offset() * x.itemsize % 8:
        return [x]
    raw = x.view(-1).view(torch.uint8)
    whole = len(raw) // (8 * WIDTH) * 8 * WIDTH
    return [raw[:whole].view(torch.int64).view(-1, WIDTH).sum(0), raw[whole:]]
