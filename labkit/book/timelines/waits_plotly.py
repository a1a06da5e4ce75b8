"""The wait-for picture as a plotly figure: straight arrows between ranks, side by side where they go both ways."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from labkit.book.drawing.figure import plotly_spec
from labkit.book.drawing.style import GREY, INK, ON_COLOUR, ORANGE

if TYPE_CHECKING:
    from labkit.book.timelines.waits import Wait

APART, AWAY = 9.0, 30.0  # of arrows that go both ways from their middle; of a text from the middle of a circle


def spec(
    waits: Sequence[Wait], ring: set[int], where: Mapping[int, tuple[float, float]], title: str, badge: str,
) -> dict[str, Any]:  # fmt: skip
    """where: the middle of each rank's circle, in pixels around (0, 0), upwards."""
    at = {wait.rank: wait.at for wait in waits}
    kinds = (("in the circle", ORANGE, "circle", 3.0, True), ("waits for one that is", GREY, "square", 1.0, False))
    data = []
    for name, colour, symbol, edge, inside in kinds:
        if ranks := [rank for rank in where if (rank in ring) is inside]:
            data.append({
                "type": "scatter", "mode": "markers+text", "name": name,
                "x": [where[rank][0] for rank in ranks], "y": [where[rank][1] for rank in ranks],
                "text": [f"<b>{rank}</b>" for rank in ranks], "textposition": "middle center",
                "textfont": {"color": ON_COLOUR, "size": 14},
                "hovertext": [f"rank {rank} at {at.get(rank, 'its end')}" for rank in ranks], "hoverinfo": "text",
                "marker": {"symbol": symbol, "size": 44 if inside else 38, "color": colour,
                           "line": {"color": INK, "width": edge}},
            })  # fmt: skip
    notes = [_standing(where[rank], f"at {what}") for rank, what in at.items()]
    pairs = {(wait.rank, wait.on) for wait in waits}
    for wait in waits:
        if wait.rank == wait.on:
            notes.append(_text(where[wait.rank], f"needs its own {wait.needs}", yshift=-AWAY - 6))
        else:
            both = (wait.on, wait.rank) in pairs
            notes += _arrow(where[wait.rank], where[wait.on], wait.needs, both, 2.2 if wait.rank in ring else 1.2)
    wide, tall = (max(abs(place[axis]) for place in where.values()) for axis in (0, 1))
    hidden = {"visible": False, "fixedrange": True}
    return plotly_spec(
        title, badge, data, int(2 * tall) + 130, below=50, annotations=notes, showlegend=True,
        xaxis={**hidden, "range": [-wide - 130, wide + 130]}, yaxis={**hidden, "range": [-tall - 65, tall + 65]},
    )  # fmt: skip


def _standing(place: tuple[float, float], text: str) -> dict[str, Any]:
    """A text beside a circle, on its outer side."""
    x, y = place
    if abs(x) < 1:
        return _text(place, text, yshift=math.copysign(AWAY + 4, y))
    return _text(place, text, xshift=math.copysign(AWAY, x), xanchor="left" if x > 0 else "right")


def _arrow(
    start: tuple[float, float], end: tuple[float, float], text: str, both: bool, width: float
) -> list[dict[str, Any]]:  # fmt: skip
    """An arrow between two circles, and its text on the left of it."""
    (x1, y1), (x2, y2) = start, end
    length = math.hypot(x2 - x1, y2 - y1)
    left = -(y2 - y1) / length, (x2 - x1) / length
    dx, dy = (APART * part if both else 0.0 for part in left)
    anchor = "left" if left[0] > 0.3 else "right" if left[0] < -0.3 else "center"
    middle = (x1 + x2) / 2 + dx + 8 * left[0], (y1 + y2) / 2 + dy + 10 * left[1]
    return [
        {"x": round(x2 + dx, 1), "y": round(y2 + dy, 1), "ax": round(x1 + dx, 1), "ay": round(y1 + dy, 1), "xref": "x",
         "yref": "y", "axref": "x", "ayref": "y", "showarrow": True, "arrowhead": 2, "arrowsize": 1.1,
         "arrowwidth": width, "arrowcolor": INK, "standoff": 25, "startstandoff": 25, "text": ""},
        _text(middle, text, xanchor=anchor),
    ]  # fmt: skip


def _text(place: tuple[float, float], text: str, **more: Any) -> dict[str, Any]:
    return {"x": round(place[0], 1), "y": round(place[1], 1), "text": text, "showarrow": False,
            "font": {"size": 12, "color": INK}, **more}  # fmt: skip
