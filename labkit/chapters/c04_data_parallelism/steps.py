"""A training step as its trace tells it: when gradients were ready, when they travelled; and how time is drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from labkit.book.drawing.style import ON_COLOUR
from labkit.book.drawing.svg import Svg, text_width
from labkit.cost.units import MS

PART = {"tokens": "tokens", "positions": "positions", "norm": "norm"}  # what is no block


@dataclass(frozen=True)
class Journey:
    """One all-reduce of a rank, in seconds since the step began: called, on the wire from `start` to `end`.

    everybody: when the last rank has called it, too. Until then what this rank has sent waits for an answer.
    """

    nbytes: int
    called: float
    start: float
    end: float
    everybody: float

    @property
    def waits(self) -> float:
        """How long after its start somebody is still missing."""
        return min(max(self.everybody - self.start, 0.0), self.end - self.start)


@dataclass(frozen=True)
class Step:
    """One training step of a rank, in seconds since it began. ready: (when, parameter, bytes of its gradient).

    over, slowest: when this rank and the slowest one have computed. total: when the last rank has its averages.
    """

    backward: float
    over: float
    slowest: float
    ready: list[tuple[float, str, int]]
    journeys: list[Journey]
    total: float

    @property
    def exposed(self) -> float:
        return self.total - self.slowest

    @property
    def waits(self) -> float:
        """How long this rank has computed already while the slowest one still does."""
        return self.slowest - self.over


def step_of(run: Any, step: int = 1, rank: int = 0) -> Step:
    """What the trace says of a step: when gradients were ready, and when they travelled."""
    trace = run.trace
    begun = next(s.start for s in trace.spans("step") if s.rank == rank and s.step == step)
    ended = max(s.end for s in trace.spans("step") if s.step == step)
    computing = [s for s in trace.spans("compute") if begun <= s.start < ended]
    kernels = [s for s in computing if s.rank == rank]
    ready = [s for s in trace.spans("ready") if s.rank == rank and begun <= s.start <= ended]
    back = min(s.start for s in kernels if s.end >= ready[0].start - 1e-12) - begun
    calls = trace.collectives()
    flights: dict[int, list[tuple[float, float]]] = {}
    for m in trace.sends:
        if rank in (m.src, m.dst) and m.collective >= 0:
            flights.setdefault(m.collective, []).append((max(m.start, m.recv_start), m.arrived))
    sums = [(i, c) for i, c in enumerate(calls) if c.name == "all_reduce" and begun <= c.start <= ended]
    called: dict[int, list[float]] = {}
    for _, c in sums:
        called.setdefault(c.rank, []).append(c.start)
    everybody = [max(each) for each in zip(*called.values(), strict=False)]  # a rank's k-th all-reduce is everybody's
    mine = [(k, i, c) for k, (i, c) in enumerate((i, c) for i, c in sums if c.rank == rank)]
    journeys = [
        Journey(
            c.nbytes, c.start - begun, min(a for a, _ in flights[i]) - begun, max(b for _, b in flights[i]) - begun,
            everybody[k] - begun,
        )
        for k, i, c in mine if i in flights
    ]  # fmt: skip
    marks = [(s.start - begun, str(s.attrs["parameter"]), int(s.attrs["nbytes"])) for s in ready]
    over, slowest = (max(s.end for s in some) - begun for some in (kernels, computing))
    return Step(back, over, slowest, marks, journeys, ended - begun)


def block_of(parameter: str) -> str:
    """The part of the network that a parameter belongs to."""
    parts = parameter.split(".")
    return f"block {parts[1]}" if parts[0] == "blocks" else PART.get(parts[0], parts[0])


def blocks(one: Step) -> list[tuple[str, float, float]]:
    """The backward pass block by block: (name, from, to); what takes no time is left out."""
    ends: dict[str, float] = {}
    for when, parameter, _ in one.ready:
        ends[block_of(parameter)] = max(when, ends.get(block_of(parameter), 0.0))
    found, at = [], one.backward
    for name, when in sorted(ends.items(), key=lambda item: item[1]):
        if when > at:
            found.append((name if name != "norm" else "logits", at, when))
            at = when
    return found


def milliseconds(run: Any) -> float:
    """The step on the slowest rank."""
    return 1e3 * max(s.end - s.start for s in run.trace.spans("step"))


def box(
    svg: Svg, x: float, y: float, width: float, height: float, label: str, colour: str, hover: str = "", hatch: str = ""
) -> None:
    """A box with its label inside, if that fits."""
    svg.rect(x, y, width, height, colour, hatch, ON_COLOUR, stroke_width=0.7, hover=hover)
    if label and text_width(label, 11) + 4 < width:
        if hatch:
            wide = text_width(label, 11) + 6
            svg.rect(x + width / 2 - wide / 2, y + height / 2 - 8, wide, 16, "#ffffff", stroke="none", radius=3)
        svg.text(x + width / 2, y + height / 2 + 4, label, 11, "middle", on_colour=True)


def ticks(svg: Svg, y: float, x: Any, longest: float, every: float = 10 * MS) -> None:
    """An axis of time in milliseconds."""
    while longest / every > 12:
        every *= 2
    svg.line(x(0), y, x(longest), y)
    for k in range(int(longest / every) + 1):
        svg.line(x(k * every), y - 3, x(k * every), y + 3)
        svg.text(x(k * every), y + 17, f"{1e3 * k * every:g}" + " ms" * (k == 0), 11, "middle")
