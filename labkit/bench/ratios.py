"""Comparing two ways of doing a thing on a noisy machine.

The two are run in turn, A B, B A, A B, ..., and compared pair by pair; the median of the pairs' ratios is the result
for one cell. Beside it stands the ratio of A against itself, measured the same way: what differs from 1 there is noise,
and no A/B ratio within it means anything. Over several cells the geometric mean is taken.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


def alternate(a: Callable[[], float], b: Callable[[], float], pairs: int) -> tuple[list[float], list[float]]:
    """Seconds of `a` and `b`, run in turn with the order reversed every other time."""
    first, second = [], []
    for i in range(pairs):
        if i % 2:
            second.append(b())
            first.append(a())
        else:
            first.append(a())
            second.append(b())
    return first, second


def ratio(base: Sequence[float], new: Sequence[float]) -> float:
    """How many times faster `new` is than `base`: the median over the pairs."""
    return statistics.median(x / y for x, y in zip(base, new, strict=True))


def self_ratio(times: Sequence[float]) -> float:
    """A against A: each run against the one after it, every other time the other way round."""
    pairs = list(zip(times[::2], times[1::2], strict=False))
    return statistics.median(x / y for x, y in pairs) if pairs else float("nan")


def geometric_mean(values: Sequence[float]) -> float:
    """The mean that treats twice as fast and half as fast alike."""
    return math.exp(sum(map(math.log, values)) / len(values))


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Rows as aligned text."""
    if not rows:
        return "(nothing)"
    heads = list(rows[0])
    text = [[f"{v:.3g}" if isinstance(v, float) else str(v) for v in row.values()] for row in rows]
    widths = [max(len(h), *(len(r[i]) for r in text)) for i, h in enumerate(heads)]
    lines = ["  ".join(c.rjust(w) for c, w in zip(line, widths, strict=True)) for line in [heads, *text]]
    return "\n".join(lines)


def save(path: str | None, result: dict[str, Any]) -> None:
    """Write the result as JSON, if a path was given."""
    if path:
        Path(path).write_text(json.dumps(result, indent=1))
