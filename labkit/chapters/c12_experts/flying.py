"""Tokens that fly to their experts, queue there, and come back: from what a layer did on real ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from labkit import book
from labkit.book.drawing.figure import WIDTH, heading
from labkit.book.drawing.style import ON_COLOUR, SERIES
from labkit.book.drawing.svg import Svg
from labkit.chapters.c12_experts.layers import Told

HOME, QUEUE, HIGH, PER_ROW = 14.0, 352.0, 300.0, 12


@dataclass(frozen=True)
class Choice:
    """One choice of a token: where the token lives, and which place it has in which expert's queue."""

    rank: int
    token: int
    expert: int
    place: int
    kept: bool


def choices_of(told: Sequence[Told]) -> list[Choice]:
    """All choices of all ranks. Kept ones stand first in a queue; then better choices, lower ranks, earlier tokens."""
    flat = [
        (not one.kept[n][k], k, rank, n, one.experts[n][k])
        for rank, one in enumerate(told)
        for n in range(len(one.experts))
        for k in range(len(one.experts[n]))
    ]
    queues: dict[int, int] = {}
    found = []
    for over, _, rank, n, expert in sorted(flat):
        place = queues.get(expert, 0)
        queues[expert] = place + 1
        found.append(Choice(rank, n, expert, place, not over))
    return found


def rows_by_rank(told: Sequence[Told]) -> list[int]:
    """Rows that the experts of each rank compute."""
    rows, each = [0] * len(told), len(told[0].load) // len(told)
    for one in choices_of(told):
        rows[one.expert // each] += one.kept
    return rows


def flying(run: Any) -> book.Player:
    """Home, chosen, on the way, in the queues, computed as far as half of the slowest rank's time, back."""
    told: list[Told] = run.results
    every = choices_of(told)
    tokens, kept = sum(len(one.experts) for one in told), sum(one.kept for one in every)
    over, rows = len(every) - kept, rows_by_rank(told)
    slow = max(range(len(rows)), key=rows.__getitem__)
    half, few = rows[slow] / 2, len(every) // tokens
    done = [r for r, n in enumerate(rows) if n <= half]
    early = f"rank{'s' * (len(done) > 1)} {_list(done)} {'have' if len(done) > 1 else 'has'} finished and must wait"
    limit = f"and takes at most {told[0].slots}" if told[0].slots is not None else "and takes everybody"
    losers = _losers(every, told)
    moments = [
        (0.0, f"{tokens} tokens are at home on {len(told)} ranks. Each chose {few} of {len(told[0].load)} experts."),
        (0.35, f"Dispatch: {kept} of {len(every)} choices fly to the ranks of their experts."
         + (f" The other {over} find their expert full and stay at home." if over else "")),
        (0.7, "Dispatch: they are nearly there."),
        (1.0, f"Each expert has a queue, {limit}. {over} of {len(every)} choices are dropped."),
        (1.1, f"Rank {slow} has {rows[slow]} choices to compute. Half-way, "
         + (early if done else "all others still work")
         + "."),
        (0.5, "Combine: what was computed flies back to its token."),
        (0.0, f"Home again. {losers} tokens have lost a choice or all of them." if losers else
         "Home again. Every token has the results of all its experts."),
    ]  # fmt: skip
    frames = [(_moment(words, told, every, at, n, run.trace.badge), words) for n, (at, words) in enumerate(moments)]
    each = len(told[0].load) // len(told)
    rows_of = [
        {"expert": e, "rank": e // each, "chosen": told[0].load[e],
         "computed": sum(c.kept for c in every if c.expert == e)} for e in range(len(told[0].load))
    ]  # fmt: skip
    return book.play(frames, title="Tokens fly to their experts", badge=run.trace.badge, rows=rows_of, still=3)


def _losers(every: Sequence[Choice], told: Sequence[Told]) -> int:
    return len({(c.rank, c.token) for c in every if not c.kept})


def _list(ranks: Sequence[int]) -> str:
    *first, last = map(str, ranks) if ranks else ("",)
    return f"{', '.join(first)} and {last}" if first else last


def _moment(words: str, told: Sequence[Told], every: Sequence[Choice], at: float, n: int, badge: str) -> str:
    """at: 0 home, 1 in the queues, between: on the way. n: which moment."""
    svg = Svg(WIDTH, "Tokens fly to their experts", words)
    top = max(heading(svg, badge, words), 72.0) + 8
    experts, size = len(told[0].load), len(told)
    each, band, lane = experts // size, HIGH / size, HIGH / experts
    svg.text(HOME, top, "tokens, at home", 11.5, bold=True)
    svg.text(QUEUE - 66, top, "experts and their queues", 11.5, bold=True)
    top += 10
    step = min(10.0, (WIDTH - 12 - QUEUE) / max(1, max(told[0].load)))
    most, rows = max(rows_by_rank(told)), rows_by_rank(told)
    for r in range(size):
        svg.rect(HOME - 6, top + r * band + 2, 236, band - 4, radius=5)
        svg.text(HOME, top + r * band + 15, f"rank {r}", 10.5)
        waits = n == 4 and rows[r] <= most / 2
        svg.rect(QUEUE - 72, top + r * band + 2, WIDTH - QUEUE + 68, band - 4, radius=5, dash="4 3" if waits else "")
        if waits:
            svg.text(WIDTH - 12, top + r * band + 15, f"rank {r} waits", 10.5, "end", bold=True)
    for e in range(experts):
        svg.text(QUEUE - 66, top + (e + 0.5) * lane + 4, f"expert {e}", 10.5)
    slots = told[0].slots
    if slots is not None:
        x = QUEUE + (slots - 0.5) * step
        if x < WIDTH - 8:
            svg.line(x, top, x, top + HIGH, dash="6 3", width=2)
            svg.text(min(x + 4, WIDTH - 4), top + HIGH + 14, f"capacity {slots}", 10.5, "start" if x < 660 else "end")

    def home(rank: int, token: int) -> tuple[float, float]:
        line, column = divmod(token, PER_ROW)
        if band < 45:  # no room below the rank's name, but beside it
            return HOME + 50 + 18 * column, top + rank * band + 14 + 22 * line
        return HOME + 10 + 18 * column, top + rank * band + 26 + 22 * line

    def queue(c: Choice) -> tuple[float, float]:
        return QUEUE + c.place * step, top + (c.expert + 0.5) * lane

    _tokens(svg, told, every, home, n)
    for c in every:
        if n in (0, 6) or not c.kept:
            continue
        (x, y), (u, v) = home(c.rank, c.token), queue(c)
        part = min(at, 1.0)
        place = x + part * (u - x), y + part * (v - y)
        done = n == 4 and rows[c.expert // each] and _finished(c, told, every, most)
        _mark(svg, *place, c.rank, min(4.2, 0.46 * step), bool(done) or n == 5)
    dropped = "One stroke: a choice dropped. Cross: all dropped. " if sum(not c.kept for c in every) and n else ""
    svg.text(HOME, top + HIGH + 14, dropped + "Dot: computed." * (n >= 4), 10)
    return svg.render(top + HIGH + 24)


def _finished(c: Choice, told: Sequence[Told], every: Sequence[Choice], most: int) -> bool:
    """Half of the slowest rank's time has passed: a rank computes its experts one after the other."""
    each = len(told[0].load) // len(told)
    mine = [o for o in every if o.kept and o.expert // each == c.expert // each]
    before = sum((o.expert, o.place) < (c.expert, c.place) for o in mine)
    return c.kept and before < most / 2


def _mark(svg: Svg, x: float, y: float, rank: int, size: float, done: bool) -> None:
    """A token of this rank: its marker, with a dot where it is computed."""
    svg.marker(x, y, SERIES[rank].marker, SERIES[rank].colour, size)
    if done:
        svg.marker(x, y, "circle", ON_COLOUR, 0.4 * size)


def _tokens(svg: Svg, told: Sequence[Told], every: Sequence[Choice], home: Any, n: int) -> None:
    """The tokens at home: with their choices at first, then struck out where these are dropped; at the end computed."""
    for rank, one in enumerate(told):
        for token, chosen in enumerate(one.experts):
            x, y = home(rank, token)
            kept = one.kept[token]
            gone = 0 < n < 6
            svg.marker(x, y, SERIES[rank].marker, "#e3e3e3" if gone else SERIES[rank].colour, 5)
            if n == 6 and all(kept):
                svg.marker(x, y, "circle", ON_COLOUR, 2)
            if n > 0 and not all(kept):
                svg.line(x - 6, y - 6, x + 6, y + 6, width=1.6, colour=ON_COLOUR)
            if n > 0 and not any(kept):
                svg.line(x - 6, y + 6, x + 6, y - 6, width=1.6, colour=ON_COLOUR)
            if n == 0:
                svg.text(x, y + 12, ",".join(map(str, chosen)), 8, "middle")
