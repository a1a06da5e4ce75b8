"""The wait-for picture: a circle for each rank, an arrow to the rank that it waits for.

Of a schedule that deadlocks (`ScheduleError`), or of a run that failed (`RankFailed`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from labkit.book.drawing.figure import WIDTH, Figure, heading, legend
from labkit.book.drawing.style import GREY, ON_COLOUR, ORANGE
from labkit.book.drawing.svg import Svg, number
from labkit.book.drawing.tables import Row
from labkit.book.timelines.failed import after_failure
from labkit.book.timelines.waits_plotly import spec

RADIUS = 24.0
WIDE = 230.0  # half of the ellipse on which the circles lie
MOST_DRAWN = 24
TITLE, BADGE = "Who waits for whom", "simulated"


class Wait(Protocol):
    """Rank `rank` cannot do `at` before rank `on` has done `needs`."""

    @property
    def rank(self) -> int: ...
    @property
    def at(self) -> str: ...
    @property
    def on(self) -> int: ...
    @property
    def needs(self) -> str: ...


class Deadlock(Protocol):
    """What is read of a `ScheduleError`."""

    @property
    def waits(self) -> Sequence[Wait]: ...
    @property
    def cycle(self) -> Sequence[Wait]: ...


@runtime_checkable
class Failed(Protocol):
    """What is read of a `RankFailed`."""

    @property
    def failure(self) -> Any: ...
    @property
    def run(self) -> Any: ...


def wait_for(error: Deadlock | Failed, told: bool = False) -> Figure:
    """The ranks that wait, each with the instruction at which it stands, and what it waits for.

    Ranks of the cycle are orange and have a double edge; those that only wait for one of them are grey.
    Text equivalent: a row for each wait. told: of a run, what failed stands beside the picture already. Raises
    ValueError for a schedule's error that is no deadlock.
    """
    if isinstance(error, Failed):
        return after_failure(error.failure, error.run.spec.world_size, told)
    waits, cycle = list(error.waits), list(error.cycle)
    if not waits:
        raise ValueError("this error is not about a deadlock, so nobody waits for anybody: read its text")
    ring = {wait.rank for wait in cycle}
    said = ", ".join(f"rank {w.rank} at {w.at} waits for {w.needs} of "
                     f"{'its own' if w.on == w.rank else f'rank {w.on}'}" for w in cycle)  # fmt: skip
    others = [w.rank for w in waits if w.rank not in ring]
    sentence = f"A circle of {len(cycle)}: {said}."
    if others:
        sentence += f" {len(others)} more wait for them: {', '.join(f'rank {r}' for r in others)}."
    rows: list[Row] = [
        {"rank": w.rank, "stands at": w.at, "waits for": w.needs, "of rank": w.on,
         "in the circle": "yes" if w.rank in ring else "no"} for w in waits
    ]  # fmt: skip
    drawn = waits if len(waits) <= MOST_DRAWN else cycle[:MOST_DRAWN]
    where = _places(sorted({w.rank for w in drawn} | {w.on for w in drawn}))
    return Figure(
        TITLE, BADGE, sentence, rows, svg=_picture(drawn, ring, where, sentence),
        spec=spec(drawn, ring, where, TITLE, BADGE),
    )  # fmt: skip


def _places(ranks: Sequence[int]) -> dict[int, tuple[float, float]]:
    """Where each rank's circle lies, in pixels around (0, 0), upwards: on an ellipse, from the left."""
    tall = 0.0 if len(ranks) <= 2 else 36.0 + 11 * len(ranks)
    turns = [2 * math.pi * i / len(ranks) for i in range(len(ranks))]
    return {
        rank: (round(-WIDE * math.cos(turn), 1), round(tall * math.sin(turn), 1))
        for rank, turn in zip(ranks, turns, strict=True)
    }


def _picture(waits: Sequence[Wait], ring: set[int], where: Mapping[int, tuple[float, float]], sentence: str) -> str:
    svg = Svg(WIDTH, TITLE, sentence)
    top = heading(svg, BADGE, sentence)
    looks = [("in the circle", ORANGE, "", ""), ("waits for one that is", GREY, "", "3 2")]
    top = legend(svg, top, looks[: 1 + any(w.rank not in ring for w in waits)])
    tall = max(50.0, *(abs(y) for _, y in where.values()))
    middle = top + tall + 56
    where = {rank: (WIDTH / 2 + x, middle - y) for rank, (x, y) in where.items()}
    for wait in waits:
        if wait.on != wait.rank:
            _arrow(svg, where[wait.rank], where[wait.on], wait.needs, wait.rank not in ring)
        else:
            x, y = where[wait.rank]
            svg.path(f"M{number(x - 12)} {number(y - RADIUS)} C{number(x - 50)} {number(y - 80)} {number(x + 50)} "
                     f"{number(y - 80)} {number(x + 12)} {number(y - RADIUS - 2)}", width=1.4)  # fmt: skip
            svg.arrow_head(x + 12, y - RADIUS - 2, -0.6, 1, 9)
            svg.text(x + 34, y - 56, wait.needs, size=11)
    at = {wait.rank: wait.at for wait in waits}
    for rank, (x, y) in where.items():
        inside = rank in ring
        svg.add("circle", cx=x, cy=y, r=RADIUS, fill=ORANGE if inside else GREY, stroke=ON_COLOUR, stroke_width=1.2,
                stroke_dasharray="" if inside else "3 2")  # fmt: skip
        if inside:
            svg.add("circle", cx=x, cy=y, r=RADIUS - 4, fill="none", stroke=ON_COLOUR, stroke_width=0.8)
        svg.text(x, y + 4, str(rank), size=13, anchor="middle", bold=True, on_colour=True)
        sideways, down = (x - WIDTH / 2) / WIDE, (y - middle) / tall  # the text stands outside
        dx, dy = (0.0, (1 if down > 0 else -1) * (RADIUS + 10) + 4) if abs(sideways) < 0.5 else (
            math.copysign(RADIUS + 8, sideways), 4.0)  # fmt: skip
        anchor = "middle" if not dx else "start" if dx > 0 else "end"
        if rank in at:
            svg.text(x + dx, y + dy, f"at {at[rank]}", size=11.5, anchor=anchor)
    return svg.render(middle + tall + 40)


def _arrow(svg: Svg, start: tuple[float, float], end: tuple[float, float], text: str, faint: bool) -> None:
    """A bent arrow between two circles, so that one each way can be told apart, with its text at the bend."""
    (x1, y1), (x2, y2) = start, end
    length = math.hypot(x2 - x1, y2 - y1)
    ux, uy = (x2 - x1) / length, (y2 - y1) / length
    bend = 0.16 * length
    cx, cy = (x1 + x2) / 2 + uy * bend, (y1 + y2) / 2 - ux * bend
    first, last = math.hypot(cx - x1, cy - y1), math.hypot(x2 - cx, y2 - cy)
    sx, sy = x1 + (cx - x1) / first * RADIUS, y1 + (cy - y1) / first * RADIUS
    ex, ey = x2 - (x2 - cx) / last * (RADIUS + 2), y2 - (y2 - cy) / last * (RADIUS + 2)
    svg.path(f"M{number(sx)} {number(sy)} Q{number(cx)} {number(cy)} {number(ex)} {number(ey)}", width=1.4,
             dash="3 2" if faint else "")  # fmt: skip
    svg.arrow_head(ex, ey, x2 - cx, y2 - cy, 9)
    tx, ty = (sx + 2 * cx + ex) / 4, (sy + 2 * cy + ey) / 4
    anchor = "start" if uy > 0.3 else "end" if uy < -0.3 else "middle"  # beside its arrow, not across it
    svg.text(tx + 8 * uy, ty - 10 * ux + 4, text, size=11, anchor=anchor)
