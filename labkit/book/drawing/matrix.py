"""Who sent how much to whom: a heat map with the numbers printed in it, and sums at its edges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from labkit.book.drawing.figure import WIDTH, Figure, axis, heading, plotly_spec
from labkit.book.drawing.style import INK, ON_COLOUR
from labkit.book.drawing.svg import Svg, text_width
from labkit.book.drawing.tables import Row
from labkit.book.drawing.units import bytes_text, bytes_unit, listing, short
from labkit.book.timelines.reads import Trace

Matrix = list[list[int]]
LIGHT, DARK = (234, 244, 251), (86, 180, 233)  # of the scale; dark text reads on all of it


def byte_matrix(
    trace: Trace | Sequence[Sequence[int]],
    predicted: Sequence[float] | Sequence[Sequence[float]] | None = None,
    *,
    predicted_name: str = "predicted",
    title: str = "Bytes from rank to rank",
    badge: str | None = None,
) -> Figure:
    """Payload bytes from each rank (row) to each rank (column), and each rank's sums.

    trace: a run, or the matrix itself. predicted: what the reader or a formula expected: bytes sent
    by each rank (drawn as one more column), or a matrix like the measured one (drawn beside it). predicted_name: a
    participle for it, such as "predicted" or "computed". badge: that of the trace by default, "measured" for a plain
    matrix.
    """
    if isinstance(trace, Sequence):
        matrix, mark = [[int(v) for v in row] for row in trace], badge or "measured"
    else:
        matrix, mark = [[int(v) for v in row] for row in trace.bytes_between()], badge or trace.badge
    size = len(matrix)
    if any(len(row) != size for row in matrix):
        raise ValueError(f"a byte matrix has as many columns as rows: got rows of {[len(row) for row in matrix]}")
    other, expected = _prediction(predicted, size)
    sentence = _sentence(matrix, expected, other, predicted_name)
    return Figure(
        title, mark, sentence, _rows(matrix, expected, predicted_name),
        svg=_picture(matrix, other, expected, predicted_name, title, mark, sentence),
        spec=_spec(matrix, other, expected, predicted_name, title, mark),
    )  # fmt: skip


def _prediction(predicted: Any, size: int) -> tuple[Matrix | None, list[int] | None]:
    """(the predicted matrix, if one was given; the bytes predicted for each sender)."""
    if predicted is None:
        return None, None
    values = list(predicted)
    if len(values) != size:
        raise ValueError(f"predicted has {len(values)} entries, the matrix has {size} ranks: give one for each rank")
    if not isinstance(values[0], Sequence):
        return None, [round(v) for v in values]
    other = [[round(v) for v in row] for row in values]
    if any(len(row) != size for row in other):
        raise ValueError(f"a predicted matrix needs {size} columns: got rows of {[len(row) for row in other]}")
    return other, [sum(row) for row in other]


def _sentence(matrix: Matrix, expected: list[int] | None, other: Matrix | None, name: str) -> str:
    sent, received = [sum(row) for row in matrix], [sum(col) for col in zip(*matrix, strict=True)]
    text = f"Rows send, columns receive; {bytes_text(sum(sent))} in all. "
    least, most_of_all = min(sent + received, default=0), max(sent + received, default=0)
    if most_of_all - least <= 0.01 * most_of_all:  # chunks of a tensor that does not divide differ by an element
        about = "" if least == most_of_all else "about "
        text += f"Every rank sends and receives {about}{bytes_text(most_of_all)}."
    else:
        for what, sums in (("sends", sent), ("receives", received)):
            most = [str(r) for r, v in enumerate(sums) if v == max(sums)]
            who = f"Rank {most[0]}" if len(most) == 1 else f"Ranks {listing(most)}"
            text += f"{who} {what if len(most) == 1 else what[:-1]} most, {bytes_text(max(sums))}. "
    if expected is not None:
        wrong = [str(r) for r, v in enumerate(sent) if v != expected[r]]
        same = not wrong and (other is None or other == matrix)
        if same:
            text = f"{text.rstrip()} This equals what was {name}, to the byte."
        elif wrong:
            text = f"{text.rstrip()} What rank {listing(wrong)} sent is not what was {name}."
        else:
            text = f"{text.rstrip()} The sums are those {name}, but some links differ."
    return text.rstrip()


def _rows(matrix: Matrix, expected: list[int] | None, name: str) -> list[Row]:
    size = len(matrix)
    rows: list[Row] = []
    for r, row in enumerate(matrix):
        more = {} if expected is None else {name: expected[r]}
        rows.append({"from": f"rank {r}", **{f"to {c}": row[c] for c in range(size)}, "sent": sum(row), **more})
    sums = {f"to {c}": sum(row[c] for row in matrix) for c in range(size)}
    total = {"from": "received", **sums, "sent": sum(map(sum, matrix))}
    return [*rows, total if expected is None else {**total, name: sum(expected)}]


def shade(value: int, most: int) -> str:
    """The colour of a cell, from the lightest to that of `most`."""
    part = value / most if most else 0.0
    return "#" + "".join(f"{round(a + (b - a) * part):02x}" for a, b in zip(LIGHT, DARK, strict=True))


def _picture(
    matrix: Matrix, other: Matrix | None, expected: list[int] | None, name: str, title: str, badge: str, sentence: str
) -> str:
    svg = Svg(WIDTH, title, sentence)
    top = heading(svg, badge, sentence) + 8
    most = max(max(map(max, m), default=0) for m in (matrix, other or matrix))
    unit, unit_name = bytes_unit(most)
    panels = [(matrix, "")] + ([(other, name)] if other is not None else [])
    columns = len(matrix) + 1 + (expected is not None and other is None)
    room = (WIDTH - 20) / len(panels)
    cell = min(62, (room - 62) / columns)
    tall = min(34, max(16, cell * 0.62))
    for index, (numbers, caption) in enumerate(panels):
        x = 8 + index * room
        svg.text(x, top + 10, f"{caption or 'sent'}, in {unit_name}" if other is not None else f"in {unit_name}", 11)
        extra = expected if other is None else None
        _panel(svg, x + 56, top + 32, cell, tall, numbers, extra, name, unit, most)
    return svg.render(top + 32 + (len(matrix) + 1) * tall + 16)


def _beside(sent: int, expected: int, unit: float) -> str:
    """A prediction beside the sum it is about, with a sign that says whether they are equal to the byte."""
    return f"{'=' if sent == expected else '≠'} {short(expected / unit)}"


def _panel(
    svg: Svg, x: float, y: float, cell: float, tall: float, matrix: Matrix, expected: list[int] | None, name: str,
    unit: float, most: int,
) -> None:  # fmt: skip
    """One heat map with its sums; `expected`, if given, stands in a column to the right of the sums."""
    size = len(matrix)
    font = 11.0 if cell >= 36 else 8.5
    heads = [f"to {c}" if cell > 34 else str(c) for c in range(size)]
    for c, head in enumerate([*heads, "sent", *([name] if expected is not None else [])]):
        svg.text(x + (c + 0.5) * cell + (6 if c >= size else 0), y - 6, head, font, "middle", bold=c >= size)
    for r, row in enumerate(matrix):
        base = y + r * tall + tall / 2 + 4
        svg.text(x - 6, base, f"rank {r}", 11 if tall > 14 else 9, "end")
        for c, value in enumerate(row):
            fill = shade(value, most) if value else "none"
            svg.rect(x + c * cell, y + r * tall, cell - 2, tall - 2, fill=fill, stroke_width=0.4,
                     hover=f"rank {r} to rank {c}: {value:,} bytes")  # fmt: skip
            text = short(value / unit) if value else "-" if r == c else "0"
            if text_width(text, font) <= cell - 3:
                svg.text(x + (c + 0.5) * cell - 1, base, text, font, "middle", on_colour=bool(value))
        svg.text(x + (size + 0.5) * cell + 6, base, short(sum(row) / unit), font, "middle", bold=True)
        if expected is not None:
            svg.text(x + (size + 1.5) * cell + 6, base, _beside(sum(row), expected[r], unit), font, "middle")
    base = y + size * tall + tall / 2 + 6
    svg.text(x - 6, base, "received", 10, "end", bold=True)
    for c in range(size):
        svg.text(x + (c + 0.5) * cell - 1, base, short(sum(row[c] for row in matrix) / unit), font, "middle", bold=True)


def _spec(
    matrix: Matrix, other: Matrix | None, expected: list[int] | None, name: str, title: str, badge: str
) -> dict[str, Any]:
    size = len(matrix)
    most = max(max(map(max, m), default=0) for m in (matrix, other or matrix))
    unit, unit_name = bytes_unit(most)
    scale = [[0, "rgb" + str(LIGHT)], [1, "rgb" + str(DARK)]]
    data: list[dict[str, Any]] = []
    notes: list[dict[str, Any]] = []
    layout: dict[str, Any] = {}
    panels = [(matrix, "sent")] + ([(other, name)] if other is not None else [])
    for k, (numbers, caption) in enumerate(panels, start=1):
        extra = expected if other is None else None
        heads = [f"to {c}" for c in range(size)] + ["sent"] + ([name] if extra is not None else [])
        x, y = ("x", "y") if k == 1 else (f"x{k}", f"y{k}")
        data.append({
            "type": "heatmap", "xaxis": x, "yaxis": y, "x": list(range(size)), "y": list(range(size)),
            "z": [[v or None for v in row] for row in numbers], "zmin": 0, "zmax": max(most, 1),
            "text": [[short(v / unit) if v else "" for v in row] for row in numbers],
            "texttemplate": "%{text}", "textfont": {"color": ON_COLOUR}, "colorscale": scale, "showscale": False,
            "xgap": 2, "ygap": 2, "name": caption,
            "hovertemplate": "%{y} %{x}: %{z:,} bytes<extra></extra>",  # the labels: rank 2 to 3
        })  # fmt: skip
        sums = [(size, r, short(sum(row) / unit)) for r, row in enumerate(numbers)]
        sums += [(c, size, short(sum(row[c] for row in numbers) / unit)) for c in range(size)]
        sums += [(size + 1, r, _beside(sum(numbers[r]), v, unit)) for r, v in enumerate(extra or [])]
        sums += [(c, r, "-" if r == c else "0") for r in range(size) for c in range(size) if not numbers[r][c]]
        notes += [
            {"x": c, "y": r, "xref": x, "yref": y, "text": f"<b>{t}</b>" if size in (c, r) else t, "showarrow": False,
             "font": {"color": INK}}
            for c, r, t in sums
        ]  # fmt: skip
        width = 1 / len(panels)
        layout["xaxis" if k == 1 else f"xaxis{k}"] = axis(
            f"{caption}, in {unit_name}" if len(panels) > 1 else f"in {unit_name}", side="top", showgrid=False,
            tickmode="array", tickvals=list(range(len(heads))), ticktext=heads, range=[-0.5, len(heads) - 0.5],
            domain=[round((k - 1) * width + (0.06 if k > 1 else 0), 3), round(k * width - 0.02, 3)],
        )  # fmt: skip
        layout["yaxis" if k == 1 else f"yaxis{k}"] = axis(
            showgrid=False, tickmode="array", tickvals=list(range(size + 1)), anchor=x, range=[size + 0.5, -0.5],
            ticktext=[*(f"rank {r}" for r in range(size)), "received"],
        )  # fmt: skip
    return plotly_spec(title, badge, data, 34 * (size + 1), above=64, below=16, annotations=notes, **layout)
