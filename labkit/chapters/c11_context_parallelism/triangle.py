"""Pairs of query and key, drawn as a square and played round by round: who computes which, and who is idle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from labkit import book
from labkit.book.drawing.figure import WIDTH, heading
from labkit.book.drawing.style import ON_COLOUR, SERIES
from labkit.book.drawing.svg import Svg, number
from labkit.chapters.c11_context_parallelism.attention import packed
from labkit.parallel.context.masks import Mask

SIDE, LEFT = 288.0, 70.0  # of the square, and the room left of it


def rounds(positions: Sequence[Tensor], mask: Mask, last: int, badge: str, title: str) -> book.Player:
    """positions: of each rank. last: how many rounds there are. One picture for each round."""
    n = len(positions)
    allowed = [mask.allowed(q, k) for q in positions for k in positions]
    work = [[int(allowed[r * n + (r - i) % n].sum()) for r in range(n)] for i in range(last)]
    frames = [_round(positions, mask, work, i, badge, title) for i in range(last)]
    rows = [{"round": i} | {f"rank {r}": pairs for r, pairs in enumerate(done)} for i, done in enumerate(work)]
    return book.play(frames, title=title, badge=badge, rows=rows, still=min(1, last - 1), begin=min(1, last - 1))


def of_layout(layout: Callable[[int, int, int], Tensor], size: int) -> book.Player:
    """Who computes which pair of a small causal text, 6 tokens for each rank. layout: as the page's `zigzag`."""
    title = f"The square of {book.whose(layout)} {layout.__name__}, 6 tokens on a rank"
    positions = [layout(rank, size, 6 * size).sort().values for rank in range(size)]
    return rounds(positions, Mask(), size, "simulated", title)


def _round(
    positions: Sequence[Tensor], mask: Mask, work: Sequence[Sequence[int]], i: int, badge: str, title: str
) -> tuple[str, str]:
    n, length = len(positions), sum(map(len, positions))
    most = max(work[i])
    idle = [r for r in range(n) if not work[i][r]]
    busy = [r for r in range(n) if work[i][r] == most]
    pace = f"every rank computes {most} pairs"
    if len(busy) < n:
        pace = f"rank {busy[0]} has most, {most} pairs"
        if len(busy) > 1:
            pace = f"{len(busy)} of {n} ranks compute {most} pairs each"
            less = {r: pairs for r, pairs in enumerate(work[i]) if 0 < pairs < most}
            few, many = min(less.values(), default=0), max(less.values(), default=0)
            if len(less) == 1:
                pace += f", and rank {next(iter(less))} computes {few}"
            elif less:
                pace += f", and others {few}" + (f" to {many}" if many > few else "")
    elif not most:  # a short window, or other texts: what has come may be read by nobody
        pace, idle = "no rank has anything to compute, and the blocks only travel on", []
    said = f"Round {i} (the last is {len(work) - 1}): {pace}" if len(work) > 1 else f"The only round: {pace}"
    if idle:
        named = f"rank{'s' * (len(idle) > 1)} {', '.join(map(str, idle))}"
        said += f", and {named} {'have' if len(idle) > 1 else 'has'} nothing to compute"
    said += "."
    svg = Svg(WIDTH, title, said)
    top = heading(svg, badge, said) + 22
    cell = SIDE / length
    longest = max(map(len, positions))
    owner = {int(p): r for r, part in enumerate(positions) for p in part}
    hidden: list[tuple[float, float, float]] = []
    parts: dict[tuple[int, str], list[tuple[float, float, float]]] = {}
    for q in range(length):
        row = _states(q, owner, positions, mask, i, n)
        start = 0
        for k in range(1, length + 1):
            if k == length or row[k] != row[start]:
                place = (LEFT + start * cell, top + q * cell, (k - start) * cell)
                if row[start] != "hidden":
                    parts.setdefault((owner[q], row[start]), []).append(place)
                else:
                    hidden.append(place)
                start = k
    svg.text(LEFT + SIDE / 2, top - 7, "keys, from the first token to the last", 11, "middle")
    for (rank, state), places in sorted(parts.items(), key=lambda item: item[0][1] == "now"):
        d = " ".join(f"M{number(x)} {number(y)}h{number(w)}v{number(cell)}h{number(-w)}z" for x, y, w in places)
        look = SERIES[rank % len(SERIES)]
        if state == "now":
            svg.add("path", d=d, fill=svg.hatched(look.colour, look.hatch) if look.hatch else look.colour)
        elif state == "done":
            svg.add("path", d=d, fill=look.colour, fill_opacity="0.3")
    svg.path(f"M{number(LEFT)} {number(top)}h{number(SIDE)}v{number(SIDE)}h{number(-SIDE)}z")
    if mask.causal:
        svg.line(LEFT, top, LEFT + SIDE, top + SIDE, dash="3 3")
    _owners(svg, positions, owner, top, cell)
    _bars(svg, work, i, top, (longest**2, longest * length - longest * (longest - 1) // 2))
    svg.text(LEFT, top + SIDE + 17, "solid: this round; pale: earlier; empty: later, or hidden by the mask", 11)
    return svg.render(top + SIDE + 30), said


def _states(q: int, owner: dict[int, int], positions: Sequence[Tensor], mask: Mask, i: int, n: int) -> list[str]:
    """For each key: "now", "done", "to come" or "hidden", as the query at `q` sees it in round i."""
    length = len(owner)
    seen = mask.allowed(positions[owner[q]][positions[owner[q]] == q], _all(length))[0].tolist()
    states = []
    for k in range(length):
        turn = (owner[q] - owner[k]) % n
        states.append("hidden" if not seen[k] or turn > i else "now" if turn == i else "done")
    return states


def _all(length: int) -> Tensor:
    import torch

    return torch.arange(length)


def _owners(svg: Svg, positions: Sequence[Tensor], owner: dict[int, int], top: float, cell: float) -> None:
    """Left of the rows: whose queries they are, where several neighbouring rows have one owner."""
    length, start = len(owner), 0
    striped = len(positions) > 1 and owner[0] != owner[1] if length > 1 else False
    if striped:
        svg.text(LEFT - 6, top + SIDE / 2 - 14, "rows in", 11, "end")
        svg.text(LEFT - 6, top + SIDE / 2, "turn: 0,", 11, "end")
        svg.text(LEFT - 6, top + SIDE / 2 + 14, "1, 2, ...", 11, "end")
        return
    svg.text(LEFT - 6, top - 7, "queries of", 11, "end")
    for q in range(1, length + 1):
        if q == length or owner[q] != owner[start]:
            if (q - start) * cell >= 11:
                svg.text(LEFT - 6, top + (start + q) / 2 * cell + 4, f"rank {owner[start]}", 11, "end")
            svg.line(LEFT - 4, top + q * cell, LEFT, top + q * cell)
            start = q


def _bars(svg: Svg, work: Sequence[Sequence[int]], i: int, top: float, most: tuple[int, int]) -> None:
    """On the right: the pairs of each rank in this round, and in all rounds so far.

    most: what fills a box, a whole block and all pairs of the last rank of a contiguous layout, whatever the layout and
    the mask are, so that the bars of pictures with as many ranks can be compared.
    """
    n, left = len(work[0]), LEFT + SIDE + 76
    wide, high = (WIDTH - left - 22) / 2 - 14, min(30.0, SIDE / n)
    so_far = [sum(work[j][r] for j in range(i + 1)) for r in range(n)]
    columns: list[tuple[str, Sequence[int]]] = [("pairs in this round", work[i]), ("pairs so far", so_far)]
    for c, (name, values) in enumerate(columns):
        x = left + c * (wide + 30)
        svg.text(x, top - 7, name, 11)
        for r, value in enumerate(values):
            y, look = top + r * high, SERIES[r % len(SERIES)]
            if not c:
                svg.text(x - 6, y + high / 2 + 3, f"rank {r}", 11, "end")
            svg.rect(x, y + 2, wide - 30, high - 6, stroke_width=0.4, dash="2 2")
            if value:
                svg.rect(x, y + 2, (wide - 30) * value / most[c], high - 6, look.colour, look.hatch, ON_COLOUR,
                         stroke_width=0.6)  # fmt: skip
            svg.text(x + wide - 26, y + high / 2 + 3, str(value) if value else "idle" if not c else "0", 10.5)


def of_run(title: str) -> Callable[[Any], book.Player]:
    """A view: each rank returned its positions, and sent a block in every round but one."""

    def view(run: Any, window: int | None = None, texts: int = 1) -> book.Player:
        mask = Mask(window=window, documents=packed(sum(map(len, run.results)), texts))
        return rounds(run.results, mask, run.trace.messages()[0] + 1, run.trace.badge, title)

    return view
