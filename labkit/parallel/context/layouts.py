"""Which positions of a sequence a rank holds: contiguous, striped or zigzag, see `cost.context_ranges`.

Under a causal mask a late position reads more keys than an early one. A contiguous part is therefore little work on the
first rank and much on the last; the other two give every rank early and late positions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from labkit.cost.parallel.context import context_ranges
from labkit.wire.errors import RefusedError


def positions_of(rank: int, size: int, length: int, layout: str = "zigzag") -> Tensor:
    """The positions of `rank`, ascending, int64. Raises RefusedError for an unknown layout or too short a sequence."""
    try:
        ranges = context_ranges(rank, size, length, layout)
    except ValueError as error:
        raise RefusedError(str(error)) from None
    return torch.cat([torch.arange(part.start, part.stop, part.step) for part in ranges])
