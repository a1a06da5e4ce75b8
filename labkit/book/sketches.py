"""A sketch beside the run: two sets of columns, and the difference of each in the table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from labkit.book.charts import bars
from labkit.book.figure import Figure
from labkit.book.units import listing, short
from labkit.course.predicting import Row, Sketch


def sketch_figure(sketch: Sketch, given: Sequence[Any] | None, rows: list[Row], run: str, mark: str) -> Figure:
    """The reader's sketch and the run, column by column. given: None where nobody drew; run: the run's column."""
    found: list[Any] = [row[run] for row in rows]
    columns = {"the run": dict(zip(sketch.x, found, strict=True))}
    if given is not None:
        columns = {"you": dict(zip(sketch.x, given, strict=True)), **columns}
    title = f"{sketch.y_label or 'Sketch'} by {sketch.x_label or 'column'}"
    figure = bars(
        columns, unit="", title=title[0].upper() + title[1:], badge=mark, sentence=in_words(sketch, given, found)
    )
    return Figure(figure.title, mark, figure.sentence, [dict(row) for row in rows], figure.svg, figure.spec)


def in_words(sketch: Sketch, given: Sequence[Any] | None, found: Sequence[Any]) -> str:
    """Where the sketch was right, and where it was furthest off."""
    if given is None:
        return "Not predicted: only the run is drawn."
    step = min(b - a for a, b in zip(sketch.y, sketch.y[1:], strict=False))
    off = [g - f for g, f in zip(given, found, strict=True)]
    close = [x for x, d in zip(sketch.x, off, strict=True) if abs(d) <= step / 2]
    worst = max(range(len(off)), key=lambda i: abs(off[i]))
    told = (
        f"Your sketch is right, to half a level, at {listing(close)}."
        if close
        else "No column is right to half a level."
    )
    if len(close) == len(off):
        return told
    much = "high" if off[worst] > 0 else "low"
    return f"{told} It is furthest off at {sketch.x[worst]}: {short(abs(off[worst]))} too {much}."
