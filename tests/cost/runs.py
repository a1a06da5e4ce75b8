"""Run any algorithm of `labkit.cost` on the simulator, and say what its result must be."""

from __future__ import annotations

from collections.abc import Callable

from .programs import PROGRAMS, block, cut, own, parcel
from .simulator import Outcome, simulate

ROOTED = ("broadcast", "reduce", "scatter", "gather")
BLOCKS = ("all_gather", "scatter", "gather")


def split(numel: int, parts: int) -> list[int]:
    return [len(part) for part in cut(range(numel), parts)]


def run(
    collective: str,
    algorithm: str,
    numel: int,
    size: int,
    root: int = 0,
    ranks_per_node: int | None = None,
    counts: list | None = None,
    chunks: int | None = None,
    link: Callable[[int, int, int], float] = lambda src, dst, elements: 0.0,
) -> Outcome:
    """Simulate one collective; `numel` is that of the whole tensor, as for `labkit.cost`."""
    program = PROGRAMS[collective, algorithm]
    options: dict[str, int] = {"root": root} if collective in ROOTED else {}
    if algorithm == "chain":
        options["chunks"] = chunks or 1
    if algorithm == "hierarchical":
        options["ranks_per_node"] = ranks_per_node or size
    if collective == "barrier":
        return simulate([program(r, size) for r in range(size)], link)
    about: object = numel
    if collective in BLOCKS:
        about = counts if counts is not None else split(numel, size)
    elif collective == "all_to_all":
        about = counts if counts is not None else [split(numel, size)] * size
    return simulate([program(r, size, about, **options) for r in range(size)], link)


def expected(collective: str, numel: int, size: int, root: int = 0, counts: list | None = None) -> list[object]:
    """What each rank must end with; None where it may end with anything."""
    everyone = frozenset(range(size))
    total = [(i, everyone) for i in range(numel)]
    blocks = counts if counts is not None else split(numel, size)
    if collective == "broadcast":
        return [own(root, numel)] * size
    if collective == "reduce":
        return [total if r == root else None for r in range(size)]
    if collective == "all_reduce":
        return [total] * size
    if collective == "reduce_scatter":
        return list(cut(total, size))
    if collective == "barrier":
        return [set(everyone)] * size
    if collective == "all_to_all":
        rows = counts if counts is not None else [blocks] * size
        return [sum((parcel(q, r, rows[q][r]) for q in range(size)), []) for r in range(size)]
    whole = sum((block(r, blocks[r]) for r in range(size)), [])
    if collective == "all_gather":
        return [whole] * size
    if collective == "gather":
        return [whole if r == root else None for r in range(size)]
    return [block(r, blocks[r]) for r in range(size)]


def check_results(outcome: Outcome, wanted: list[object]) -> None:
    for rank, (got, want) in enumerate(zip(outcome.results, wanted, strict=True)):
        if want is not None:
            got = got if isinstance(got, set) else list(got)
            assert got == want, f"rank {rank} ended with {got}, not {want}"
