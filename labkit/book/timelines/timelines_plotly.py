"""The timeline as a plotly figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from labkit.book.drawing.boxes import Box
from labkit.book.drawing.figure import axis, plotly_spec
from labkit.book.drawing.style import CLEAR, INK, KINDS, ON_COLOUR
from labkit.book.drawing.svg import text_width
from labkit.book.drawing.units import seconds_unit

if TYPE_CHECKING:
    from labkit.book.timelines.timelines import Scene


NARROWEST = 480  # pixels: how wide the plot is where there is little room


def spec(scene: Scene, title: str, badge: str, names: Mapping[str, str]) -> dict[str, Any]:
    """Plotly's form: one bar trace per kind of box, so that the legend switches kinds on and off."""
    unit, name = seconds_unit(scene.window[1] - scene.zero)
    row = {rank: index for index, rank in enumerate(scene.ranks)}
    data: list[dict[str, Any]] = []
    thin = (scene.window[1] - scene.window[0]) / 120  # an outline would be most of a narrower box
    for kind in scene.kinds:
        mine = [b for b in scene.boxes if b.kind == kind]
        outline = kind in ("collective", "native")
        look = KINDS["span" if outline else kind]
        fill = "rgba(128,128,128,0.10)" if kind == "collective" else CLEAR if look.colour == "none" else look.colour
        edges = [0.5 if b.end - b.start > thin else 0 for b in mine]
        hatch = "+" if kind == "native" else "" if outline else look.hatch
        data.append({
            "type": "bar", "orientation": "h", "name": names[kind],
            "base": [_tidy((b.start - scene.zero) / unit) for b in mine],
            "x": [_tidy((b.end - b.start) / unit) for b in mine],
            "y": [_tidy(row[b.rank] + sum(scene.lanes[b.lane]) - _height(scene, b) / 2) for b in mine],
            "width": [_tidy(_height(scene, b)) for b in mine],
            "hovertext": [b.hover for b in mine], "hoverinfo": "text",
            "text": [_name(scene, b) for b in mine],
            "textposition": "inside", "insidetextanchor": "start", "textangle": 0,
            "textfont": {"color": INK if kind == "collective" else ON_COLOUR, "size": 11},
            "marker": {
                "color": fill,
                "line": {"width": 1 if outline else edges, "color": INK if fill == CLEAR or outline else ON_COLOUR},
                "pattern": {"shape": hatch, "size": 6, "solidity": 0.06 if hatch == "." else 0.2, "bgcolor": fill,
                            "fgcolor": INK if fill == CLEAR else ON_COLOUR,
                            "fgopacity": 0.3 if kind in ("compute", "span") else 1},  # names are read on top of it
            },
        })  # fmt: skip
        if kind == "collective":  # its label goes to the top of its box, above the messages inside it
            data[-1]["text"] = [""] * len(mine)
            data.append(_collective_labels(scene, mine, row, unit))
    if scene.arrows:
        data.append(_arrows(scene, unit))
    layout: dict[str, Any] = {
        "barmode": "overlay", "uniformtext": {"minsize": 9, "mode": "hide"}, "hovermode": "closest",
        "xaxis": axis(f"time ({name})", range=[_tidy((t - scene.zero) / unit) for t in scene.window]),
        "yaxis": axis(
            range=[len(scene.ranks), 0], tickmode="array", tickvals=[i + 0.5 for i in range(len(scene.ranks))],
            ticktext=[f"rank {r}" for r in scene.ranks], showgrid=False,
        ),
        "shapes": [
            {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": i, "y1": i, "line": {"width": 0.5, "color": INK}}
            for i in range(1, len(scene.ranks))
        ],
    }  # fmt: skip
    height = int(scene.row_height * len(scene.ranks))
    return plotly_spec(title, badge, data, height, **layout)


def _height(scene: Scene, box: Box) -> float:
    """Of a box, as a part of a row: its lane's, or as much of that as the boxes that are drawn as this one fill."""
    return scene.lanes[box.lane][1] * (1 if box.lane == "collective" else box.share)


def _name(scene: Scene, box: Box) -> str:
    """What stands in a box, where there is room; plotly leaves it out where there is not."""
    pixels = (box.end - box.start) * NARROWEST / (scene.window[1] - scene.window[0])
    short = scene.initials and box.lane == "work" and text_width(box.label, 11) + 8 > pixels
    return box.label[:1] if short else box.label


def _collective_labels(scene: Scene, mine: Sequence[Box], row: dict[int, int], unit: float) -> dict[str, Any]:
    pixels = NARROWEST / (scene.window[1] - scene.window[0])
    wide = [b for b in mine if scene.roomy and text_width(b.label, 10.5) + 6 < (b.end - b.start) * pixels]
    return {
        "type": "scatter", "mode": "text", "showlegend": False, "hoverinfo": "skip", "textposition": "bottom right",
        "x": [_tidy((b.start - scene.zero) / unit) for b in wide], "text": [b.label for b in wide],
        "y": [_tidy(row[b.rank] + scene.lanes["collective"][0] + 0.03) for b in wide],
        "textfont": {"size": 10.5, "color": INK},
    }  # fmt: skip


def _arrows(scene: Scene, unit: float) -> dict[str, Any]:
    """All messages as one line trace with gaps; the marker at the end of each piece is an arrow head."""
    x: list[float | None] = []
    y: list[float | None] = []
    for x1, y1, x2, y2 in map(scene.arrow, scene.arrows):
        x += [_tidy((x1 - scene.zero) / unit), _tidy((x2 - scene.zero) / unit), None]
        y += [_tidy(y1), _tidy(y2), None]
    return {
        "type": "scatter", "mode": "lines+markers", "name": "message", "x": x, "y": y, "hoverinfo": "skip",
        "line": {"color": INK, "width": 1},
        "marker": {"symbol": "arrow", "angleref": "previous", "size": [0, 8, 0] * len(scene.arrows), "color": INK,
                   "line": {"width": 0}},
    }  # fmt: skip


def _tidy(value: float) -> float:
    """Six decimals of the axis' unit: enough for a picture, and the same text on every machine."""
    return round(float(value), 6)
