"""Two ways of doing the same, in one world, in turn: seconds of each, and what each came to."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import labkit
from labkit import collectives

from .ratios import ratio, self_ratio

Step = Callable[[], float | None]  # one step; the loss, on ranks that know it


def in_turn(group: labkit.Group, steps: Sequence[Step], pairs: int) -> tuple[list[list[float]], list[list[float]]]:
    """(seconds, losses) of both steps on this rank, `pairs` times, the order reversed every other time.

    Two of each come first and are not counted. All ranks begin each step together.
    """
    seconds: list[list[float]] = [[], []]
    losses: list[list[float]] = [[], []]
    for i in range(-2, pairs):
        for which in (0, 1) if i % 2 else (1, 0):
            collectives.barrier(group, algorithm="dissemination")
            begin = time.perf_counter()
            loss = steps[which]()
            if i >= 0:
                seconds[which].append(time.perf_counter() - begin)
            if loss is not None:
                losses[which].append(loss)
    return seconds, losses


def row(found: Sequence[tuple[list[list[float]], list[list[float]]]], **what: Any) -> dict[str, Any]:
    """One row of the table from what `in_turn` gave on every rank: the slowest rank of each step counts.

    Raises RuntimeError if the two did not come to the same loss: then they did not do the same.
    """
    ours, theirs = ([max(times) for times in zip(*(f[0][k] for f in found), strict=True)] for k in (0, 1))
    mine, other = ([loss for f in found for loss in f[1][k]] for k in (0, 1))
    if not mine or any(abs(a - b) > 1e-4 * max(1.0, abs(b)) for a, b in zip(mine, other, strict=True)):
        raise RuntimeError(f"{what}: the losses are {mine[:3]} and {other[:3]}, so these are not the same steps")
    return {
        **what, "labkit ms": 1e3 * statistics.median(ours), "PyTorch ms": 1e3 * statistics.median(theirs),
        "time ratio": ratio(ours, theirs), "A/A": self_ratio(theirs),
    }  # fmt: skip
