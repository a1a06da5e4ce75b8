"""Two ways of doing the same, in one world, in turn: seconds of each, and what each came to.

Beside the time stands the processors' time, all threads of all ranks: where other programs run too, waiting for a
processor is most of the one, and no part of the other.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import labkit
from labkit import collectives

from .ratios import ratio, self_ratio

Step = Callable[[], float | None]  # one step; the loss, on ranks that know it


@dataclass
class Found:
    """What one rank saw of its steps. Each is (of labkit's, of PyTorch's). Seconds on the clock, and of processors."""

    seconds: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))
    processors: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))
    losses: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))


def in_turn(group: labkit.Group, steps: Sequence[Step], pairs: int) -> Found:
    """Both steps on this rank, `pairs` times, the order reversed every other time.

    Two of each come first and are not counted. All ranks begin each step together.
    """
    found = Found()
    for i in range(-2, pairs):
        for which in (0, 1) if i % 2 else (1, 0):
            collectives.barrier(group, algorithm="dissemination")
            begin, busy = time.perf_counter(), time.process_time()
            loss = steps[which]()
            if i >= 0:
                found.seconds[which].append(time.perf_counter() - begin)
                found.processors[which].append(time.process_time() - busy)
            if loss is not None:
                found.losses[which].append(loss)
    return found


def row(found: Sequence[Found], **what: Any) -> dict[str, Any]:
    """One row of the table from what `in_turn` gave on every rank: the slowest rank of each step counts.

    Raises RuntimeError if the two did not come to the same loss: then they did not do the same.
    """
    ours, theirs = ([max(times) for times in zip(*(f.seconds[k] for f in found), strict=True)] for k in (0, 1))
    busy = [[sum(times) for times in zip(*(f.processors[k] for f in found), strict=True)] for k in (0, 1)]
    mine, other = ([loss for f in found for loss in f.losses[k]] for k in (0, 1))
    if not mine or any(abs(a - b) > 1e-4 * max(1.0, abs(b)) for a, b in zip(mine, other, strict=True)):
        raise RuntimeError(f"{what}: the losses are {mine[:3]} and {other[:3]}, so these are not the same steps")
    return {
        **what, "labkit ms": 1e3 * statistics.median(ours), "PyTorch ms": 1e3 * statistics.median(theirs),
        "time ratio": ratio(ours, theirs), "A/A": self_ratio(theirs), "CPU ratio": ratio(*busy),
        "CPU A/A": self_ratio(busy[1]),
    }  # fmt: skip
