"""A sketch beside the run: two lines over the same columns, and the difference of each column in the table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from labkit.book.drawing.figure import WIDTH, Figure, axis, heading, plotly_spec
from labkit.book.drawing.style import ON_COLOUR, series
from labkit.book.drawing.svg import Svg, dash_array, number
from labkit.book.drawing.units import listing, short
from labkit.course.predicting import Row, Sketch

LEFT, HIGH = 64.0, 220.0  # left margin, height of the drawing
YOU, RUN = "you", "the run"
Lines = dict[str, list[float]]


def sketch_figure(sketch: Sketch, given: Sequence[Any] | None, rows: list[Row], run: str, mark: str) -> Figure:
    """The reader's sketch and the run. given: None where nobody drew; rows: the table, with the run's column `run`."""
    found = [float(row[run]) for row in rows]  # type: ignore[arg-type]
    lines: Lines = {} if given is None else {YOU: [float(level) for level in given]}
    lines[RUN] = found
    title = f"{sketch.y_label or 'Sketch'} by {sketch.x_label or 'column'}"
    title = title[0].upper() + title[1:]
    sentence = in_words(sketch, given, found)
    return Figure(
        title, mark, sentence, [dict(row) for row in rows],
        svg=picture(sketch, lines, title, mark, sentence), spec=spec(sketch, lines, title, mark),
    )  # fmt: skip


def in_words(sketch: Sketch, given: Sequence[Any] | None, found: Sequence[Any]) -> str:
    """Where the sketch was right, and where it was furthest off."""
    if given is None:
        return "Not predicted: only the run is drawn."
    step = min(b - a for a, b in zip(sketch.y, sketch.y[1:], strict=False))
    off = [g - f for g, f in zip(given, found, strict=True)]
    close = [x for x, d in zip(sketch.x, off, strict=True) if abs(d) <= step / 2]
    told = (
        f"Your sketch is within {short(step / 2)} of the run at {_columns(sketch, close)}."
        if close
        else f"Your sketch is nowhere within {short(step / 2)} of the run."
    )
    if len(close) == len(off):
        return told
    worst = max(range(len(off)), key=lambda i: abs(off[i]))
    much = "high" if off[worst] > 0 else "low"
    return f"{told} It is furthest off at {_columns(sketch, [sketch.x[worst]])}: {short(abs(off[worst]))} too {much}."


def _columns(sketch: Sketch, which: Sequence[Any]) -> str:
    """`steps 0 and 5` of an axis "step", `2 and 4 ranks` of an axis "ranks"; else the labels of the columns alone."""
    label, told = sketch.x_label, listing([str(x) for x in which])
    if not label.isalpha() or not all(str(x).isdigit() for x in which):
        return told
    return f"{told} {label}" if label.endswith("s") else f"{label}{'s' * (len(which) > 1)} {told}"


def look(name: str) -> Any:
    """The same look with and without a sketch."""
    return series((YOU, RUN).index(name))


def picture(sketch: Sketch, lines: Lines, title: str, mark: str, sentence: str) -> str:
    """Lines with dashes and markers, on the grid that was drawn on."""
    svg = Svg(WIDTH, title, sentence)
    row = heading(svg, mark, sentence) + 8
    for nth, name in enumerate(lines):
        x0 = LEFT + 130 * nth
        svg.line(x0, row, x0 + 36, row, dash=dash_array(look(name).dash), width=2.4, colour=look(name).colour)
        svg.marker(x0 + 18, row, look(name).marker, look(name).colour)
        svg.text(x0 + 44, row + 4, name, 11.5)
    top = row + 44
    levels = [*sketch.y, *(level for line in lines.values() for level in line)]
    low, high, right, bottom = min(0.0, *levels), max(levels), WIDTH - 30.0, top + HIGH

    def x(column: int) -> float:
        return LEFT + (column + 0.5) * (right - LEFT) / len(sketch.x)

    def y(level: float) -> float:
        return bottom - (level - low) / (high - low) * HIGH

    for level in sketch.y:
        svg.line(LEFT, y(level), right, y(level), faint=True)
        svg.text(LEFT - 6, y(level) + 4, short(level), 11, "end")
    for column, label in enumerate(sketch.x):
        svg.text(x(column), bottom + 18, label, 11, "middle")
    svg.text((LEFT + right) / 2, bottom + 36, sketch.x_label, 11.5, "middle")
    svg.text(8, top - 14, sketch.y_label, 11.5)
    for name, line in lines.items():
        d = "M" + " L".join(f"{number(x(i))} {number(y(level))}" for i, level in enumerate(line))
        svg.path(d, colour=look(name).colour, width=2.4, dash=dash_array(look(name).dash))
        for column, level in enumerate(line):
            svg.marker(x(column), y(level), look(name).marker, look(name).colour)
    return svg.render(bottom + 46)


def spec(sketch: Sketch, lines: Lines, title: str, mark: str) -> dict[str, Any]:
    """The same for plotly."""
    data = [
        {
            "type": "scatter", "mode": "lines+markers", "name": name, "x": list(sketch.x), "y": line,
            "hovertext": [f"{name}: {short(v)} at {label}" for label, v in zip(sketch.x, line, strict=True)],
            "hoverinfo": "text", "line": {"color": look(name).colour, "width": 2.5, "dash": look(name).dash},
            "marker": {"symbol": look(name).marker, "size": 9, "line": {"width": 1, "color": ON_COLOUR}},
        }
        for name, line in lines.items()
    ]  # fmt: skip
    columns = axis(sketch.x_label, type="category")
    rows = axis(sketch.y_label, rangemode="tozero")
    return plotly_spec(title, mark, data, 300, xaxis=columns, yaxis=rows, showlegend=True)
