"""Lines over a plain axis: a loss by step, an error by size. For time against bytes see `cost_curves`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.book.drawing.figure import WIDTH, Figure, axis, heading, plotly_spec
from labkit.book.drawing.style import ON_COLOUR, series
from labkit.book.drawing.svg import Svg, dash_array, number, text_width
from labkit.book.drawing.tables import Row
from labkit.book.drawing.units import short

Line = Sequence[tuple[float, float]]
LEFT, HIGH, MARKS = 64.0, 240.0, 12  # left margin, height of the drawing, markers on a line


def lines(
    values: Mapping[str, Mapping[float, float] | Sequence[tuple[float, float] | float]],
    *,
    x: str = "step",
    y: str = "loss",
    title: str = "",
    badge: str = "measured",
    sentence: str | None = None,
    log: str = "",
    within: tuple[float, float] | None = None,
    y_text: Callable[[float], str] = short,
) -> Figure:
    """A line for each name: {x: y}, or pairs (x, y), or y alone, counted from 1.

    log: "x", "y" or "xy", the axes on which each tenfold is as long; a point that is not above 0 has no place there.
    within: where the upright axis begins and ends, so that pictures of different runs can be compared.

    x, y: what the axes mean, with the unit. y_text: how a value beside the upright axis is written. sentence: by
    default where each line begins and ends and, of lines over the same points, how far apart they are at most. Lines
    are told apart by dash and marker too: where two coincide, the markers of the later one sit between those of the
    earlier one.
    """
    drawn = {name: _pairs(line) for name, line in values.items()}
    if not any(drawn.values()):
        raise ValueError("there is nothing to draw: give lines at least one line with a point")
    given, scales = {name: line for name, line in drawn.items() if line}, Scales(log, within, y_text)
    drawn = {name: above for name, line in given.items() if (above := [p for p in line if scales.has_place(p)])}
    if not drawn:
        raise ValueError("no point has a place on an axis of tenfolds: all are 0 or less")
    title = title or f"{y[0].upper()}{y[1:]} by {x}"
    said = sentence if sentence is not None else _in_words(given, x, y)
    rows: list[Row] = [
        {x: _whole(at)} | {name: dict(line).get(at) for name, line in given.items()}
        for at in sorted({at for line in given.values() for at, _ in line})
    ]
    return Figure(
        title, badge, said, rows,
        svg=_picture(drawn, x, y, title, badge, said, scales), spec=_spec(drawn, x, y, title, badge, scales),
    )  # fmt: skip


@dataclass(frozen=True)
class Scales:
    """Which axes go by tenfolds, and between which values the upright one lies, if that is fixed."""

    log: str
    within: tuple[float, float] | None
    y_text: Callable[[float], str] = short

    def __post_init__(self) -> None:
        if self.log not in ("", "x", "y", "xy"):
            raise ValueError(f"log={self.log!r}: give the axes that go by tenfolds, 'x', 'y' or 'xy'")

    def has_place(self, point: tuple[float, float]) -> bool:
        return all(value > 0 or axis not in self.log for axis, value in zip("xy", point, strict=True))

    def at(self, axis: str, value: float) -> float:
        """The place of a value on its axis, before it is stretched to pixels."""
        return math.log10(value) if axis in self.log else value

    def ticks(self, axis: str, low: float, high: float, about: int, least: float) -> list[float]:
        """Values between two places; on an axis of tenfolds the tenfolds, and 2 and 5 between them if these are few."""
        if axis not in self.log:
            return _ticks(low, high, about, least)
        parts = (1, 2, 5) if high - low < 2.5 else (1,)
        powers = range(math.floor(low), math.ceil(high) + 1)
        every = max(1, math.ceil(len(powers) / about))
        found = (m * 10.0**k for k in powers for m in parts if k % every == 0)
        return [value for value in found if low - 1e-9 <= math.log10(value) <= high + 1e-9]


def _pairs(line: Mapping[float, float] | Sequence[tuple[float, float] | float]) -> list[tuple[float, float]]:
    if isinstance(line, Mapping):
        return sorted((float(a), float(b)) for a, b in line.items())
    return [p if isinstance(p, tuple) else (float(i), p) for i, p in enumerate(line, 1)]


def _whole(at: float) -> float | int:
    return int(at) if at == int(at) else at


def _in_words(drawn: Mapping[str, Line], x: str, y: str) -> str:
    told = [
        f"{name}: {y} {short(line[0][1])} at {x} {short(line[0][0])}, {short(line[-1][1])} at {x} {short(line[-1][0])}"
        for name, line in drawn.items()
    ]
    first, *rest = drawn.values()
    if rest and all([a for a, _ in line] == [a for a, _ in first] for line in rest):
        apart = max(abs(b - c) for line in rest for (_, b), (_, c) in zip(first, line, strict=True))
        told.append(f"At the same {x}, lines are at most {apart:.1e} apart" if apart else "The lines are the same")
    return ". ".join(told) + "."


def _counted(drawn: Mapping[str, Line]) -> bool:
    """Whether the points stand at whole numbers, as steps do: then no tick stands between two of them."""
    return all(a == int(a) for line in drawn.values() for a, _ in line)


def _few(drawn: Mapping[str, Line]) -> list[float] | None:
    """Where the points stand, if these are few enough to be the ticks."""
    places = sorted({a for line in drawn.values() for a, _ in line})
    return places if len(places) < 12 else None


def _ticks(low: float, high: float, about: int = 6, least: float = 0.0) -> list[float]:
    """Round numbers from `low` to `high`, about that many, at least `least` apart."""
    raw = max((high - low) / about, least)
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(m * unit for m in (1, 2, 5, 10) if m * unit >= raw * (1 - 1e-9))
    return [k * step for k in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def _range(found: Sequence[float]) -> tuple[float, float]:
    """From the smallest to the largest, with some room; never empty, and not below a line that is nothing but 0."""
    low, high = min(found), max(found)
    if low == high == 0:
        return -0.04, 1.0
    room = 0.04 * (high - low) or 0.5 * abs(high) or 1.0
    return low - room, high + room


def _picture(
    drawn: Mapping[str, Line], x: str, y: str, title: str, badge: str, said: str, scales: Scales
) -> str:  # fmt: skip
    svg = Svg(WIDTH, title, said)
    row = heading(svg, badge, said) + 8
    place = LEFT
    for k, name in enumerate(drawn):
        look, wide = series(k), 62 + text_width(name, 11.5)
        if place + wide > WIDTH and place > LEFT:
            row, place = row + 20, LEFT
        svg.line(place, row, place + 36, row, dash=dash_array(look.dash), width=2.4, colour=look.colour)
        svg.marker(place + 18, row, look.marker, look.colour)
        svg.text(place + 44, row + 4, name, 11.5)
        place += wide
    top = row + 40
    bottom, right = top + HIGH, WIDTH - 30.0
    left, last = _range([scales.at("x", a) for line in drawn.values() for a, _ in line])
    low, high = _range([scales.at("y", b) for line in drawn.values() for _, b in line])
    if scales.within:
        low, high = (scales.at("y", end) for end in scales.within)

    def across(a: float) -> float:
        return LEFT + (scales.at("x", a) - left) / (last - left) * (right - LEFT)

    def up(b: float) -> float:
        return bottom - (min(max(scales.at("y", b), low), high) - low) / (high - low) * HIGH

    for b in scales.ticks("y", low, high, 6, 0.0):
        svg.line(LEFT, up(b), right, up(b), faint=True)
        svg.text(LEFT - 6, up(b) + 4, scales.y_text(b), 11, "end")
    few = _few(drawn) if "x" in scales.log else None
    for a in few or scales.ticks("x", left, last, 8, 1.0 if _counted(drawn) else 0.0):
        svg.line(across(a), top, across(a), bottom, faint=True)
        svg.text(across(a), bottom + 16, short(a), 11, "middle")
    svg.text((LEFT + right) / 2, bottom + 34, x, 11.5, "middle")
    svg.text(8, top - 12, y, 11.5)
    for k, line in enumerate(drawn.values()):
        look = series(k)
        d = "M" + " L".join(f"{number(across(a))} {number(up(b))}" for a, b in line)
        svg.path(d, colour=look.colour, width=2.4, dash=dash_array(look.dash))
        for a, b in _marked(line, k, len(drawn)):
            svg.marker(across(a), up(b), look.marker, look.colour)
    return svg.render(bottom + 44)


def _marked(line: Line, k: int, count: int) -> Line:
    """The points of line k that get a marker: all of a short line, else every so many, shifted from line to line."""
    every = max(1, len(line) // MARKS)
    return line[k * every // count :: every]


def _value(b: float, scales: Scales) -> str:
    return f"{b:.4g}" if scales.y_text is short else scales.y_text(b)


def _spec(drawn: Mapping[str, Line], x: str, y: str, title: str, badge: str, scales: Scales) -> dict[str, Any]:
    data: list[dict[str, Any]] = []
    for k, (name, line) in enumerate(drawn.items()):
        look, marked = series(k), set(_marked(line, k, len(drawn)))
        data.append({
            "type": "scatter", "mode": "lines+markers", "name": name,
            "x": [a for a, _ in line], "y": [float(f"{b:.6g}") for _, b in line],
            "hovertext": [f"{name}: {y} {_value(b, scales)} at {x} {short(a)}" for a, b in line], "hoverinfo": "text",
            "line": {"color": look.colour, "width": 2.5, "dash": look.dash},
            "marker": {"symbol": look.marker, "size": [9 if p in marked else 0 for p in line],
                       "line": {"width": 1, "color": ON_COLOUR}},
        })  # fmt: skip
    heights = [b for line in drawn.values() for _, b in line]
    tiny: dict[str, Any] = (
        {"exponentformat": "power"} if 0 < max(map(abs, heights)) < 1e-3 else {}
    )  # and no 20µ or 0.4f
    if "y" in scales.log:
        tiny = {"type": "log", "exponentformat": "power"}
        if scales.y_text is not short:
            low, high = (scales.at("y", end) for end in scales.within or (min(heights), max(heights)))
            ticks = scales.ticks("y", low, high, 6, 0.0)
            tiny |= {"tickvals": ticks, "ticktext": [scales.y_text(b) for b in ticks]}
    if scales.within:
        tiny["range"] = [scales.at("y", end) for end in scales.within]
    upright = axis(y, **tiny) if any(heights) else axis(y, range=_range(heights))
    places = [a for line in drawn.values() for a, _ in line]
    flat = axis(x, dtick=1) if _counted(drawn) and max(places) - min(places) < 8 else axis(x)
    if "x" in scales.log:
        few = _few(drawn)
        flat = axis(x, type="log", tickvals=few, ticktext=few and [short(a) for a in few])
    return plotly_spec(title, badge, data, 300, xaxis=flat, yaxis=upright, showlegend=True)
