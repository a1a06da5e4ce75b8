"""Who waited for whom when a run failed: the ranks around a circle, as the status pages had them at that moment."""

from __future__ import annotations

import math
from typing import Any

from labkit.book.drawing.circle import Round
from labkit.book.drawing.figure import WIDTH, Figure, heading, legend
from labkit.book.drawing.style import GREY, ON_COLOUR, ORANGE
from labkit.book.drawing.svg import Svg, number
from labkit.book.drawing.tables import Row
from labkit.book.drawing.units import listing

MOST = 24
TITLE = "Who waits for whom"


def after_failure(failure: Any, size: int) -> Figure:
    """failure: a `labkit.Failure`. An arrow goes from each rank to each one that it waits for; the one that failed is
    crossed out."""
    awaits = {rank: on for rank, on in failure.awaits.items() if rank != failure.rank}
    raised = f"rank {failure.rank} raised {failure.error}: " if failure.kind in ("raised", "exit") else ""
    first = raised + failure.message.partition("\n")[0]
    said = "; ".join(f"rank {rank} for {_ranks(on)}" for rank, on in awaits.items() if on)
    waits = (
        f"Who waits: {said}.{_ending(awaits, failure.rank, size)}"
        if said
        else "Nobody waited for another rank at that moment."
    )
    sentence = f"{first[:1].upper()}{first[1:]}. {waits}"
    rows: list[Row] = [
        {"rank": rank, "waits for rank": listing([str(r) for r in awaits.get(rank, [])]) if awaits.get(rank) else "-"}
        | ({"it was": _doing(failure, rank)} if failure.waiting else {})
        for rank in range(size)
    ]
    return Figure(TITLE, "measured", sentence, rows, svg=_picture(awaits, failure.rank, min(size, MOST), sentence))


def _ending(awaits: dict[int, list[int]], failed: int, size: int) -> str:
    """Where all the arrows lead: to one rank, or around; or who had not come so far when another one failed."""
    last = {r for on in awaits.values() for r in on if not awaits.get(r)}
    moving = [r for r in range(size) if not awaits.get(r) and r != failed]
    if failed >= 0 and moving and last:
        return f" {_ranks(moving).capitalize()} had not come so far yet."
    if len(last) == 1:
        return f" In the end all of them wait for rank {last.pop()}."
    return "" if last else " Nobody in this circle can go on."


def _doing(failure: Any, rank: int) -> str:
    return failure.kind if rank == failure.rank else str(failure.waiting.get(rank, "")).partition(" (waits")[0]


def _ranks(on: list[int]) -> str:
    return ("rank " if len(on) == 1 else "ranks ") + listing([str(r) for r in on])


def _picture(awaits: dict[int, list[int]], dead: int, size: int, sentence: str) -> str:
    svg = Svg(WIDTH, TITLE, sentence)
    top = heading(svg, "measured", sentence)
    kinds = [("failed", ORANGE, "", "")] * (dead >= 0) + [("waits", GREY, "", "3 2")]
    idle = any(not awaits.get(rank) and rank != dead for rank in range(size))
    top = legend(svg, top, kinds + [("goes on, or has ended", "#ffffff", "", "")] * idle)
    tall = 70 if size <= 4 else 115
    where = Round(WIDTH / 2, top + tall + 28, 130 if size <= 4 else 190, tall, 20, size)
    for rank, on in awaits.items():
        for other in on:
            if max(rank, other) < size and rank != other:
                _arrow(svg, where.place(rank), where.place(other), where.radius)
    for rank in range(size):
        x, y = where.place(rank)
        waits = bool(awaits.get(rank))
        svg.add("circle", cx=x, cy=y, r=20, fill=ORANGE if rank == dead else GREY if waits else "#ffffff",
                stroke=ON_COLOUR, stroke_width=1.2, stroke_dasharray="3 2" if waits else "")  # fmt: skip
        if rank == dead:
            for way in (1, -1):
                svg.line(x - 14, y - 14 * way, x + 14, y + 14 * way)
            svg.add("circle", cx=x, cy=y, r=9, fill=ORANGE)
        svg.text(x, y + 4, str(rank), 13, "middle", bold=True, on_colour=True)
    return svg.render(top + 2 * tall + 60)


def _arrow(svg: Svg, start: tuple[float, float], end: tuple[float, float], radius: float) -> None:
    (x1, y1), (x2, y2) = start, end
    length = math.hypot(x2 - x1, y2 - y1)
    ux, uy = (x2 - x1) / length, (y2 - y1) / length
    side = 5.0  # two that wait for each other have two arrows
    sx, sy = x1 + ux * radius - uy * side, y1 + uy * radius + ux * side
    ex, ey = x2 - ux * (radius + 3) - uy * side, y2 - uy * (radius + 3) + ux * side
    svg.path(f"M{number(sx)} {number(sy)} L{number(ex)} {number(ey)}", width=1.5, dash="4 2")
    svg.arrow_head(ex, ey, ux, uy, 9)
