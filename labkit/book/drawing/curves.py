"""Time against size: what a model says of each algorithm, the reader's own measurements, and where one overtakes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from statistics import median, quantiles
from typing import Any

from labkit.book.drawing.curves_svg import picture
from labkit.book.drawing.figure import Figure, axis, plotly_spec
from labkit.book.drawing.style import INK, ON_COLOUR, series
from labkit.book.drawing.tables import Row
from labkit.book.drawing.units import bytes_text, seconds_text

Curve = Callable[[float], float]
Points = Mapping[str, Mapping[int, Sequence[float]]]
SAMPLES = 64  # of each line


@dataclass(frozen=True)
class Plot:
    """What both forms draw. lines: (bytes, seconds) of each algorithm; points: (bytes, median, least, most) seconds.

    fastest: (from bytes, to bytes, algorithm) of the model, from small to large. thin: parts of a model, drawn thinly.
    at: marked sizes. axes: what the two axes mean. ends: what the bars at the points end at.
    """

    names: tuple[str, ...]
    lines: Mapping[str, Sequence[tuple[float, float]]]
    points: Mapping[str, Sequence[tuple[int, float, float, float]]]
    fastest: Sequence[tuple[float, float, str]]
    sizes: tuple[float, float]
    thin: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)
    at: Mapping[str, float] = field(default_factory=dict)
    axes: tuple[str, str] = ("", "")
    ends: tuple[str, str] = ("least", "most")

    @property
    def repeated(self) -> bool:
        """Whether something was run more than once, so that there is a median and a range."""
        return any(least < most for runs in self.points.values() for _, _, least, most in runs)

    @property
    def times(self) -> tuple[float, float]:
        """The shortest and the longest time above zero of lines and points, with their bars."""
        found = [t for line in self.lines.values() for _, t in line]
        found += [t for runs in self.points.values() for _, _, *ends in runs for t in ends]
        positive = [t for t in found if t > 0]
        return min(positive), max(positive)


def cost_curves(
    curves: Mapping[str, Curve],
    points: Points | None = None,
    *,
    sizes: tuple[float, float] | None = None,
    title: str = "Time by size",
    badge: str | None = None,
    thin: Mapping[str, Curve] | None = None,
    at: Mapping[str, float] | None = None,
    axes: tuple[str, str] = ("", ""),
    middle: bool = False,
    sentence: str | None = None,
) -> Figure:
    """Seconds against bytes, both logarithmic.

    curves: algorithm -> function from bytes to seconds (the model). points: algorithm -> {bytes: seconds of each
    repetition}; drawn as the median with a bar from the fastest to the slowest. sizes: smallest and largest bytes of
    the lines, by default those of the points, or 1 kB to 100 MB. badge: by default "measured" with points and
    "simulated" without. thin: parts of a model, drawn thinly where they are not below everything else. at: name ->
    bytes, a dotted line with its name. axes: titles of the two axes. middle: bars from the tenth to the ninetieth
    percent of the repetitions, and not from the fastest to the slowest. sentence: said in place of the usual one.

    Text equivalent: which algorithm is fastest where, and a row for each size and algorithm.
    """
    measured = {
        name: [(int(n), median(t), *_ends(t, middle)) for n, t in sorted(runs.items())]
        for name, runs in (points or {}).items()
    }
    known = sorted({p[0] for runs in measured.values() for p in runs if p[0] > 0})
    first, last = sizes or ((known[0], known[-1]) if len(known) > 1 else (1e3, 1e8))
    if not 0 < first < last:
        raise ValueError(f"sizes={sizes!r}: give the smallest and the largest number of bytes, both above zero")
    names = tuple(dict.fromkeys([*curves, *measured]))
    if not names:
        raise ValueError("there is nothing to draw: give cost_curves a curve or a point")
    grid = [first * (last / first) ** (k / (SAMPLES - 1)) for k in range(SAMPLES)]
    lines = {name: [(n, float(curve(n))) for n in grid] for name, curve in curves.items()}
    plot = Plot(names, lines, measured, envelope(curves, grid), (first, last), at=at or {}, axes=axes,
                ends=("10 %", "90 %") if middle else ("least", "most"))  # fmt: skip
    if thin:
        low = plot.times[0] / 1.2
        parts = {name: [(n, float(curve(n))) for n in grid] for name, curve in thin.items()}
        plot = replace(plot, thin={name: [(n, t) for n, t in part if t >= low] for name, part in parts.items()})
    mark = badge or ("measured" if measured else "simulated")
    seen = "Measured" if mark == "measured" else "In the runs"
    sentence = _sentence(plot, seen) if sentence is None else sentence
    decades = [float(10**k) for k in range(math.ceil(math.log10(first)), math.floor(math.log10(last)) + 1)]
    return Figure(
        title, mark, sentence, _rows(plot, curves, known or decades or [first, last], seen.lower()),
        svg=picture(plot, title, mark, sentence), spec=_spec(plot, title, mark),
    )  # fmt: skip


def _ends(times: Sequence[float], middle: bool) -> tuple[float, float]:
    if not middle or len(times) < 2:
        return min(times), max(times)
    tenths = quantiles(times, n=10, method="inclusive")
    return tenths[0], tenths[-1]


def envelope(curves: Mapping[str, Curve], grid: Sequence[float]) -> list[tuple[float, float, str]]:
    """Which curve is lowest from where to where, between the first and the last number of `grid`.

    Changes are looked for between neighbours in the grid and narrowed down by bisection.
    """
    if not curves:
        return []

    def best(n: float) -> str:
        return min(curves, key=lambda name: curves[name](n))

    pieces = [(grid[0], best(grid[0]))]
    for low, high in pairwise(grid):
        while best(high) != pieces[-1][1]:
            a, b, before = low, high, pieces[-1][1]
            while b / a > 1 + 1e-9:
                middle = math.sqrt(a * b)
                a, b = (middle, b) if best(middle) == before else (a, middle)
            pieces.append((b, best(b)))
            low = b
    edges = [n for n, _ in pieces] + [grid[-1]]
    return [(start, end, name) for (start, name), end in zip(pieces, edges[1:], strict=True)]


def _sentence(plot: Plot, seen: str) -> str:
    if len(plot.names) == 1:
        return _alone(plot, seen)
    told = []
    if plot.fastest:
        first, *rest = plot.fastest
        text = f"By the model {first[2]} is fastest"
        text += " throughout" if not rest else f" up to {bytes_text(first[1])}"
        told.append(text + "".join(f", {name} from {bytes_text(start)}" for start, _, name in rest))
    won = _measured_winners(plot)
    if won:
        runs = [(name, list(sizes)) for name, sizes in groupby(won, won.__getitem__)]
        (best, sizes), *later = runs
        text = f"{seen}, {best} is fastest" if seen == "Measured" else f"{seen} {best} is fastest"
        text += f" {'up to' if len(sizes) > 1 else 'at'} {bytes_text(sizes[-1])}" if later else " at every size"
        told.append(text + "".join(_stretch(name, at, at is later[-1][1]) for name, at in later))
    return ". ".join(told) + "."


def _stretch(name: str, sizes: Sequence[int], last: bool) -> str:
    """`, ring from 1 MB`; and up to where, unless it is the last one."""
    if len(sizes) == 1:
        return f", {name} at {bytes_text(sizes[0])}"
    return f", {name} from {bytes_text(sizes[0])}" + ("" if last else f" to {bytes_text(sizes[-1])}")


def _alone(plot: Plot, seen: str) -> str:
    """Where there is nothing to compare: the smallest and the largest size, by the model and as seen."""
    (name,) = plot.names
    told = []
    line, runs = plot.lines.get(name, ()), plot.points.get(name, ())
    for what, ends in (("By the model", line), (seen, runs)):
        if ends:
            (n, t, *_), (m, s, *_) = ends[0], ends[-1]
            told.append(f"{what} {bytes_text(n)} take {seconds_text(t)}, {bytes_text(m)} take {seconds_text(s)}")
    return ". ".join(told) + "."


def _measured_winners(plot: Plot) -> dict[int, str]:
    """size -> the algorithm with the smallest median there, for sizes at which two or more were measured."""
    at: dict[int, dict[str, float]] = {}
    for name, runs in plot.points.items():
        for size, middle, _, _ in runs:
            at.setdefault(size, {})[name] = middle
    return {size: min(t, key=lambda n: t[n]) for size, t in sorted(at.items()) if len(t) > 1}


def _rows(plot: Plot, curves: Mapping[str, Curve], sizes: Sequence[float], seen: str) -> list[Row]:
    won = _measured_winners(plot)
    rows: list[Row] = []
    for size in sizes:
        model = min(curves, key=lambda n: curves[n](size)) if curves else None
        for name in plot.names:
            point = next((p for p in plot.points.get(name, ()) if p[0] == size), None)
            if point is None and name not in curves:
                continue
            by = [who for who, winner in (("model", model), (seen, won.get(int(size)))) if winner == name]
            row: dict[str, object] = {"bytes": int(size), "algorithm": name}
            row["model (ms)"] = 1e3 * float(curves[name](size)) if name in curves else None
            if plot.points:
                seconds = point[1:] if point else (None, None, None)
                for what, t in zip(("median", *plot.ends) if plot.repeated else (seen,), seconds, strict=False):
                    row[f"{what} (ms)"] = None if t is None else 1e3 * t
            rows.append({**row, "fastest": " and ".join(by)} if len(plot.names) > 1 else row)
    return rows


def _spec(plot: Plot, title: str, badge: str) -> dict[str, Any]:
    data: list[dict[str, Any]] = [
        {"type": "scatter", "mode": "lines", "name": name, "x": [_six(n) for n, _ in part],
         "y": [_six(t) for _, t in part], "hoverinfo": "skip", "line": {"color": INK, "width": 1, "dash": dash}}
        for (name, part), dash in zip(plot.thin.items(), ("dash", "dot", "dashdot"), strict=False)
    ]  # fmt: skip
    for k, name in enumerate(plot.names):
        look = series(k)
        if name in plot.lines:
            line = plot.lines[name]
            data.append({
                "type": "scatter", "mode": "lines", "name": name, "legendgroup": name,
                "x": [_six(n) for n, _ in line], "y": [_six(t) for _, t in line],
                "hovertext": [f"{name}, model: {bytes_text(n)} in {seconds_text(t)}" for n, t in line],
                "hoverinfo": "text", "line": {"color": look.colour, "width": 2.5, "dash": look.dash},
            })  # fmt: skip
        if name in plot.points:
            runs = plot.points[name]
            data.append({
                "type": "scatter", "mode": "markers", "legendgroup": name,
                "name": f"{name}, {badge}{' (median)' * plot.repeated}",
                "x": [n for n, *_ in runs], "y": [_six(m) for _, m, _, _ in runs],
                "hovertext": [f"{name}, {badge}: {bytes_text(n)} in {seconds_text(m)} ({seconds_text(a)} to "
                              f"{seconds_text(b)})" for n, m, a, b in runs],
                "hoverinfo": "text",
                "error_y": {"type": "data", "symmetric": False, "array": [_six(b - m) for _, m, _, b in runs],
                            "arrayminus": [_six(m - a) for _, m, a, _ in runs], "thickness": 1, "color": INK},
                "marker": {"symbol": look.marker, "size": 9, "color": look.colour,
                           "line": {"width": 1, "color": ON_COLOUR}},
            })  # fmt: skip
    changes = [(start, f"{name} from {bytes_text(start)}") for start, _, name in plot.fastest[1:]]
    changes += [(n, name) for name, n in plot.at.items() if plot.sizes[0] <= n <= plot.sizes[1]]
    upright = _decades((1e-9, 1e5), seconds_text)
    if any(plot.axes):
        low, high = plot.times
        upright |= {"range": [_six(math.log10(low / 1.25)), _six(math.log10(high * 1.25))]}
        if high / low < 100:
            ticks = [m * 10.0**k for k in range(-9, 5) for m in (1, 2, 5)]
            upright |= {"tickvals": ticks, "ticktext": [seconds_text(t) for t in ticks]}
    return plotly_spec(
        title, badge, data, 380,
        xaxis=_decades(plot.sizes, bytes_text) | _titled(plot.axes[0]), yaxis=upright | _titled(plot.axes[1]),
        shapes=[{"type": "line", "x0": _six(n), "x1": _six(n), "yref": "paper", "y0": 0, "y1": 1,
                 "line": {"color": INK, "width": 1, "dash": "dot"}} for n, _ in changes],
        annotations=[{"x": round(math.log10(n), 6), "yref": "paper", "y": round(1 - 0.06 * (k % 3), 2),
                      "xanchor": "left", "yanchor": "top", "showarrow": False, "text": name,
                      "font": {"size": 11, "color": INK}} for k, (n, name) in enumerate(changes)],
    )  # fmt: skip


def _titled(words: str) -> dict[str, Any]:
    return {"title": {"text": words}} if words else {}


def _decades(between: tuple[float, float], text: Callable[[float], str]) -> dict[str, Any]:
    """A logarithmic axis with a tick at each power of ten, written out with its unit."""
    low, high = (math.log10(v) for v in between)
    values = [10.0**k for k in range(math.floor(low), math.ceil(high) + 1)]
    return axis(type="log", tickmode="array", tickvals=values, ticktext=[text(v) for v in values])


def _six(value: float) -> float:
    """Six significant digits."""
    return float(f"{value:.6g}")
