"""What each rank holds before a collective and what it should hold after it: the promise, not the way there.

Everything is said of one tensor, cut into chunks: the tensor that is reduced or broadcast, or the joined result of
a gather. A chunk's content is the sorted tuple of the ranks whose contributions are in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

Held = tuple[int, ...]
REDUCTIONS = ("all_reduce", "reduce", "reduce_scatter")


def owners(name: str, ranks: tuple[int, ...], bounds: tuple[int, ...], shape: Sequence[int]) -> list[int | None]:
    """For each chunk the index of the rank whose part it lies in, None where it spans parts.

    Parts are rows of the first dimension, as `torch.tensor_split` cuts them; for gathers, equal blocks.
    """
    size, total = len(ranks), bounds[-1]
    if name == "reduce_scatter" or name == "scatter":
        rows = shape[0] if shape else 1
        width = prod(shape[1:])
        small, longer = divmod(rows, size)
        ends = [(i * small + min(i, longer)) * width for i in range(size + 1)]
    else:
        ends = [i * total // size for i in range(size + 1)]
    return [
        next((i for i in range(size) if ends[i] <= a and b <= ends[i + 1] and a < ends[i + 1]), None)
        for a, b in zip(bounds, bounds[1:], strict=False)
    ]


def start(
    name: str, root: int, ranks: tuple[int, ...], bounds: tuple[int, ...], shape: Sequence[int]
) -> list[list[Held]]:
    """held[i][c] at the beginning."""
    chunks = len(bounds) - 1
    if name in REDUCTIONS:
        return [[(rank,)] * chunks for rank in ranks]
    if name in ("broadcast", "scatter"):
        return [[(rank,) if i == root else ()] * chunks for i, rank in enumerate(ranks)]
    mine = owners(name, ranks, bounds, shape)
    return [[(rank,) if mine[c] == i else () for c in range(chunks)] for i, rank in enumerate(ranks)]


def goal(
    name: str, root: int, ranks: tuple[int, ...], bounds: tuple[int, ...], shape: Sequence[int]
) -> list[list[Held | None]]:
    """held[i][c] as it should be at the end; None where nothing is promised."""
    chunks = len(bounds) - 1
    everyone = tuple(sorted(ranks))
    if name == "all_reduce":
        return [[everyone] * chunks for _ in ranks]
    if name == "reduce":
        return [[everyone if i == root else None] * chunks for i in range(len(ranks))]
    if name == "broadcast":
        return [[(ranks[root],)] * chunks for _ in ranks]
    mine = owners(name, ranks, bounds, shape)
    full: list[Held | None] = [None if o is None else (ranks[o],) for o in mine]
    if name == "all_gather" or name == "gather":
        return [list(full) if name == "all_gather" or i == root else [None] * chunks for i in range(len(ranks))]
    what = everyone if name == "reduce_scatter" else (ranks[root],)
    return [[what if mine[c] == i else None for c in range(chunks)] for i in range(len(ranks))]
