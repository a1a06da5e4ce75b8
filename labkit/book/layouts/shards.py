"""Shards and the ranks that hold them: a column for each rank, a cell for each shard, an arrow where one moves.

Two lines of columns. Above, the ranks that compute with the shards; below, those that sum their gradients over the
replicas. A shard that is computed on one rank and summed on another says so in both places, with the other's number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from labkit.book.drawing.figure import WIDTH, Figure, heading
from labkit.book.drawing.style import BLUE, ON_COLOUR, ORANGE
from labkit.book.drawing.svg import Svg, text_width
from labkit.book.drawing.tables import Row
from labkit.book.drawing.units import listing, plural

MOST_RANKS, MOST_DEEP = 12, 16
LEFT, CELL, GAP = 92.0, 20.0, 26.0
KEY = "Frame and arrow: computed on one rank, summed on another. Before the sum the gradient goes to the second."

Shards = Sequence[Sequence[int]]


class Layouts(Protocol):
    """What is read of a `labkit.resilience.ntp.ShardMap`, or of a `ShardBoard`: shards by rank."""

    @property
    def num_shards(self) -> int: ...
    @property
    def sync(self) -> Shards: ...
    @property
    def compute(self) -> Shards: ...


def shard_layouts(
    layouts: Layouts, *, title: str = "Where the shards are", badge: str = "simulated", sentence: str | None = None
) -> Figure:
    """Who computes with each shard, who sums its gradient over the replicas, and which shards must move in between.

    layouts: a `ShardMap` of `labkit.resilience.ntp`, or a `ShardBoard`. Up to 12 ranks with 16 shards each are drawn;
    raises ValueError for more.
    """
    ranks, deep = len(layouts.compute), max(map(len, [*layouts.compute, *layouts.sync]))
    if ranks > MOST_RANKS or deep > MOST_DEEP:
        raise ValueError(
            f"{ranks} ranks with up to {deep} shards: {MOST_RANKS} ranks with {MOST_DEEP} shards can be "
            "drawn; `gives` and `counts` of the shard map say the same for more"
        )
    said = sentence if sentence is not None else in_words(layouts)
    return Figure(title, badge, said, _rows(layouts), svg=_picture(layouts, title, badge, said))


def places(layout: Shards) -> dict[int, int]:
    """By shard, the rank that has it."""
    return {shard: rank for rank, mine in enumerate(layout) for shard in mine}


def moves(layouts: Layouts) -> list[tuple[int, int, int]]:
    """(shard, computed by, summed by) of all shards for which these are two ranks."""
    holder, owner = places(layouts.compute), places(layouts.sync)
    return [(shard, holder[shard], owner[shard]) for shard in sorted(holder) if holder[shard] != owner[shard]]


def in_words(layouts: Layouts) -> str:
    """The picture for a reader who does not see it."""
    found, count = moves(layouts), layouts.num_shards
    text = f"{plural(count, 'shard')} on {plural(len(layouts.compute), 'rank')}, of which "
    text += f"{plural(sum(map(bool, layouts.sync)), 'rank')} sum them over the replicas."
    if not found:
        return f"{text} Each shard is summed where it is computed: none moves."
    text += f" {plural(len(found), 'shard')} {'moves' if len(found) == 1 else 'move'}, {len(found) / count:.1%} of all."
    for giver in sorted({a for _, a, _ in found}):
        to = sorted({b for _, a, b in found if a == giver})
        many = sum(a == giver for _, a, _ in found)
        ranks = "rank" if len(to) == 1 else "ranks"
        text += f" Rank {giver} gives {many} to {ranks} {listing([str(rank) for rank in to])}."
    return text


def _rows(layouts: Layouts) -> list[Row]:
    holder, owner = places(layouts.compute), places(layouts.sync)
    return [
        {"shard": shard, "computed by": f"rank {holder[shard]}", "summed by": f"rank {owner[shard]}",
         "moves": "yes" if holder[shard] != owner[shard] else "-"}
        for shard in sorted(holder)
    ]  # fmt: skip


def _picture(layouts: Layouts, title: str, badge: str, sentence: str) -> str:
    svg, ranks = Svg(WIDTH, title, sentence), len(layouts.compute)
    wide = min(72.0, (WIDTH - LEFT - 12) / ranks)
    y = heading(svg, badge, sentence) + 12
    holder, owner = places(layouts.compute), places(layouts.sync)
    sync = [*layouts.sync, *[[] for _ in range(ranks - len(layouts.sync))]]
    for name, what, layout, other, arrow in (
        ("compute", "holds", layouts.compute, owner, "\u2192"), ("sync", "sums", sync, holder, "\u2190"),
    ):  # fmt: skip
        svg.text(8, y + 12, name, 12.5, bold=True)
        svg.text(8, y + 28, f"a rank {what}", 11)
        for rank, mine in enumerate(layout):
            x = LEFT + rank * wide
            svg.text(x + wide / 2, y + 11, f"rank {rank}" if wide > 50 else str(rank), 11, "middle", bold=True)
            _column(svg, name, x, y + 18, wide, rank, mine, other, arrow)
        y += 18 + CELL * max(1, *map(len, layout)) + GAP
    svg.text(8, y - 6, KEY, 11)
    return svg.render(y + 6)


def _column(
    svg: Svg, name: str, x: float, y: float, wide: float, rank: int, mine: Sequence[int], other: dict[int, int],
    arrow: str,
) -> None:  # fmt: skip
    """The cells of one rank. other: by shard, the rank that has it in the other layout."""
    if not mine:
        svg.rect(x + 3, y, wide - 6, CELL - 3, dash="3 3", radius=2, hover=f"{name}: rank {rank} has no shard")
        svg.text(x + wide / 2, y + 12, "none", 10, "middle")
    for depth, shard in enumerate(mine):
        there, top = other[shard], y + depth * CELL
        moved = there != rank
        said = f"{name}: rank {rank} has shard {shard}"
        if moved:
            said += f", which rank {there} {'sums' if name == 'compute' else 'computes'}"
        svg.rect(x + 3, top, wide - 6, CELL - 3, fill=ORANGE if moved else BLUE, stroke=ON_COLOUR, radius=2,
                 stroke_width=0.7, hover=said)  # fmt: skip
        if moved:  # a frame inside of the box: a border would be lost on a dark page
            svg.rect(x + 5, top + 2, wide - 10, CELL - 7, stroke=ON_COLOUR, stroke_width=1.2, radius=1)
        word = f"{shard} {arrow} {there}" if moved else str(shard)
        size = min(10.5, (wide - 13) / text_width(word, 1.1))  # bold is wider
        svg.text(x + wide / 2, top + 12.3, word, size, "middle", bold=moved, on_colour=True)
