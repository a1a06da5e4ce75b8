"""How a step of chapter 16 goes by on the ranks, and what their devices hold: drawn for any placement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from labkit import book
from labkit.book.drawing.figure import WIDTH, heading, legend
from labkit.book.drawing.style import BLUE, DEEP_BLUE, GREEN, GREY, ON_COLOUR, ORANGE, PURPLE, RED, YELLOW
from labkit.book.drawing.svg import Svg
from labkit.book.drawing.tables import Row
from labkit.book.drawing.units import bytes_text, seconds_text, seconds_unit, short
from labkit.chapters.c16_alignment import fleets

LOOKS = {  # of a phase: what it is called, colour, hatch
    "generate": ("policy writes", BLUE, ""),
    "policy": ("policy reads", DEEP_BLUE, "|"),
    "reference": ("reference reads", GREEN, "x"),
    "reward": ("reward model reads", YELLOW, "\\"),
    "critic": ("critic reads", PURPLE, "."),
    "train critic": ("critic learns", RED, "-"),
    "train policy": ("policy learns", ORANGE, "/"),
    "swap": ("swap with the host", GREY, "+"),
    "dead": ("dead", "none", "x"),
}
LEFT, TALL = 62.0, 22.0


def placed_said(run: Any) -> str:
    """How well the fleet was used, how long the step took, and what it needed."""
    step = fleets.last_step(run)
    idle = max(range(len(step.busy)), key=lambda r: -step.busy[r])
    sent = f" The pools sent each other {bytes_text(step.sent)}." if step.sent else ""
    return (
        f"The step took **{seconds_text(step.seconds)}**, and the ranks worked **{step.utilization:.0%}** of it (the "
        f"simulator says {step.simulated.utilization:.0%}). Rank {idle} worked least, "
        f"{step.busy[idle] / step.seconds:.0%} of the step. The fullest device held "
        f"{bytes_text(max(step.device))}.{sent}"
    )


def placed(run: Any, axis: float = 0.0) -> book.Figure:
    """A bar for each phase of each rank; what stays white is idle. axis: seconds to be shown at least."""
    step = fleets.last_step(run)
    swapped = sum(b - a for row in step.bars for name, a, b in row if name == "swap") / len(step.bars) / step.seconds
    swaps = f", and {swapped:.0%} goes into swaps" if swapped else ""
    said = (
        f"A row for each rank. The step ends after {seconds_text(step.seconds)}, and white before that is waiting: "
        f"{1 - step.utilization - swapped:.0%} of the ranks' time{swaps}."
    )
    rows: list[Row] = [
        {"rank": rank, "works": f"{busy / step.seconds:.0%}", "on its device": bytes_text(device)}
        | {LOOKS[p][0]: _part(bars, p) for p in LOOKS if any(p == name for row in step.bars for name, *_ in row)}
        for rank, (bars, busy, device) in enumerate(zip(step.bars, step.busy, step.device, strict=True))
    ]
    return book.Figure(
        "A step of PPO", run.trace.badge, said, rows, rows_of_bars(step.bars, max(axis, step.axis), said)
    )


def _part(bars: Sequence[tuple[str, float, float]], phase: str) -> str:
    taken = sum(end - begin for name, begin, end in bars if name == phase)
    return seconds_text(taken) if taken else "-"


def rows_of_bars(
    bars: Sequence[Sequence[tuple[str, float, float]]], seconds: float, said: str, badge: str = "emulated",
    looks: Mapping[str, tuple[str, str, str]] = LOOKS, title: str = "A step of PPO",
) -> str:  # fmt: skip
    """The picture: rows of (phase, begin, end); the axis shows so many seconds."""
    svg = Svg(WIDTH, title, said)
    here = [name for name in looks if any(name == bar[0] for row in bars for bar in row)]
    top = legend(svg, heading(svg, badge, said), [(looks[n][0], looks[n][1], looks[n][2], "") for n in here]) + 8
    across = (WIDTH - LEFT - 14) / seconds
    for rank, row in enumerate(bars):
        y = top + rank * (TALL + 5)
        svg.text(LEFT - 8, y + TALL / 2 + 4, f"rank {rank}", anchor="end")
        svg.rect(LEFT, y, seconds * across, TALL, dash="2 3")
        for name, begin, end in row:
            if end > begin:
                called, colour, hatch = looks[name]
                svg.rect(LEFT + begin * across, y, (end - begin) * across, TALL, colour, hatch, ON_COLOUR,
                         stroke_width=0.7, hover=f"rank {rank}, {called}: {seconds_text(end - begin)}")  # fmt: skip
    floor = top + len(bars) * (TALL + 5) + 4
    unit, name = seconds_unit(seconds)
    svg.line(LEFT, floor, LEFT + seconds * across, floor)
    for tick in range(6):
        at = LEFT + tick / 5 * seconds * across
        svg.line(at, floor, at, floor + 4)
        svg.text(at, floor + 17, short(tick / 5 * seconds / unit), 11, "end" if tick == 5 else "middle")
    svg.text(LEFT + seconds * across / 2, floor + 33, f"time ({name})", 11.5, "middle")
    return svg.render(floor + 42)


def beside(runs: Mapping[str, Any]) -> book.Player:
    """The pictures of several runs, all over the time of the longest."""
    steps = {name: fleets.last_step(run) for name, run in runs.items()}
    longest = max(step.seconds for step in steps.values())
    frames, rows = [], []
    for name, step in steps.items():
        said = (
            f"{name}: {seconds_text(step.seconds)}, ranks work {step.utilization:.0%} of it, the fullest device holds "
            f"{bytes_text(max(step.device))}."
        )
        frames.append((rows_of_bars(step.bars, longest, said, looks=LOOKS), said))
        rows.append({
            "": name, "step": seconds_text(step.seconds), "ranks work": f"{step.utilization:.1%}",
            "simulated": f"{step.simulated.utilization:.1%}", "fullest device": bytes_text(max(step.device)),
            "sent between pools": bytes_text(step.sent),
        })  # fmt: skip
    return book.play(frames, title="The same step, in five places", badge="emulated", rows=rows, still=0,
                     label="Placement")  # fmt: skip
