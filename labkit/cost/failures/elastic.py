"""A part is gone: wait for another one, or go on smaller? Times in one unit, any unit."""

from __future__ import annotations

from labkit.cost.refuse import not_negative, whole

__all__ = ["going_on_smaller", "shortest_wait_for_smaller"]


def going_on_smaller(wait: float, restart: float, write: float, smaller: int, size: int) -> float:
    """Full-size time that is gained by going on with `smaller` of `size` ranks, instead of standing still for `wait`.

    Who waits restarts once, when the other part is there. Who goes on restarts at once, trains smaller until then,
    writes a checkpoint and restarts as well: (wait - restart) smaller / size - write. Below 0: waiting is better; so it
    is where the other part is there before the first restart is over. A rank less of 8, a wait of 10 min, a restart
    of 2 and a write of 1: 6 min gained.
    """
    not_negative(wait=wait, restart=restart, write=write)
    _check(smaller, size)
    return (wait - restart) * smaller / size - write if wait > restart else wait - restart


def shortest_wait_for_smaller(restart: float, write: float, smaller: int, size: int) -> float:
    """The wait from which going on smaller pays: restart + write size / smaller."""
    not_negative(restart=restart, write=write)
    _check(smaller, size)
    return restart + write * size / smaller


def _check(smaller: int, size: int) -> None:
    whole(smaller=smaller, size=size)
    if smaller >= size:
        raise ValueError(f"smaller={smaller!r} must be below size={size!r}")
