"""Matrices and how ranks share them: by columns, by rows, whole on every rank, or as a sum of which each has a part.

A picture of a chain of products. Strips are columns or rows, one for each rank; cards that lie behind each other are
matrices of full size, one on each rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from labkit.book.drawing.figure import WIDTH, Figure, axis, heading, plotly_spec
from labkit.book.drawing.style import INK, ON_COLOUR, SERIES
from labkit.book.drawing.svg import Svg, text_width
from labkit.book.drawing.tables import Row
from labkit.book.drawing.units import plural

WAYS = {
    "whole": "whole, on every rank",
    "columns": "by columns",
    "rows": "by rows",
    "sum": "sum: a partial sum on each",
}
MOST = 8  # ranks that get a colour and a strip of their own
TALLEST, WIDEST = 118.0, 150.0
KEY = "Strips: a part for each rank. Cards: full size on each rank, all alike or, with +, partial sums of a sum."
ALIKE = "#e3e3e3"  # what all ranks hold
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
    return Figure(
        title, badge, text, _rows(matrices, ranks),
        svg=_picture(items, ranks, title, badge, text), spec=_spec(items, ranks, title, badge),
    )  # fmt: skip


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


@dataclass(frozen=True)
class _Box:
    """A filled rectangle, in pixels from the top left."""

    x: float
    y: float
    width: float
    height: float
    colour: str
    said: str


@dataclass(frozen=True)
class _Word:
    """A text around its middle; its baseline at `y`."""

    x: float
    y: float
    text: str
    size: float
    bold: bool = False
    on_colour: bool = False


@dataclass(frozen=True)
class _Scene:
    """What both forms of the picture draw."""

    boxes: list[_Box]
    words: list[_Word]
    height: float


def _scene(items: Sequence[Cut | str], ranks: int) -> _Scene:
    matrices = [item for item in items if isinstance(item, Cut)]
    words = sum(text_width(item, 12) + 16 for item in items if isinstance(item, str))
    cards = sum(CARD * (ranks - 1) for m in matrices if m.way in ("sum", "whole"))
    labels = [text_width(f"{m.rows} x {m.columns}", 10) + 8 for m in matrices]
    unit, drawn = _scale(matrices, WIDTH - 24 - words - cards)
    sizes = [(max(drawn[m.columns] * unit, 26.0), max(drawn[m.rows] * unit, 26.0)) for m in matrices]
    tallest = max(height for _, height in sizes)
    middle = (tallest + CARD * (ranks - 1)) / 2
    bottom = middle + tallest / 2 + CARD * (ranks - 1)
    scene, x, number = _Scene([], [], bottom + 32), 10.0, 0
    for item in items:
        if isinstance(item, str):
            wide = text_width(item, 12) + 16
            sign = {"x": "\u00d7"}.get(item, item)
            scene.words.append(_Word(x + wide / 2, middle + 4, sign, 12, bold=item not in ("x", "=")))
            x += wide
            continue
        (width, height), label = sizes[number], labels[number]
        behind = CARD * (ranks - 1) if item.way in ("sum", "whole") else 0.0
        place = x + max(0.0, (label - width - behind) / 2)
        _add(scene, item, place, middle - (height + behind) / 2, width, height, ranks)
        centre = place + (width + behind) / 2
        scene.words.append(_Word(centre, bottom + 14, item.name, 12.5, bold=True))
        scene.words.append(_Word(centre, bottom + 28, f"{item.rows} \u00d7 {item.columns}", 10))
        x += max(width + behind, label)
        number += 1
    return scene


def _add(scene: _Scene, m: Cut, x: float, y: float, width: float, height: float, ranks: int) -> None:
    """One matrix: strips side by side, or cards one behind the other."""
    for rank in range(ranks):
        said = f"{m.name}, rank {rank}: {m.part(ranks)[0]} x {m.part(ranks)[1]}, {WAYS[m.way]}"
        if m.way == "columns":
            box = (x + rank * width / ranks, y, width / ranks, height)
        elif m.way == "rows":
            box = (x, y + rank * height / ranks, width, height / ranks)
        else:
            box = (x + CARD * rank, y + CARD * rank, width, height)  # rank 0 lies at the back, the last one in front
        scene.boxes.append(_Box(*box, ALIKE if m.way == "whole" else SERIES[rank].colour, said))
        strip = m.way in ("columns", "rows")
        if min(box[2:]) >= 9 if strip else rank == ranks - 1:
            word = str(rank) if strip else "+" if m.way == "sum" else "all"
            scene.words.append(_Word(box[0] + box[2] / 2, box[1] + box[3] / 2 + 4, word, 11, on_colour=True))


def _picture(items: Sequence[Cut | str], ranks: int, title: str, badge: str, sentence: str) -> str:
    svg, scene = Svg(WIDTH, title, sentence), _scene(items, ranks)
    top = heading(svg, badge, sentence) + 10
    for b in scene.boxes:
        svg.rect(b.x, top + b.y, b.width, b.height, fill=b.colour, stroke=ON_COLOUR, stroke_width=0.8, hover=b.said)
    for w in scene.words:
        svg.text(w.x, top + w.y, w.text, w.size, "middle", bold=w.bold, on_colour=w.on_colour)
    svg.text(8, top + scene.height + 20, KEY, 11)
    return svg.render(top + scene.height + 32)


def _spec(items: Sequence[Cut | str], ranks: int, title: str, badge: str) -> dict[str, Any]:
    scene = _scene(items, ranks)
    shapes = [
        {"type": "rect", "x0": b.x, "x1": b.x + b.width, "y0": b.y, "y1": b.y + b.height, "fillcolor": b.colour,
         "line": {"color": ON_COLOUR, "width": 0.8}, "layer": "below"}
        for b in scene.boxes
    ]  # fmt: skip
    notes = [
        {"x": w.x, "y": w.y - 0.36 * w.size, "text": f"<b>{w.text}</b>" if w.bold else w.text, "showarrow": False,
         "font": {"size": w.size, "color": ON_COLOUR if w.on_colour else INK}}
        for w in scene.words
    ]  # fmt: skip
    data = [{
        "type": "scatter", "mode": "markers", "x": [b.x + b.width / 2 for b in scene.boxes],
        "y": [b.y + b.height / 2 for b in scene.boxes], "marker": {"opacity": 0, "size": 12},
        "hovertext": [b.said for b in scene.boxes], "hoverinfo": "text", "showlegend": False,
    }]  # fmt: skip
    bare: dict[str, Any] = {
        "showgrid": False,
        "showticklabels": False,
        "ticks": "",
        "showline": False,
        "fixedrange": True,
    }
    return plotly_spec(
        title, badge, data, round(scene.height), above=4, below=34, annotations=notes, shapes=shapes,
        xaxis=axis(KEY, range=[0, WIDTH], **bare), yaxis=axis(range=[scene.height, -2], **bare),
    )  # fmt: skip
