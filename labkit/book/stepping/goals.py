"""What each rank holds before a collective and what it should hold after it: the promise, not the way there.

Everything is said of one tensor, cut into chunks: the tensor that is reduced, broadcast or scattered, or the joined
result of a gather. A chunk's content is the sorted tuple of the ranks whose contributions are in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

Held = tuple[int, ...]
FOLLOWED = ("all_reduce", "reduce", "reduce_scatter", "broadcast", "scatter", "all_gather", "gather")
JOINING = ("all_gather", "gather")
REDUCTIONS = ("all_reduce", "reduce", "reduce_scatter")


Shapes = Sequence[Sequence[int]]  # of each rank's input


def ends(name: str, size: int, shapes: Shapes) -> list[int]:
    """Where each rank's part ends, in elements; a 0 before them.

    Gathers join the ranks' inputs. Scatters cut rows of the first dimension, as `torch.tensor_split` does.
    """
    if name in JOINING:
        return [sum(prod(shape) for shape in shapes[:i]) for i in range(size + 1)]
    rows, width = (shapes[0][0] if shapes[0] else 1), prod(shapes[0][1:])
    small, longer = divmod(rows, size)
    return [(i * small + min(i, longer)) * width for i in range(size + 1)]


def owners(name: str, size: int, bounds: tuple[int, ...], shapes: Shapes) -> list[int | None]:
    """For each chunk the index of the rank whose part it lies in, None where it spans parts."""
    edge = ends(name, size, shapes)
    return [
        next((i for i in range(size) if edge[i] <= a and b <= edge[i + 1] and a < edge[i + 1]), None)
        for a, b in zip(bounds, bounds[1:], strict=False)
    ]


def start(name: str, root: int, ranks: tuple[int, ...], bounds: tuple[int, ...], shapes: Shapes) -> list[list[Held]]:
    """held[i][c] at the beginning. root: an index of `ranks`, as i is."""
    chunks = len(bounds) - 1
    if name in REDUCTIONS:
        return [[(rank,)] * chunks for rank in ranks]
    if name in ("broadcast", "scatter"):
        return [[(rank,) if i == root else ()] * chunks for i, rank in enumerate(ranks)]
    mine = owners(name, len(ranks), bounds, shapes)
    return [[(rank,) if mine[c] == i else () for c in range(chunks)] for i, rank in enumerate(ranks)]


def goal(
    name: str, root: int, ranks: tuple[int, ...], bounds: tuple[int, ...], shapes: Shapes
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
    mine = owners(name, len(ranks), bounds, shapes)
    full: list[Held | None] = [None if o is None else (ranks[o],) for o in mine]
    if name in JOINING:
        nothing: list[Held | None] = [None] * chunks
        return [list(full) if name == "all_gather" or i == root else nothing for i in range(len(ranks))]
    what = everyone if name == "reduce_scatter" else (ranks[root],)
    return [[what if mine[c] == i else None for c in range(chunks)] for i in range(len(ranks))]
