"""Buckets that fill and leave, from a real step of rank 0: a picture for each change, to be played."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from labkit import book
from labkit.book.drawing.figure import WIDTH, heading, legend
from labkit.book.drawing.style import BLUE, GREEN, ON_COLOUR, ORANGE, YELLOW
from labkit.book.drawing.svg import Svg, number
from labkit.book.drawing.units import bytes_text
from labkit.chapters.c04_data_parallelism.steps import Step, box, step_of, ticks
from labkit.chapters.c04_data_parallelism.you_write import into_buckets
from labkit.models import GPT, GPTConfig


def filling(run: Any, width: int, nbytes: float) -> book.Player:
    """Gradients become ready, gather in a bucket, and travel: a moment for each change, from a real step of rank 0."""
    one = step_of(run)
    named = list(GPT(GPTConfig(width=width, layers=4)).named_parameters())
    name_of = {p: name for name, p in named}
    buckets = [[name_of[p] for p in bucket] for bucket in into_buckets([p for _, p in named], nbytes)]
    moments = sorted({m for m, *_ in one.ready} | {t for j in one.journeys for t in (j.start, j.end)} | {one.backward})
    drawn = [m for i, m in enumerate(moments) if i + 1 == len(moments) or moments[i + 1] - m > 1e-7]
    sizes = {name: p.nbytes for name, p in named}
    frames = [_moment(one, buckets, sizes, t, run.trace.badge) for t in drawn]
    middle = max(
        range(len(drawn)), key=lambda i: sum(j.start < drawn[i] < j.end for j in one.journeys) * (i < len(drawn) * 0.6)
    )
    rows = [
        {
            "bucket": k,
            "bytes": j.nbytes,
            "full, ms": 1e3 * j.called,
            "on the wire, ms": 1e3 * j.start,
            "back, ms": 1e3 * j.end,
        }
        for k, j in enumerate(one.journeys)
    ]
    return book.play(frames, title="Buckets fill and travel", badge=run.trace.badge, rows=rows, still=middle)


STATES = {
    "not ready": ("none", ""), "in the bucket": (ORANGE, ""), "full, waits for the wire": (YELLOW, "\\"),
    "on the wire": (BLUE, "/"), "averaged": (GREEN, "x"),
}  # fmt: skip


def _moment(
    one: Step, buckets: Sequence[Sequence[str]], sizes: Mapping[str, int], t: float, badge: str
) -> tuple[str, str]:
    """One moment: the state of each matrix's gradient, the bucket that is being filled, and the time."""
    there = {parameter for when, parameter, _ in one.ready if when <= t + 1e-9}
    where = {name: k for k, bucket in enumerate(buckets) for name in bucket}

    def state(name: str) -> str:
        j = one.journeys[where[name]]
        if t >= j.end - 1e-9:
            return "averaged"
        if t >= j.start - 1e-9 and t >= j.called - 1e-9:
            return "on the wire"
        if t >= j.called - 1e-9:
            return "full, waits for the wire"
        return "in the bucket" if name in there else "not ready"

    filled = next((k for k, j in enumerate(one.journeys) if t < j.called - 1e-9), None)
    flying = [k for k, j in enumerate(one.journeys) if max(j.called, j.start) - 1e-9 <= t < j.end - 1e-9]
    back = sum(t >= j.end - 1e-9 for j in one.journeys)
    parts = [f"After {1e3 * t:.1f} ms"]
    if filled is None:
        parts.append("all gradients are ready")
    else:
        inside = sum(sizes[n] for n in buckets[filled] if n in there)
        parts.append(
            f"bucket {filled} holds {bytes_text(inside)} of {bytes_text(sum(sizes[n] for n in buckets[filled]))}"
        )
    parts.append(f"bucket {flying[0]} is on the wire" if flying else "the wire is idle")
    said = f"{parts[0]}: {parts[1]}, {parts[2]}, and {back} of {len(buckets)} buckets are averaged."
    svg = Svg(WIDTH, "Buckets fill and travel", said)
    top = max(heading(svg, badge, said), 70.0)
    top = legend(svg, top, [(name, colour, hatch, "") for name, (colour, hatch) in STATES.items()]) + 8
    matrices = [n for n in reversed(list(sizes)) if n.endswith("weight") and "norm" not in n]
    y = top + 14
    svg.text(8, top + 4, "The network, from its output down to its input (biases and norms are not drawn)", 11.5)
    largest = max(sizes[n] for n in matrices)
    for name in matrices:
        colour, hatch = STATES[state(name)]
        label = name.removeprefix("blocks.").removesuffix(".weight").replace(".", ", ").replace("_", "-")
        svg.text(214, y + 11, f"block {label}" if name.startswith("blocks") else label, 11, "end")
        svg.rect(220, y, 200 * sizes[name] / largest, 14, colour, hatch, ON_COLOUR, stroke_width=0.7)
        svg.text(226 + 200 * sizes[name] / largest, y + 11, f"bucket {where[name]}", 11)
        y += 17
    _bucket(svg, top, buckets, sizes, there, filled, flying, back)

    def x(seconds: float) -> float:
        return 84 + (WIDTH - 100) * seconds / one.total

    for lane, spans, colour, hatch in (
        ("computes", [(0.0, one.over)], ORANGE, ""),
        ("travels", [(j.start, j.end) for j in one.journeys], BLUE, "/"),
    ):
        y += 16
        svg.text(76, y + 10, lane, 11, "end")
        for a, b in spans:
            svg.rect(x(a), y, x(b) - x(a), 11, "none", stroke_width=0.6)
            if a < t:
                svg.rect(x(a), y, x(min(b, t)) - x(a), 11, colour, hatch, ON_COLOUR, stroke_width=0.6)
    svg.line(x(t), y - 22, x(t), y + 16, width=2)
    ticks(svg, y + 18, x, one.total)
    return svg.render(y + 44), said


def _bucket(
    svg: Svg, top: float, buckets: Sequence[Sequence[str]], sizes: Mapping[str, int], there: set[str],
    filled: int | None, flying: Sequence[int], back: int,
) -> None:  # fmt: skip
    """The bucket that is being filled, on the right; above it the one that travels, below it those that are back."""
    left, wide, high = 540.0, 190.0, 110.0
    svg.text(left, top + 26, "on the wire", 11.5)
    if flying:
        box(svg, left, top + 32, wide, 30, f"bucket {flying[0]}, {_size(buckets[flying[0]], sizes)}", BLUE, "", "/")
    else:
        svg.rect(left, top + 32, wide, 30, dash="4 3")
    base = top + 96 + high
    svg.text(left, top + 90, "being filled" + ("" if filled is None else f": bucket {filled}"), 11.5)
    if filled is not None:
        whole = sum(sizes[n] for n in buckets[filled])
        y = base
        for name in buckets[filled]:
            if name in there:
                tall = high * sizes[name] / whole
                y -= tall
                svg.rect(left, y, wide, tall, ORANGE, stroke=ON_COLOUR, stroke_width=0.5)
    svg.path(
        f"M{number(left)} {number(base - high)} V{number(base)} H{number(left + wide)} V{number(base - high)}", width=2
    )
    svg.text(left, base + 26, f"averaged: {back} of {len(buckets)}", 11.5)
    for k in range(len(buckets)):
        colour, hatch = (GREEN, "x") if k < back else ("none", "")
        svg.rect(
            left + k * min(24, wide / len(buckets)), base + 34, min(20, wide / len(buckets) - 3), 18, colour, hatch
        )


def _size(bucket: Sequence[str], sizes: Mapping[str, int]) -> str:
    return bytes_text(sum(sizes[n] for n in bucket))
