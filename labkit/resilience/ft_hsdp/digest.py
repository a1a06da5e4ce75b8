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

WIDTH = 128  # 64-bit columns


@torch.no_grad()
def digest(said: str, tensors: Iterable[Tensor]) -> str:
    """Of `said`, and of the values, dtypes, shapes and order of `tensors`."""
    words = [said]
    kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for x in tensors:
        words.append(f"{x.dtype}{list(x.shape)}")
        for part in fold(x):
            kinds.setdefault((part.dtype, part.device), []).append(part)
    # few long tensors instead of many short ones: each alone costs more than its bytes
    return checksum("\n".join(words), *(torch.cat(parts).cpu() for parts in kinds.values()))


def fold(x: Tensor) -> list[Tensor]:
    """The values of `x` in one dimension if they are few; else the sums of columns, and what is left at the end."""
    flat = x.reshape(-1)
    if x.nbytes <= 16 * WIDTH or flat.storage_offset() * x.itemsize % 8:
        return [flat]
    raw = flat.view(torch.uint8)
    whole = len(raw) // (8 * WIDTH) * 8 * WIDTH
    return [raw[:whole].view(torch.int64).view(-1, WIDTH).sum(0), raw[whole:]]
