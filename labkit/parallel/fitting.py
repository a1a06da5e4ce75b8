"""Sizes of a mesh: which can be, and which that can are nearest to those that cannot."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from labkit.wire.errors import RefusedError

MOST_NAMED = 3


def checked_sizes(sizes: Any) -> dict[str, int]:
    """`sizes` as a dict, if it names one axis or more, each with a whole number of ranks."""
    if not isinstance(sizes, Mapping) or not sizes:
        raise RefusedError(f'mesh sizes {sizes!r}: needs ranks by axis, such as {{"dp": 2, "tp": 4}}')
    for axis, size in sizes.items():
        if not isinstance(axis, str) or not axis.isidentifier():
            raise RefusedError(f"mesh axis {axis!r}: needs a name of letters and digits, such as 'dp' or 'tp'")
        if type(size) is not int or size < 1:
            raise RefusedError(f"mesh axis {axis!r} has size {size!r}: needs a whole number of ranks, 1 or more")
    return dict(sizes)


def check_fits(sizes: Mapping[str, int], world_size: int) -> None:
    """Raise `RefusedError` unless the product of `sizes` is `world_size`; names the nearest sizes that would do."""
    product = math.prod(sizes.values())
    if product == world_size:
        return
    written = " x ".join(map(str, sizes.values()))
    near = " or ".join(named(found) for found in nearest(sizes, world_size))
    raise RefusedError(
        f"mesh {named(sizes)} has {written} = {product} places, and the group has {world_size} "
        f"rank{'' if world_size == 1 else 's'}. The nearest that fits: {near}; or use {product} "
        f"rank{'' if product == 1 else 's'}"
    )


def nearest(sizes: Mapping[str, int], world_size: int) -> list[dict[str, int]]:
    """Sizes of the same axes whose product is `world_size`, by the least change in proportion; ties together.

    The change is the sum over the axes of |log(new / old)|: twice as many and half as many are equally far.
    """
    wanted = list(sizes.values())

    def change(found: tuple[int, ...]) -> float:
        return round(sum(abs(math.log(new / old)) for new, old in zip(found, wanted, strict=True)), 9)

    every = sorted((change(found), found) for found in _products(world_size, len(wanted)))
    best = [found for far, found in every if far == every[0][0]]
    return [dict(zip(sizes, found, strict=True)) for found in best[:MOST_NAMED]]


def _products(number: int, factors: int) -> Iterator[tuple[int, ...]]:
    """All ways to write `number` as an ordered product of so many factors."""
    if factors == 1:
        yield (number,)
        return
    for first in range(1, number + 1):
        if number % first == 0:
            for rest in _products(number // first, factors - 1):
                yield first, *rest


def named(sizes: Mapping[str, int]) -> str:
    """Sizes as one would type them: dp=2, tp=4."""
    return ", ".join(f"{axis}={size}" for axis, size in sizes.items())
