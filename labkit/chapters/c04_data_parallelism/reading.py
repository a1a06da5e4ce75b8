"""Who reads which sample of an epoch: a picture for each step, and what became of the samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from labkit import book
from labkit.book.drawing.figure import WIDTH, heading, legend
from labkit.book.drawing.style import SERIES
from labkit.book.drawing.svg import Svg
from labkit.book.drawing.units import listing, plural

Epochs = Sequence[Sequence[Sequence[Sequence[int]]]]  # by rank, epoch and step: the numbers of samples


COUNT = 27  # samples of an epoch
SHOWN = 14  # of those that rank 0 reads


def shares(run: Any) -> str:
    """What became of the samples of an epoch, and whether the next one has the same order."""
    read, count = _times(run.results), COUNT
    never, twice = sum(not t for t in read), sum(t > 1 for t in read)
    same = all(first == second for first, second in run.results)
    again = "twice" if max(read) == 2 else "more than once"
    firsts, everybody = [first for first, _ in run.results], ""
    if len(firsts) > 1 and all(len({e for batch in first for e in batch}) == count for first in firsts):
        steps, shared = len(firsts[0]), -(-count // (len(firsts) * len(firsts[0][0])))
        everybody = f"{plural(steps, 'step')} in place of {shared}"
    every = f"All {count} samples were read, {f'{twice} of them {again}' if twice else 'each of them once'}."
    if everybody:
        every = f"Every rank read all {count} samples, in {everybody}."
    some = f"{never} of {count} samples {'was' if never == 1 else 'were'} never read"
    became = every if not never else f"{some}, and {twice} more than once." if twice else f"{some}, the others once."
    return (
        f"{became}{_without(firsts)} "
        f"In the next epoch the ranks read {'the same batches in the same order' if same else 'them in another order'} "
        f"({run.trace.badge})."
    )


def _without(firsts: Sequence[Sequence[Sequence[int]]]) -> str:
    """Which ranks have no sample in the last step."""
    steps = max(map(len, firsts))
    idle = [str(rank) for rank, first in enumerate(firsts) if len(first) < steps or not first[-1]]
    if not idle:
        return ""
    return (
        f" In the last step rank{'s' * (len(idle) > 1)} {listing(idle)} ha{'ve' if len(idle) > 1 else 's'} no sample."
    )


def _times(results: Sequence[Any]) -> list[int]:
    times = [0] * COUNT
    for first, _ in results:
        for batch in first:
            for sample in batch:
                times[sample] += 1
    return times


def who_reads(run: Any) -> book.Player:
    """The samples of an epoch, and which rank has read which: a moment for each step."""
    firsts = [first for first, _ in run.results]
    steps = max(map(len, firsts))
    nexts = [following for _, following in run.results]
    frames = [_samples(firsts, nexts, step, run.trace.badge) for step in range(steps + 1)]
    rows = [
        {"rank": rank} | {f"step {k}": " ".join(map(str, batch)) for k, batch in enumerate(first)}
        for rank, first in enumerate(firsts)
    ]
    return book.play(frames, title="Who reads which sample", badge=run.trace.badge, rows=rows,
                     begin=len(frames) - 1)  # fmt: skip


def _samples(
    firsts: Sequence[Sequence[Sequence[int]]], nexts: Sequence[Sequence[Sequence[int]]], step: int, badge: str
) -> tuple[str, str]:
    """The samples after `step` steps: whose they were, in colour and number; those of this step have a thick edge.

    Below them is what rank 0 reads in this epoch and in the next one.
    """
    count = COUNT
    readers: list[list[int]] = [[] for _ in range(count)]
    for rank, first in enumerate(firsts):
        for batch in first[:step]:
            for sample in batch:
                readers[sample].append(rank)
    now = {e for first in firsts if step and len(first) >= step for e in first[step - 1]}
    read, twice = sum(map(bool, readers)), sum(len(r) > 1 for r in readers)
    said = f"After {plural(step, 'step')}: {read} of {count} samples have been read, {twice} of them twice or more."
    svg = Svg(WIDTH, "Who reads which sample", said)
    top = heading(svg, badge, said)
    looks = [(f"rank {rank}", SERIES[rank].colour, SERIES[rank].hatch, "") for rank in range(len(firsts))]
    top = legend(svg, top, looks)
    svg.rect(9, top, 16, 11, stroke_width=3)
    svg.text(31, top + 10, "thick frame: read in this step", 11.5)
    top += 26
    columns, wide, high = 14, 50.0, 44.0
    for e in range(count):
        x, y = 16 + (e % columns) * (wide + 2), top + (e // columns) * (high + 14)
        svg.text(x + wide / 2, y + 8, str(e), 10, "middle")
        mine = readers[e]
        part = wide / max(len(mine), 1)
        for k, rank in enumerate(mine):
            svg.rect(x + k * part, y + 12, part, high - 14, SERIES[rank].colour, SERIES[rank].hatch, "none")
            if part > 14:
                svg.rect(x + (k + 0.5) * part - 7, y + 18, 14, 16, "#ffffff", stroke="none", radius=3)
                svg.text(x + (k + 0.5) * part, y + 30, str(rank), 11, "middle", on_colour=True)
        edge = 3 if e in now else 0.7
        svg.rect(x, y + 12, wide, high - 14, "none", dash="" if mine else "3 3", stroke_width=edge)
    top += -(-count // columns) * (high + 14) + 8
    for name, epoch in (("this epoch", firsts[0]), ("the next one", nexts[0])):
        svg.text(16, top + 13, f"rank 0, {name}", 11)
        for k, e in enumerate([e for batch in epoch for e in batch][:SHOWN]):
            svg.rect(130 + 30 * k, top, 28, 18, "none", stroke_width=0.7)
            svg.text(144 + 30 * k, top + 13, str(e), 10.5, "middle")
        if sum(map(len, epoch)) > SHOWN:
            svg.text(136 + 30 * SHOWN, top + 13, "and so on", 11)
        top += 24
    return svg.render(top + 4), said
