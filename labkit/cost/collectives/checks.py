"""Refuse impossible arguments once, here, in words that name the value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral, Real

_AT_LEAST = {"size": 1, "parts": 1, "chunks": 1, "ranks_per_node": 1, "numel": 0, "itemsize": 0, "root": 0}
_MEANING = {
    "size": "number of ranks",
    "parts": "number of parts",
    "chunks": "number of chunks",
    "ranks_per_node": "number of ranks on a node",
    "numel": "number of elements",
    "itemsize": "bytes of one element",
    "root": "rank of the root",
    "nbytes": "bytes",
    "alpha": "latency in seconds",
    "beta": "seconds per byte",
    "inter_alpha": "latency between nodes in seconds",
    "inter_beta": "seconds per byte between nodes",
    "seconds": "time in seconds",
}


def check(**values: object) -> None:
    """Raise ValueError for the first of `values` (name=value) that cannot be.

    Counts (size, numel, itemsize, root, chunks, ranks_per_node) are whole numbers with a least value;
    everything else is a finite number that is not negative. With `size` given, `root` must be below it
    and `ranks_per_node` must divide it. A value of None is not checked: the caller fills it in.
    """
    for name, value in values.items():
        if value is None:
            continue
        what = f"{name} ({_MEANING[name]})"
        if name in _AT_LEAST:
            if isinstance(value, bool) or not isinstance(value, Integral):
                raise ValueError(f"{what} must be a whole number, not {value!r}")
            if value < _AT_LEAST[name]:
                raise ValueError(f"{what} must be at least {_AT_LEAST[name]}, not {value}")
        elif not isinstance(value, Real) or not math.isfinite(value) or value < 0:
            raise ValueError(f"{what} must be a number of at least 0, not {value!r}")
    size, root, per_node = values.get("size"), values.get("root"), values.get("ranks_per_node")
    if isinstance(size, int) and isinstance(root, int) and root >= size:
        raise ValueError(f"root (rank of the root) must be one of 0 to {size - 1}, not {root}")
    if isinstance(size, int) and isinstance(per_node, int) and size % per_node:
        raise ValueError(f"ranks_per_node must divide the {size} ranks, and {per_node} does not")


def check_counts(counts: Sequence[int], size: int) -> list[int]:
    """One element count a rank, as a list."""
    if len(counts) != size:
        raise ValueError(f"counts must have one entry for each of the {size} ranks, not {len(counts)}")
    for count in counts:
        check(numel=count)
    return list(counts)


def check_matrix(counts: Sequence[Sequence[int]], size: int) -> list[list[int]]:
    """`counts[r][q]`: the elements that rank r has for rank q, as lists."""
    if len(counts) != size:
        raise ValueError(f"counts must have one row for each of the {size} ranks, not {len(counts)}")
    return [check_counts(row, size) for row in counts]
