"""Matrices and how ranks share them: by columns, by rows, whole on every rank, or as a sum of which each has a part.

A picture of a chain of products. Strips are columns or rows, one for each rank; cards that lie behind each other are
matrices of full size, one on each rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from labkit.book.figure import WIDTH, Figure, heading
from labkit.book.style import GREY, ON_COLOUR, SERIES
from labkit.book.svg import Svg, text_width
from labkit.book.tables import Row
from labkit.book.units import plural

WAYS = {
    "whole": "whole, on every rank",
    "columns": "by columns",
    "rows": "by rows",
    "sum": "sum: an addend on each",
}
MOST = 8  # ranks that get a colour and a strip of their own
TALLEST, WIDEST = 118.0, 150.0
CARD = 5.0  # how far a card stands out behind the one before it


@dataclass(frozen=True)
class Cut:
    """A matrix of `rows` by `columns`, and how ranks share it: "whole", "columns", "rows" or "sum"."""

    name: str
    way: str
    rows: int
    columns: int

    def part(self, ranks: int) -> tuple[int, int]:
        """Rows and columns of the largest part that a rank holds."""
        return (-(-self.rows // ranks) if self.way == "rows" else self.rows,
                -(-self.columns // ranks) if self.way == "columns" else self.columns)  # fmt: skip


def cuts(
    chain: Sequence[tuple[str, str, tuple[int, int]] | str], ranks: int, *, title: str = "Who holds what",
    badge: str = "simulated", sentence: str | None = None,
) -> Figure:  # fmt: skip
    """A chain of matrices, left to right.

    chain: (name, way, (rows, columns)) for a matrix, with way "whole", "columns", "rows" or "sum" (every rank has a
    matrix of full size, and only their sum is meant); and between them words such as "x", "=", "GELU", "all-reduce".
    ranks: how many share it; 2 to 8 are drawn.
    """
    items = [item if isinstance(item, str) else Cut(item[0], item[1], *item[2]) for item in chain]
    matrices = [item for item in items if isinstance(item, Cut)]
    for matrix in matrices:
        if matrix.way not in WAYS:
            raise ValueError(f"{matrix.name!r} is shared {matrix.way!r}: use one of {', '.join(map(repr, WAYS))}")
    if not matrices or not 1 <= ranks <= MOST:
        raise ValueError(f"cuts draws at least one matrix and 1 to {MOST} ranks, not {len(matrices)} and {ranks}")
    text = sentence or _sentence(items, ranks)
    return Figure(title, badge, text, _rows(matrices, ranks), svg=_picture(items, ranks, title, badge, text))


def _sentence(items: Sequence[Cut | str], ranks: int) -> str:
    said = {"x": "times", "=": "gives"}
    words = [f"{item.name} ({WAYS[item.way]})" if isinstance(item, Cut) else said.get(item, f"then {item}:")
             for item in items]  # fmt: skip
    return f"{plural(ranks, 'rank')}: {' '.join(words)}."


def _rows(matrices: Sequence[Cut], ranks: int) -> list[Row]:
    rows: list[Row] = []
    for matrix in matrices:
        (whole, wide), (tall, narrow) = (matrix.rows, matrix.columns), matrix.part(ranks)
        rows.append({"matrix": matrix.name, "shape": f"{whole} x {wide}", "shared": WAYS[matrix.way],
                     "on each rank": f"{tall} x {narrow}"})  # fmt: skip
    return rows


def _scale(matrices: Sequence[Cut], room: float) -> tuple[float, dict[int, float]]:
    """(pixels of a unit, drawn length of each size). Lengths are drawn by their square roots: 4 d is twice d."""
    sizes = {size for m in matrices for size in (m.rows, m.columns)}
    drawn = {size: float(size) ** 0.5 for size in sizes}
    wide = sum(drawn[m.columns] for m in matrices)
    unit = min(room / wide, WIDEST / max(drawn[m.columns] for m in matrices),
               TALLEST / max(drawn[m.rows] for m in matrices))  # fmt: skip
    return unit, drawn


def _picture(items: Sequence[Cut | str], ranks: int, title: str, badge: str, sentence: str) -> str:
    svg = Svg(WIDTH, title, sentence)
    top = heading(svg, badge, sentence) + 10
    matrices = [item for item in items if isinstance(item, Cut)]
    words = sum(text_width(item, 12) + 16 for item in items if isinstance(item, str))
    cards = sum(CARD * (ranks - 1) for m in matrices if m.way in ("sum", "whole"))
    labels = [max(0.0, text_width(f"{m.rows} x {m.columns}", 10) + 8) for m in matrices]
    unit, drawn = _scale(matrices, WIDTH - 24 - words - cards)
    widths = [max(drawn[m.columns] * unit, 26.0) for m in matrices]
    heights = [max(drawn[m.rows] * unit, 26.0) for m in matrices]
    middle = top + (max(heights) + CARD * (ranks - 1)) / 2
    x, number, bottom = 10.0, 0, middle + max(heights) / 2 + CARD * (ranks - 1)
    for item in items:
        if isinstance(item, str):
            svg.text(x + 8, middle + 4, {"x": "\u00d7"}.get(item, item), 12, bold=item not in ("x", "="))
            x += text_width(item, 12) + 16
            continue
        width, height, label = widths[number], heights[number], labels[number]
        behind = CARD * (ranks - 1) if item.way in ("sum", "whole") else 0.0
        place = x + max(0.0, (label - width - behind) / 2)
        _matrix(svg, item, place, middle - (height + behind) / 2, width, height, ranks)
        centre = place + (width + behind) / 2
        svg.text(centre, bottom + 14, item.name, 12.5, "middle", bold=True)
        svg.text(centre, bottom + 28, f"{item.rows} \u00d7 {item.columns}", 10, "middle")
        x += max(width + behind, label)
        number += 1
    svg.text(8, bottom + 52, "A strip with a number: the part of that rank. Cards behind each other: "
             "full size, one on each rank: all alike, or (+) addends of a sum.", 11)  # fmt: skip
    return svg.render(bottom + 64)


def _matrix(svg: Svg, m: Cut, x: float, y: float, width: float, height: float, ranks: int) -> None:
    for rank in range(ranks):
        look = SERIES[rank]
        hover = f"{m.name}, rank {rank}: {m.part(ranks)[0]} x {m.part(ranks)[1]}, {WAYS[m.way]}"
        if m.way == "columns":
            wide = width / ranks
            box = (x + rank * wide, y, wide, height)
        elif m.way == "rows":
            tall = height / ranks
            box = (x, y + rank * tall, width, tall)
        else:
            back = CARD * (ranks - 1 - rank)  # rank 0 lies at the back, the last one in front
            box = (x + CARD * (ranks - 1) - back, y + CARD * (ranks - 1) - back, width, height)
        svg.rect(*box, fill=GREY if m.way == "whole" else look.colour, stroke=ON_COLOUR, stroke_width=0.8, hover=hover)
        if m.way in ("columns", "rows"):
            if min(box[2], box[3]) >= 9:
                svg.text(box[0] + box[2] / 2, box[1] + box[3] / 2 + 4, str(rank), 11, "middle", on_colour=True)
        elif rank == ranks - 1:
            word = "+" if m.way == "sum" else "all"
            svg.text(box[0] + width / 2, box[1] + height / 2 + 4, word, 12, "middle", on_colour=True)
