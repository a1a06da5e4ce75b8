"""What the programs of the exercises return, computed on one rank: what their checks compare with."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from labkit.chapters.c18_checkpoints.checks import order_of


def batches(place: tuple[int, int], size: int, count: int, each: int, seed: int, steps: int) -> tuple[list[Any], Any]:
    """([rank][step] -> examples, the place then), from a place: (epoch, examples of it that were seen)."""
    epoch, seen = place
    dealt: list[list[Tensor]] = [[] for _ in range(size)]
    for _ in range(steps):
        if seen == count:
            epoch, seen = epoch + 1, 0
        coming = order_of(count, seed, epoch)[seen : seen + each * size]
        seen += len(coming)
        for rank, own in enumerate(coming.tensor_split(size)):
            dealt[rank].append(own.clone())
    return dealt, (epoch, seen)


def last_whole(steps: int, every: int, parts: int) -> int:
    """Of which step the newest copy is that has arrived whole after `steps` steps; 0: of none."""
    return max((k for k in range(every, steps + 1, every) if k + parts - 1 <= steps), default=0)
