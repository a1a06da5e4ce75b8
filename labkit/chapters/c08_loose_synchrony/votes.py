"""A majority vote on real ranks, step by step: each rank's signs, who counts which, and what all of them get."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from labkit import book
from labkit.book.drawing.figure import WIDTH, heading
from labkit.book.drawing.style import ON_COLOUR, SERIES
from labkit.book.drawing.svg import Svg
from labkit.book.drawing.tables import Row
from labkit.chapters.c08_loose_synchrony.methods import gradient
from labkit.wire import Group

EACH = 2  # weights that a rank counts in the picture


def election(group: Group, vote: Callable[[Tensor, Group], Tensor], seed: int = 0) -> tuple[Tensor, Tensor]:
    """The signs of this rank's gradient for a few weights, 1 or -1, and what `vote` makes of those of all ranks."""
    part = gradient(seed, own=group.rank)[:, 36][: EACH * group.size]
    mine = torch.where(part < 0, -1.0, 1.0)
    return mine, vote(mine.clone(), group)


def counted(run: Any) -> book.Player:
    """run: of `election`."""
    n = run.trace.world_size
    signs, result = [mine.tolist() for mine, _ in run.results], run.results[0][1].tolist()
    ups = [sum(row[k] > 0 for row in signs) for k in range(EACH * n)]
    ties = [k for k, up in enumerate(ups) if 2 * up == n]
    lost = sum(row[k] != result[k] for row in signs for k in range(EACH * n))
    title = "A majority vote of signs"
    tied = f" For weight {ties[0]} there is a tie, so the own sign of rank {ties[0] // EACH} decides." if ties else ""
    several = "both ranks" if n == 2 else f"all {n} ranks"
    words = (
        f"Each rank has the signs of its own gradient, here for {EACH * n} weights.",
        f"Each rank counts {EACH} of the weights, those of its colour. So it receives {EACH} signs from every other.",
        f"The sign that is more frequent wins.{tied}",
        f"Each rank sends its {EACH} results to the others, and {several} move every weight equally far. "
        + (f"{lost} of the {EACH * n * n} signs lost (crossed out)." if lost else "No sign lost."),
    )
    frames = [(_signs(title, said, k, signs, result, ups), said) for k, said in enumerate(words)]
    rows: list[Row] = [
        {"weight": k, **{f"rank {r}": _sign(row[k]) for r, row in enumerate(signs)}, "counted by rank": k // EACH,
         "for +": ups[k], "result": _sign(result[k])}
        for k in range(EACH * n)
    ]  # fmt: skip
    return book.play(frames, title=title, badge="measured", rows=rows, still=len(frames) - 1)


def _sign(x: float) -> str:
    return "+" if x > 0 else "−"


def _signs(
    title: str, said: str, at: int, signs: Sequence[Sequence[float]], result: Sequence[float], ups: Sequence[int]
) -> str:  # fmt: skip
    svg = Svg(WIDTH, title, said)
    n, many = len(signs), len(result)
    top, left = max(heading(svg, "measured", said), 74.0) + 22, 120.0
    wide, high = min(62.0, (WIDTH - left - 10) / many), 28.0
    for k in range(many):
        svg.text(left + (k + 0.5) * wide, top - 6, f"weight {k}" if wide > 52 else str(k), 10.5, "middle")
    rows = [(f"rank {r}", row) for r, row in enumerate(signs)]
    for r, (name, row) in enumerate(rows):
        y = top + r * high
        svg.text(left - 10, y + 18, f"{name} has", 11.5, "end")
        for k, sign in enumerate(row):
            outvoted = at == 3 and sign != result[k]
            _cell(svg, left + k * wide, y, wide, high, k // EACH if at else None, _sign(sign))
            if outvoted:
                svg.line(
                    left + k * wide + 10, y + 4, left + (k + 1) * wide - 10, y + high - 6, width=2, colour=ON_COLOUR
                )
    y = top + n * high + 16
    if at >= 1:
        svg.text(left - 10, y + 18, "is counted by", 11.5, "end")
        for r in range(n):
            svg.text(left + (EACH * r + EACH / 2) * wide, y + 18, f"rank {r}", 11.5, "middle", True)
        y += high
    if at >= 2:
        svg.text(left - 10, y + 18, "for + and for −", 11.5, "end")
        for k, up in enumerate(ups):
            svg.text(left + (k + 0.5) * wide, y + 18, f"{up} : {n - up}", 11.5, "middle", 2 * up == n)
        y += high
        svg.text(left - 10, y + 18, "all ranks get" if at == 3 else "result", 11.5, "end", True)
        for k, sign in enumerate(result):
            _cell(svg, left + k * wide, y, wide, high, k // EACH, _sign(sign), thick=True)
        y += high
    return svg.render(top + (n + 3) * high + 26)


def _cell(
    svg: Svg, x: float, y: float, wide: float, high: float, rank: int | None, text: str, thick: bool = False
) -> None:
    look = SERIES[rank % len(SERIES)] if rank is not None else None
    colour, hatch = (look.colour, look.hatch) if look else ("#ffffff", "")
    svg.rect(x + 2, y + 1, wide - 4, high - 4, colour, hatch, ON_COLOUR, stroke_width=2.2 if thick else 0.7, radius=3)
    svg.rect(x + wide / 2 - 9, y + 4, 18, high - 10, "#ffffff", stroke="none", radius=3)
    svg.text(x + wide / 2, y + high / 2 + 4.5, text, 14, "middle", True, on_colour=True)
