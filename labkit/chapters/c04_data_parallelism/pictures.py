"""What chapter 4 shows of a training step: its layers above, its messages below, and how long it took."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from labkit import book
from labkit.book.drawing.figure import WIDTH, heading, legend
from labkit.book.drawing.style import BLUE, ON_COLOUR, ORANGE
from labkit.book.drawing.svg import Svg, text_width
from labkit.book.drawing.tables import Row
from labkit.book.drawing.units import bytes_text
from labkit.cost.units import MS

PART = {"tokens": "tokens", "positions": "positions", "norm": "norm"}  # what is no block


@dataclass(frozen=True)
class Journey:
    """One all-reduce of a rank, in seconds since the step began: called, on the wire from `start` to `end`."""

    nbytes: int
    called: float
    start: float
    end: float


@dataclass(frozen=True)
class Step:
    """One training step of a rank, in seconds since it began. ready: (when, parameter, bytes of its gradient)."""

    backward: float
    over: float
    ready: list[tuple[float, str, int]]
    journeys: list[Journey]
    total: float

    @property
    def exposed(self) -> float:
        return self.total - self.over


def step_of(run: Any, step: int = 1, rank: int = 0) -> Step:
    """What the trace says of a step: when gradients were ready, and when they travelled."""
    trace = run.trace
    begun = next(s.start for s in trace.spans("step") if s.rank == rank and s.step == step)
    ended = next(s.end for s in trace.spans("step") if s.rank == rank and s.step == step)
    kernels = [s for s in trace.spans("compute") if s.rank == rank and begun <= s.start < ended]
    ready = [s for s in trace.spans("ready") if s.rank == rank and begun <= s.start <= ended]
    back = min(s.start for s in kernels if s.end >= ready[0].start - 1e-12) - begun
    calls = trace.collectives()
    flights: dict[int, list[tuple[float, float]]] = {}
    for m in trace.sends:
        if rank in (m.src, m.dst) and m.collective >= 0:
            flights.setdefault(m.collective, []).append((max(m.start, m.recv_start), m.arrived))
    journeys = [
        Journey(c.nbytes, c.start - begun, min(a for a, _ in flights[i]) - begun, max(b for _, b in flights[i]) - begun)
        for i, c in enumerate(calls)
        if c.rank == rank and c.name == "all_reduce" and begun <= c.start <= ended and i in flights and c.nbytes > 8
    ]
    marks = [(s.start - begun, str(s.attrs["parameter"]), int(s.attrs["nbytes"])) for s in ready]
    return Step(back, max(s.end for s in kernels) - begun, marks, journeys, ended - begun)


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


def stages(runs: Mapping[str, Any], title: str = "One step of rank 0") -> book.Figure:
    """For each run what rank 0 computes, and below it what travels, over the same axis of time."""
    steps = {name: step_of(run) for name, run in runs.items()}
    longest = max(one.total for one in steps.values())
    said = ". ".join(f"{name}: {_in_words(one)}" for name, one in steps.items())
    badge = next(iter(runs.values())).trace.badge
    svg = Svg(WIDTH, title, said)
    y = heading(svg, badge, said + ".")
    y = legend(svg, y, [("computing", ORANGE, "", ""), ("gradients travel", BLUE, "/", "")]) + 6
    left, right = 76.0, WIDTH - 14.0

    def x(seconds: float) -> float:
        return left + (right - left) * seconds / longest

    for name, one in steps.items():
        svg.text(8, y + 10, name, bold=True)
        svg.text(left - 8, y + 34, "computes", 11, "end")
        svg.text(left - 8, y + 62, "travels", 11, "end")
        for label, a, b in [("forward", 0.0, one.backward), *blocks(one)]:
            box(svg, x(a), y + 18, x(b) - x(a), 24, label, ORANGE, f"{label}: {1e3 * (b - a):.1f} ms")
        for k, j in enumerate(one.journeys):
            hover = f"all-reduce {k}: {bytes_text(j.nbytes)}, {1e3 * (j.end - j.start):.1f} ms"
            label = f"{k}" if len(one.journeys) <= 16 else ""
            box(svg, x(j.start), y + 46, x(j.end) - x(j.start), 24, label, BLUE, hover, "/")
        svg.line(x(one.over), y + 12, x(one.over), y + 76, "4 3")
        svg.line(x(one.total), y + 12, x(one.total), y + 76)
        y += 90
    ticks(svg, y - 6, x, longest)
    rows: list[Row] = [
        {
            "": name,
            "all-reduces": len(one.journeys),
            "step, ms": 1e3 * one.total,
            "computing, ms": 1e3 * one.over,
            "exposed, ms": 1e3 * one.exposed,
        }
        for name, one in steps.items()
    ]
    return book.Figure(title, badge, said + ".", rows, svg.render(y + 26))


def _in_words(one: Step) -> str:
    count = len(one.journeys)
    sticks = f"{1e3 * one.exposed:.1f} ms of which stick out behind the computing" if one.exposed > 0 else "all hidden"
    return f"{count} all-reduce{'s' * (count != 1)} in a step of {1e3 * one.total:.1f} ms, {sticks}"


def step_picture(run: Any) -> book.Figure:
    """The step of rank 0: its layers, and below them what travels."""
    return stages({"rank 0": run}, "One training step")


def length(run: Any) -> str:
    """How long the step took, and how much of that is not computing."""
    one = step_of(run)
    return (
        f"The step took {1e3 * one.total:.1f} ms: {1e3 * one.over:.1f} ms of computing, and then "
        f"{1e3 * one.exposed:.1f} ms in which the rank only waited for gradients ({run.trace.badge})."
    )


def milliseconds(run: Any) -> float:
    """The step on the slowest rank."""
    return 1e3 * max(s.end - s.start for s in run.trace.spans("step"))


def all_ranks(run: Any) -> book.Figure:
    """The step on every rank: who computes, who sends, who waits."""
    spans = run.trace.spans("step")
    window = min(s.start for s in spans), max(s.end for s in spans)
    return book.timeline(run.trace, window=window, arrows=False, title="One step on all ranks")


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


def bytes_held(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """Bytes of the parameters, of their gradients, and of what the optimizer keeps for them."""
    kept = [x for state in optimizer.state.values() for x in state.values() if isinstance(x, Tensor)]
    return {
        "parameters": sum(p.nbytes for p in model.parameters()),
        "gradients": sum(p.grad.nbytes for p in model.parameters() if p.grad is not None),
        "optimizer state": sum(x.nbytes for x in kept),
    }


@contextmanager
def kept_for_backward(model: nn.Module) -> Iterator[dict[int, int]]:
    """Bytes that autograd keeps for the backward pass of what is computed inside, by address; weights do not count."""
    weights, kept = {p.untyped_storage().data_ptr() for p in model.parameters()}, dict[int, int]()

    def keep(x: Tensor) -> Tensor:
        memory = x.untyped_storage()
        if memory.data_ptr() not in weights:
            kept[memory.data_ptr()] = memory.nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        yield kept


def what_is_held(one: Mapping[str, int], each: Mapping[str, int], ranks: int) -> book.Figure:
    """Bytes on a single rank, and on each of several that share the same joined batch."""
    said = f"Activations are divided by {ranks}; all the rest is on every rank."
    bars = {"1 rank": one, f"each of {ranks} ranks": each}
    return book.bars(bars, title="What a rank holds, for the same joined batch", sentence=said)


def mean_losses(run: Any) -> list[float]:
    """The mean of the ranks' losses, by pass."""
    return [float(x) for x in torch.tensor(run.results).mean(0)]


def losses(every: Any, fourth: Any) -> book.Figure:
    """The loss by pass, with an update after each pass and after every fourth."""
    often, seldom = mean_losses(every), mean_losses(fourth)
    said = (
        f"After {len(often)} passes over the same samples the loss, the mean over the ranks, is {often[-1]:.2f} with "
        f"an update after each pass, and {seldom[-1]:.2f} with an update after every fourth pass."
    )
    curves = {"an update after each pass": often, "an update after every fourth pass": seldom}
    return book.lines(curves, x="pass", y="loss", title="The same samples, with fewer updates", sentence=said)


def speeds(samples_a_second: Callable[[int, int], float], gpus: Sequence[int], passes: Sequence[int]) -> book.Figure:
    """Samples a second for so many GPUs and passes before an update."""
    plans = {f"{n} GPUs, a = {a}": samples_a_second(n, a) for n in gpus for a in passes}
    said = "Samples a second. " + ", ".join(f"{name}: {speed:.0f}" for name, speed in plans.items()) + "."
    bars = {"samples a second": plans}
    return book.bars(bars, title="GPT-2 on one node and on four", unit="", badge="simulated", sentence=said)
