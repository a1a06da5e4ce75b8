"""What chapter 13 shows of hot rows: where they lie, how many copies are worth it, and what a copy costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from labkit import book, cost
from labkit.book.drawing.figure import WIDTH, heading, legend
from labkit.book.drawing.style import ON_COLOUR, SERIES
from labkit.book.drawing.svg import Svg
from labkit.book.drawing.tables import Row
from labkit.book.drawing.units import bytes_text
from labkit.chapters.c13_embeddings.pictures import ITEM, PULL
from labkit.chapters.c13_embeddings.tables import COPIED, ROWS
from labkit.cost.units import format_seconds
from labkit.parallel.embedding.layouts import Rows

WAYS = {"range, with copies": "range 256", "modulo, without copies": "modulo 0", "modulo, with copies": "modulo 256"}


def first(run: Any) -> int:
    """Which choice of the prediction has the shortest step, from 0."""
    took = _by_way(run)
    return [*took].index(min(took, key=lambda way: took[way]))


def _by_way(run: Any) -> dict[str, float]:
    every = {by: _steps(run, by) for by in ("range", "modulo")}
    return {way: every[span.split()[0]][int(span.split()[1])] for way, span in WAYS.items()}


def spread_or_copied(run: Any) -> book.Conclusion:
    """Steps of the three ways of the prediction, beside range without copies; and what to try in the panel."""
    copied, spread, both = _by_way(run).values()
    return book.conclude(
        "With range and no copies a step takes {plain}. With 256 copies it takes {copied_s}, with modulo {spread_s}, "
        "and with both {both_s}.",
        {"spread < 0.97 * both and spread < 0.97 * copied": "So spreading is the better remedy here, and copies on top "
         "of it cost more than they save.",
         "spread < copied": "So spreading is the better remedy here, and copies on top of it hardly change anything.",
         "True": "With these parameters spreading alone is not the fastest."},
        "\n\nThe panel below tries more. A table is cut by range, or by modulo, or lies whole on rank 0. Each of these "
        "three takes {times} steps: the first without copies, and the others with {told} of the most popular rows "
        "replicated. For which placement does replicating save time, and how many copies are enough? Then set *ranks* "
        "to 8, where a hot row has more askers, and the skew to 0, where no row is hot. (A setting takes {steps} "
        "steps, so it may take a few seconds. The axis of the picture fits each setting: compare "
        "numbers and not lengths.)",
        plain=format_seconds(_steps(run, "range")[0], 3), copied=copied, spread=spread, both=both,
        copied_s=format_seconds(copied, 3), spread_s=format_seconds(spread, 3), both_s=format_seconds(both, 3),
        times=len(COPIED), steps=3 * len(COPIED),
        told=", ".join(f"{hot:,}" for hot in COPIED[1:-1]) + f" and {COPIED[-1]:,}",
    )  # fmt: skip


def hot_rows(run: Any) -> book.Figure:
    """Time of a step by the number of replicated rows, `COPIED`, for three placements of a table."""
    took = {by: _steps(run, by) for by in ("range", "modulo", "one rank")}
    told = []
    for by, line in took.items():
        hot = _enough(line)
        placed = "the table on one rank" if by == "one rank" else f"{by} placement"
        told.append(
            f"With {placed} a step takes {format_seconds(line[0], 3)} without replicated rows, "
            + (
                f"and is {1 - line[hot] / line[0]:.0%} shorter with {hot:,} of them."
                if hot
                else "and they save no time."
            )
        )
    parts = {by: {hot: _in_all_reduce(run, f"{by} {hot}") for hot in COPIED} for by in took}
    title, said = "A step, by the number of replicated rows", " ".join(told)
    rows: list[Row] = [
        {"replicated rows": hot} | {f"{by}{more}": each for by in took for more, each in (
            (" (ms)", 1e3 * took[by][hot]), (", of it all-reduce (ms)", 1e3 * parts[by][hot]))}
        for hot in COPIED
    ]  # fmt: skip
    return book.Figure(title, run.trace.badge, said, rows, svg=_traded(title, run.trace.badge, said, took, parts))


def _in_all_reduce(run: Any, span: str) -> float:
    """Seconds of the all-reduce in the spans of this name, once all ranks are there; 0 without one."""
    within = {s.rank: (s.start, s.end) for s in run.trace.spans(span)}
    calls = [c for c in run.trace.collectives("all_reduce") if within[c.rank][0] <= c.start < within[c.rank][1]]
    return max(c.end for c in calls) - max(c.start for c in calls) if calls else 0.0


def _traded(
    title: str, badge: str, said: str, took: Mapping[str, Mapping[int, float]], parts: Mapping[str, Mapping[int, float]]
) -> str:  # fmt: skip
    """A bar for each number of replicated rows, with what the all-reduce takes of it; the best ones have a frame."""
    svg = Svg(WIDTH, title, said)
    looks = {"pull and push": SERIES[0], "all-reduce of replicated rows": SERIES[1]}
    y = legend(svg, heading(svg, badge, said), [(name, look.colour, look.hatch, "") for name, look in looks.items()])
    left, high = 128.0, 17.0
    scale = (WIDTH - left - 120) / max(max(line.values()) for line in took.values())
    for by, line in took.items():
        y += 22
        svg.text(8, y, "the table on one rank" if by == "one rank" else f"by {by}", 12, bold=True)
        y += 6
        for hot, seconds in line.items():
            best, x = hot == _enough(line), left
            svg.text(left - 8, y + 12, f"{hot:,}", 11, "end", best)
            for (name, look), part in zip(looks.items(), (seconds - parts[by][hot], parts[by][hot]), strict=True):
                svg.rect(x, y, part * scale, high - 3, look.colour, look.hatch, ON_COLOUR, stroke_width=0.6,
                         hover=f"{name}: {1e3 * part:.3g} ms")  # fmt: skip
                x += part * scale
            if best:
                svg.rect(left, y - 1, x - left, high - 1, stroke_width=2.6)
            svg.text(
                x + 7,
                y + 12,
                format_seconds(seconds, 3) + (("" if hot in (0, max(line)) else ", enough") if best else ""),
                11,
                bold=best,
            )
            y += high
    svg.text(left - 8, y + 14, "replicated rows", 10.5, "end")
    return svg.render(y + 20)


def _steps(run: Any, by: str) -> dict[int, float]:
    """Seconds of a step by the number of replicated rows, for one placement."""
    every = {hot: run.trace.spans(f"{by} {hot}") for hot in COPIED}
    return {hot: max(s.end for s in spans) - min(s.start for s in spans) for hot, spans in every.items()}


def _enough(took: Mapping[int, float]) -> int:
    """The smallest number of replicated rows with which a step is within 1% of the shortest one."""
    return min(hot for hot, seconds in took.items() if seconds <= 1.01 * min(took.values()))


def holding(run: Any, width: int, rows: int = ROWS) -> str:
    """What replicated rows cost each rank in a step, and what they save the busiest link, by range; and who asks for
    the rows of which it is hardly worth it. A rank returned the different ids that it asks for."""
    took, alone = _steps(run, "range"), _steps(run, "one rank")
    n, best = run.trace.world_size, _enough(took)
    by_range, asked = Rows(rows, width, n, range(n)).owner, run.results
    rank, sent, got = _busiest(run, "range 0")
    told = (
        f"With range placement rank {rank} has most to do: it sends {bytes_text(sent)} in the pull, and receives "
        f"{bytes_text(got)} in the push. "
    )
    if best == 0:
        others = _others(asked, 0, COPIED[1], by_range)
        return told + (
            f"Each of the rows 0 to {COPIED[1] - 1} is asked for by {others}. Replicated rows save nothing "
            "here: what they take off the busiest link is no more than what the all-reduce takes."
        )
    first = COPIED[COPIED.index(best) - 1]
    each = max(cost.ring_all_reduce_bytes_by_rank(best * (width + 1), ITEM, n))
    now, sent, got = _busiest(run, f"range {best}")
    whose = "these are" if now == rank else f"rank {now} has most to do, with"
    told += (
        f"With {best:,} replicated rows {whose} {bytes_text(sent)} and {bytes_text(got)}, and every rank sends "
        f"{bytes_text(each)} in the all-reduce. Each of the rows {first:,} to {best - 1:,} is asked "
        f"for by {_others(asked, first, best, by_range)}."
    )
    last = COPIED.index(_enough(alone))
    if 0 < last < len(COPIED) - 1:
        first, end = COPIED[last], COPIED[last + 1]
        others = _others(asked, first, end, torch.zeros_like)
        told += (
            f"\n\nWith the table on one rank, {first:,} replicated rows are enough to come within 1% of the "
            f"shortest step. Each of the next {end - first:,} "
            f"is asked for by {others}, and replicating them saves hardly anything, or costs time."
        )
    return told


def _busiest(run: Any, span: str) -> tuple[int, int, int]:
    """The rank whose link has most to do in a step: what it sends in the pull, and receives in the push (bytes)."""
    n, calls = run.trace.world_size, run.trace.collectives()
    pull, push = [0] * n, [0] * n
    within = {s.rank: (s.start, s.end) for s in run.trace.spans(span)}
    mine = [(m, calls[m.collective]) for m in run.trace.sends if within[m.src][0] <= m.start < within[m.src][1]]
    mine = [(m, call) for m, call in mine if call.name not in ("barrier", "all_reduce")]
    order = sorted({call.seq for _, call in mine})  # the same calls on every rank
    for m, call in mine:
        if call.seq in order[:PULL]:
            pull[m.src] += m.nbytes
        else:
            push[m.dst] += m.nbytes
    most = max(range(n), key=lambda r: pull[r] + push[r])
    return most, pull[most], push[most]


def _others(asked: Sequence[Tensor], first: int, end: int, owner: Callable[[Tensor], Tensor]) -> str:
    """How many ranks other than its owner ask for a row, from `first` to before `end`, on average."""
    some = [ids[(ids >= first) & (ids < end)] for ids in asked]
    times = sum(int((owner(ids) != r).sum()) for r, ids in enumerate(some))
    return f"{times / (end - first):.1f} other ranks on average"
