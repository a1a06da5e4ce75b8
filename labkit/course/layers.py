"""A layered drawing of a graph without circles: which row and which place each node gets.

Rows by the longest path from a node without predecessors; an arrow over several rows gets a bend in each row between;
within a row, nodes stand near the middle of their neighbours (Sugiyama, Tagawa and Toda 1981, the barycentre rule).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Bend = tuple[int, int, int]  # from, to, row: where the arrow from one node to another passes a row
Place = int | Bend


@dataclass(frozen=True)
class Drawing:
    """Rows from top to bottom, each from left to right, and for every arrow the places it passes, ends included."""

    rows: list[list[Place]]
    arrows: dict[tuple[int, int], list[Place]]


def layered(before: Mapping[int, Sequence[int]], sweeps: int = 12) -> Drawing:
    """Lay out the nodes of `before` (node: those it comes after). A node must come later in the mapping than those."""
    row_of: dict[int, int] = {}
    for node, others in before.items():
        row_of[node] = 1 + max((row_of[other] for other in others), default=-1)
    arrows: dict[tuple[int, int], list[Place]] = {}
    rows: list[list[Place]] = [[] for _ in range(1 + max(row_of.values(), default=-1))]
    for node, row in row_of.items():
        rows[row].append(node)
    for node, others in before.items():
        for other in others:
            between = range(row_of[other] + 1, row_of[node])
            bends: list[Place] = [(other, node, row) for row in between]
            for row, bend in zip(between, bends, strict=True):
                rows[row].append(bend)
            arrows[other, node] = [other, *bends, node]
    neighbours: dict[Place, list[Place]] = {place: [] for row_ in rows for place in row_}
    for path in arrows.values():
        for upper, lower in zip(path, path[1:], strict=False):
            neighbours[upper].append(lower)
            neighbours[lower].append(upper)
    fewest, result = crossings(rows, arrows), [list(row_) for row_ in rows]
    for sweep in range(sweeps):
        _sort_rows(rows, neighbours, downwards=sweep % 2 == 0)
        if (now := crossings(rows, arrows)) < fewest:
            fewest, result = now, [list(row_) for row_ in rows]
    return Drawing(result, arrows)


def _sort_rows(rows: list[list[Place]], neighbours: Mapping[Place, list[Place]], downwards: bool) -> None:
    """Move every place next to the mean position of its neighbours in the row just sorted."""
    order = range(1, len(rows)) if downwards else range(len(rows) - 2, -1, -1)
    for at in order:
        fixed = rows[at - 1 if downwards else at + 1]
        position = {place: index - (len(fixed) - 1) / 2 for index, place in enumerate(fixed)}

        def centre(place: Place, position: dict[Place, float] = position) -> float:
            there = [position[other] for other in neighbours[place] if other in position]
            return sum(there) / len(there) if there else 0.0

        rows[at].sort(key=centre)  # stable: equal ones keep their order


def crossings(rows: list[list[Place]], arrows: Mapping[tuple[int, int], list[Place]]) -> int:
    """How many pairs of arrows cross between neighbouring rows."""
    at = {place: (number, index) for number, row in enumerate(rows) for index, place in enumerate(row)}
    pieces: dict[int, list[tuple[int, int]]] = {}
    for path in arrows.values():
        for upper, lower in zip(path, path[1:], strict=False):
            pieces.setdefault(at[upper][0], []).append((at[upper][1], at[lower][1]))
    return sum(
        (a[0] - b[0]) * (a[1] - b[1]) < 0
        for lines in pieces.values()
        for index, a in enumerate(lines)
        for b in lines[:index]
    )
