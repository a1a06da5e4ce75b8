"""Checkpoints that are copied while training stands still, and written while it goes on. Times in one unit, any unit.

stall is the copy (from a GPU to its host's memory, say), write the time to storage that training does not wait for.
What is being written cannot be loaded yet, so a failure throws the run back further than a synchronous one would.
"""

from __future__ import annotations

import math

from labkit.cost.failures.checkpoint_tax import Tax
from labkit.cost.refuse import not_negative, positive

__all__ = ["asynchronous_interval", "asynchronous_tax", "copy_seconds"]


def asynchronous_interval(stall: float, write: float, mtbf: float) -> float:
    """sqrt(2 stall mtbf), as often as the stall alone allows, but at least `write`: two writings do not overlap."""
    positive(stall=stall, mtbf=mtbf)
    not_negative(write=write)
    return max(math.sqrt(2 * stall * mtbf), write)


def asynchronous_tax(interval: float, stall: float, write: float, mtbf: float, restart: float = 0.0) -> Tax:
    """stall / interval + (interval / 2 + stall + write + restart) / mtbf, of first order.

    A failure loses half an interval and what passed between the copy and the end of its writing. Stalls of a tenth
    make the first term ten times less at the same interval; the best interval is then shorter by sqrt(10), if the
    writing is done by then. Raises ValueError if `interval` is shorter than `write`.
    """
    positive(interval=interval, mtbf=mtbf)
    not_negative(stall=stall, write=write, restart=restart)
    if interval < write:
        raise ValueError(
            f"interval={interval!r} is shorter than write={write!r}: the next copy would have to wait; take at least "
            f"{write!r}"
        )
    return Tax(stall / interval + (interval / 2 + stall + write + restart) / mtbf)


def copy_seconds(nbytes: float, bandwidth: float) -> float:
    """Seconds of a copy of `nbytes` at `bandwidth` bytes per second.

    FT-HSDP brings 1 GB of optimizer state from host memory in about 60 ms: 16.7 GB/s.
    """
    not_negative(nbytes=nbytes)
    positive(bandwidth=bandwidth)
    return nbytes / bandwidth
