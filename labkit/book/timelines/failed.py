"""When a run failed: who waited for whom, the ranks around a circle as the status pages had them at that moment.

Where ranks disagreed about a collective: what each of them brought, because who waits then is only a consequence.
"""

from __future__ import annotations

import math
import re
from typing import Any

from labkit.book.drawing.circle import Round
from labkit.book.drawing.figure import WIDTH, Figure, heading, legend
from labkit.book.drawing.style import GREY, ON_COLOUR, ORANGE
from labkit.book.drawing.svg import Svg, number, text_width
from labkit.book.drawing.tables import Row
from labkit.book.drawing.units import listing

MOST = 24
TITLE, BROUGHT = "Who waits for whom", "What each rank brought"


def after_failure(failure: Any, size: int, told: bool = False) -> Figure:
    """failure: a `labkit.Failure`. An arrow goes from each rank to each one that it waits for; the one that failed is
    crossed out. told: what failed has been said already, so the sentence is about the others alone."""
    if failure.kind == "mismatch" and (brought := _brought(failure.message)):
        return _disagreement(failure.message, *brought, size, told)
    awaits = {rank: on for rank, on in sorted(failure.awaits.items()) if rank != failure.rank}
    raised = f"rank {failure.rank} raised {failure.error}: " if failure.kind in ("raised", "exit") else ""
    first = raised + failure.message.partition("\n")[0].removeprefix(f"rank {failure.rank}: ")
    said = "; ".join(f"rank {rank} for {_ranks(on)}" for rank, on in awaits.items() if on)
    end = _ending(awaits, failure.rank, size, "raised its error" if raised else "failed")
    waits = (
        f"Who waits: {said}.{_in_call(failure.message)}{end}"
        if said
        else "Nobody waited for another rank at that moment."
    )
    sentence = waits if told else f"{first[:1].upper()}{first[1:]}. {waits}"
    rows: list[Row] = [
        {"rank": rank, "waits for rank": listing([str(r) for r in awaits.get(rank, [])]) if awaits.get(rank) else "-"}
        | ({"it was": _doing(failure, rank)} if failure.waiting else {})
        for rank in range(size)
    ]
    return Figure(TITLE, "measured", sentence, rows, svg=_picture(awaits, failure.rank, min(size, MOST), sentence))


def _in_call(message: str) -> str:
    """In which of their calls the ranks wait, if all are in calls with the same number."""
    calls = set(re.findall(r", call (\d+) \(waits", message))
    return f" Each of them waits in call {calls.pop()}, counted from the first collective." if len(calls) == 1 else ""


def _brought(message: str) -> tuple[dict[int, str], set[int]] | None:
    """What each rank called, and the ranks that differ from most; None where the message is about something else."""
    told = re.fullmatch(r"(.+), but (ranks? .+?) called (.+) \(call \d+ of the group\)", message.partition("\n")[0])
    odd = [re.fullmatch(r"(ranks? .+?) called (.+)", part) for part in (told[1].split("; ") if told else [])]
    if told is None or not all(odd):
        return None
    different = {rank: one[2] for one in odd if one for rank in _numbers(one[1])}
    return dict.fromkeys(_numbers(told[2]), told[3]) | different, set(different)


def _numbers(ranks: str) -> list[int]:
    """[1, 4, 5, 6] of `ranks 1 and 4 to 6`."""
    runs = re.findall(r"(\d+)(?: to (\d+))?", ranks)
    return [rank for first, last in runs for rank in range(int(first), int(last or first) + 1)]


def _disagreement(message: str, brought: dict[int, str], odd: set[int], size: int, told: bool) -> Figure:
    """The ranks around a circle, each with its call; those that differ from most are crossed out."""
    first = message.partition("\n")[0]
    few = f"{_ranks(sorted(odd))} brought something else than the others"
    sentence = f"{few[:1].upper()}{few[1:]}." if told else f"{first[:1].upper()}{first[1:]}."
    rows: list[Row] = [
        {"rank": rank, "called": brought.get(rank, "-"), "differs": "yes" if rank in odd else "no"}
        for rank in range(size)
    ]
    words = {rank: _tensor(call, brought) for rank, call in brought.items()}
    svg = Svg(WIDTH, BROUGHT, sentence)
    top = legend(svg, heading(svg, "measured", sentence), [("differs from most", ORANGE, "", "")])
    shown = min(size, MOST)
    where = _round(top, shown)
    for rank in range(shown):
        _rank(svg, where, rank, ORANGE if rank in odd else "#ffffff", crossed=rank in odd)
        x, y = where.bars(rank, text_width(words.get(rank, ""), 12), 16)
        svg.text(x, y + 12, words.get(rank, ""), 12, bold=rank in odd)
    return Figure(BROUGHT, "measured", sentence, rows, svg=svg.render(top + 2 * where.tall + 84))


def _tensor(call: str, brought: dict[int, str]) -> str:
    """What stands beside a rank: the tensor alone, where nothing else differs."""
    parts = {one: re.fullmatch(r"(.*) on (\S+)( .*)", one) for one in brought.values()}
    if all(parts.values()) and len({(p[1], p[3]) for p in parts.values() if p}) == 1:
        return str(parts[call][2])  # type: ignore[index]
    return call


def _round(top: float, size: int) -> Round:
    tall = 70 if size <= 4 else 115
    return Round(WIDTH / 2, top + tall + 40, 130 if size <= 4 else 190, tall, 20, size)


def _rank(svg: Svg, where: Round, rank: int, fill: str, crossed: bool, dash: str = "") -> None:
    x, y = where.place(rank)
    svg.add("circle", cx=x, cy=y, r=20, fill=fill, stroke=ON_COLOUR, stroke_width=1.2, stroke_dasharray=dash)
    if crossed:
        for way in (1, -1):
            svg.line(x - 14, y - 14 * way, x + 14, y + 14 * way)
        svg.add("circle", cx=x, cy=y, r=9, fill=ORANGE)
    svg.text(x, y + 4, str(rank), 13, "middle", bold=True, on_colour=True)


def _ending(awaits: dict[int, list[int]], failed: int, size: int, did: str) -> str:
    """Where all the arrows lead: to one rank, or around; or who had not come so far when another one failed."""
    last = {r for on in awaits.values() for r in on if not awaits.get(r)}
    moving = [r for r in range(size) if not awaits.get(r) and r != failed]
    if failed >= 0 and moving and last:
        one = "it" if len(moving) == 1 else "one of them"
        return (
            f" This is the moment at which rank {failed} {did}. {_ranks(moving).capitalize()} had not come so far yet, "
            f"and an arrow to {one} does not say that it is to blame."
        )
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
    where = _round(top - 12, size)
    for rank, on in awaits.items():
        for other in on:
            if max(rank, other) < size and rank != other:
                _arrow(svg, where.place(rank), where.place(other), where.radius)
    for rank in range(size):
        waits = bool(awaits.get(rank))
        fill = ORANGE if rank == dead else GREY if waits else "#ffffff"
        _rank(svg, where, rank, fill, crossed=rank == dead, dash="3 2" if waits else "")
    return svg.render(top + 2 * where.tall + 60)


def _arrow(svg: Svg, start: tuple[float, float], end: tuple[float, float], radius: float) -> None:
    (x1, y1), (x2, y2) = start, end
    length = math.hypot(x2 - x1, y2 - y1)
    ux, uy = (x2 - x1) / length, (y2 - y1) / length
    side = 5.0  # two that wait for each other have two arrows
    sx, sy = x1 + ux * radius - uy * side, y1 + uy * radius + ux * side
    ex, ey = x2 - ux * (radius + 3) - uy * side, y2 - uy * (radius + 3) + ux * side
    svg.path(f"M{number(sx)} {number(sy)} L{number(ex)} {number(ey)}", width=1.5, dash="4 2")
    svg.arrow_head(ex, ey, ux, uy, 9)
