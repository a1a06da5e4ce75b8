"""What chapter 4 shows: of a training step its layers above and its messages below, what ranks hold, how they fare."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import ceil, floor
from typing import Any

import torch
from torch import Tensor, nn

from labkit import book
from labkit.book.drawing.figure import WIDTH, heading, legend
from labkit.book.drawing.style import BLUE, GREEN, GREY, ORANGE
from labkit.book.drawing.svg import Svg, number, text_width
from labkit.book.drawing.tables import Row
from labkit.book.drawing.units import bytes_text, listing
from labkit.chapters.c04_data_parallelism.counting import (
    counting as counting,
    errors as errors,
)
from labkit.chapters.c04_data_parallelism.drifting import drift as drift
from labkit.chapters.c04_data_parallelism.filling import filling as filling
from labkit.chapters.c04_data_parallelism.lateness import (
    diagnose as diagnose,
    late_steps as late_steps,
    profile as profile,
    share_late as share_late,
    step_times as step_times,
    suspected as suspected,
    who_is_late as who_is_late,
)
from labkit.chapters.c04_data_parallelism.steps import Step, blocks, box, step_of as step_of, ticks

HELD = "What a rank holds, for the same global batch"
LEAST = 1e-6  # seconds; less than that is rounding


def stages(runs: Mapping[str, Any], title: str = "One step of rank 0", until: float = 0.0) -> book.Figure:
    """For each run what rank 0 computes, and below it what travels, over the same axis of time."""
    steps = {name: step_of(run) for name, run in runs.items()}
    return lanes(steps, next(iter(runs.values())).trace.badge, title, until)


def exposed(prediction: Any, runs: Mapping[str, Any]) -> book.Figure:
    """Show what was predicted of the last stage's exposed time beside its run; returns the picture of all stages."""
    from IPython.display import display

    seen = step_of([*runs.values()][-1])
    display(prediction.compare(round(1e3 * seen.exposed, 2), mark="emulated"))
    return stages(runs)


def lanes(steps: Mapping[str, Step], badge: str, title: str, until: float = 0.0, more: str = "") -> book.Figure:
    """For each step a lane of what is computed, and below it one of what travels.

    until: seconds to which the axis goes at least, so that pictures of different runs have the same one. more: what
    is said after the numbers.
    """
    longest = max(until, *(one.total for one in steps.values()))
    said = _in_words(steps) + more
    svg = Svg(WIDTH, title, said)
    y = heading(svg, badge, said)
    looks = [("computing", ORANGE, "", ""), ("gradients travel", BLUE, "/", "")]
    seen = longest / 400  # half a millimetre; less cannot be seen
    if any(one.waits > seen or any(j.waits > seen for j in one.journeys) for one in steps.values()):
        looks.insert(1, ("waits for a slower rank", GREY, "\\", ""))
    y = legend(svg, y, looks) + 6
    left, right = 76.0, WIDTH - 14.0

    def x(seconds: float) -> float:
        return left + (right - left) * seconds / longest

    for name, one in steps.items():
        svg.text(8, y + 10, name, bold=True)
        if len(steps) > 1:
            svg.text(right, y + 10, _in_short(one), 11, "end")
        svg.text(left - 8, y + 34, "computes", 11, "end")
        svg.text(left - 8, y + 62, "travels", 11, "end")
        parts = [(label, a, b) for label, a, b in blocks(one) if label.startswith("block ")]
        short = any(text_width(label, 11) + 4 >= x(b) - x(a) for label, a, b in parts)
        for label, a, b in [("forward", 0.0, one.backward), *blocks(one)]:
            name_in = label.removeprefix("block ") if short else label
            box(svg, x(a), y + 18, x(b) - x(a), 24, name_in, ORANGE, f"{label}: {1e3 * (b - a):.1f} ms")
            if label == "logits" and text_width(label, 11) + 4 >= x(b) - x(a):
                svg.text((x(a) + x(b)) / 2, y + 14, label, 11, "middle")
        above = "backward pass, by blocks" if short else "backward pass"
        if text_width(above, 11) < 0.7 * (x(one.over) - x(one.backward)):
            svg.text((x(one.backward) + x(one.over)) / 2, y + 14, above, 11, "middle")
        if one.waits > seen:
            wide = x(one.slowest) - x(one.over)
            box(svg, x(one.over), y + 18, wide, 24, "waits", GREY, f"waits: {1e3 * one.waits:.1f} ms", "\\")
        for k, j in enumerate(one.journeys):
            hover = f"all-reduce {k}: {bytes_text(j.nbytes)}, {1e3 * (j.end - j.start - j.waits):.1f} ms"
            label, off = f"{k}" if len(one.journeys) <= 16 else "", j.start + j.waits
            if j.waits > seen:
                waits = f"all-reduce {k} waits for the last rank: {1e3 * j.waits:.1f} ms"
                box(svg, x(j.start), y + 46, x(off) - x(j.start), 24, "waits", GREY, waits, "\\")
            box(svg, x(off), y + 46, x(j.end) - x(off), 24, label, BLUE, hover, "/")
        svg.line(x(one.slowest), y + 12, x(one.slowest), y + 76, "4 3")
        svg.line(x(one.total), y + 12, x(one.total), y + 76)
        y += 90
    ticks(svg, y - 6, x, longest)
    rows: list[Row] = [
        {
            "": name,
            "all-reduces": len(one.journeys),
            "step, ms": 1e3 * one.total,
            "computing, ms": 1e3 * one.over,
            "waits for a slower rank, ms": 1e3 * one.waits,
            "exposed, ms": 1e3 * one.exposed,
        }
        for name, one in steps.items()
    ]
    return book.Figure(title, badge, said, rows, svg.render(y + 26))


def _in_short(one: Step) -> str:
    count = len(one.journeys)
    return f"{count} all-reduce{'s' * (count != 1)}, {1e3 * one.total:.1f} ms"


def _in_words(steps: Mapping[str, Step]) -> str:
    """What is exposed in each step, and who waits for a slower rank."""
    alone = len(steps) == 1
    left = [f"{1e3 * one.exposed:.1f} ms" + f" ({name})" * (not alone) for name, one in steps.items()]
    waits = [f" {name[0].upper()}{name[1:]} waits {1e3 * one.waits:.1f} ms for a slower rank."
             for name, one in steps.items() if one.waits > LEAST]  # fmt: skip
    told = f"{_in_short(next(iter(steps.values())))}. " if alone else ""
    return f"{told}Exposed after the computing: {listing(left)}.{''.join(waits)}"


def step_picture(run: Any, until: float = 0.0) -> book.Figure:
    """The step of rank 0: its layers, and below them what travels."""
    return stages({"rank 0": run}, "One training step", until)


def length(run: Any) -> str:
    """How long the step took, and how much of that is not computing."""
    one = step_of(run)
    return (
        f"The step took {1e3 * one.total:.1f} ms: {1e3 * one.over:.1f} ms of computing, and then "
        f"{1e3 * one.exposed:.1f} ms in which the rank only waited for gradients ({run.trace.badge})."
    )


def first_and_last(run: Any, until: float = 0.0) -> book.Figure:
    """The step of the first rank and of the last, over the same axis of time."""
    ranks = 0, run.trace.world_size - 1
    steps = {f"rank {rank}": step_of(run, rank=rank) for rank in ranks}
    return lanes(steps, run.trace.badge, "One step, on the first rank and on the last", until, _early(steps))


def _early(steps: Mapping[str, Step]) -> str:
    """Why a rank of a step with a slow one has its averages before the step ends, where that is so."""
    before = {name: one.total - max(j.end for j in one.journeys) for name, one in steps.items()}
    told = [f"{name} has them {1e3 * seconds:.1f} ms earlier" for name, seconds in before.items() if seconds > LEAST]
    if not told:
        return ""
    return (
        " The solid line marks when the last rank has all averages. The ranks of a ring finish at different times: "
        f"{listing(told)}."
    )


def bytes_held(model: nn.Module, optimizer: torch.optim.Optimizer, kept_for: Mapping[int, int]) -> dict[str, int]:
    """Bytes of the parameters, of their gradients, of what the optimizer keeps for them, and of the activations.

    kept_for: what `kept_for_backward` has counted.
    """
    kept = [x for state in optimizer.state.values() for x in state.values() if isinstance(x, Tensor)]
    return {
        "parameters": sum(p.nbytes for p in model.parameters()),
        "gradients": sum(p.grad.nbytes for p in model.parameters() if p.grad is not None),
        "optimizer state": sum(x.nbytes for x in kept),
        "activations": sum(kept_for.values()),
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
    """Bytes on a single rank, and on each of several that share the same global batch: a row for each rank."""
    said = f"Activations are divided by {ranks}; all the rest is on every rank."
    looks = [("parameters", BLUE, ""), ("gradients", ORANGE, "/"), ("optimizer state", GREY, "\\"),
             ("activations", GREEN, "x")]  # fmt: skip
    svg = Svg(WIDTH, HELD, said)
    y = legend(svg, heading(svg, "measured", said), [(name, colour, hatch, "") for name, colour, hatch in looks]) + 8
    scale = (WIDTH - 90.0) / max(sum(one.values()), sum(each.values()))
    worlds = [("1 rank", one, ["rank 0"]), (f"{ranks} ranks", each, [f"rank {rank}" for rank in range(ranks)])]
    for world, held, names in worlds:
        svg.text(8, y + 12, world, bold=True)
        y += 20
        for name in names:
            x = 76.0
            svg.text(x - 8, y + 15, name, 11, "end")
            for part, colour, hatch in looks:
                wide = held[part] * scale
                box(svg, x, y, wide, 20, bytes_text(held[part]), colour, f"{part}: {bytes_text(held[part])}", hatch)
                x += wide
            y += 24
        y += 8
    rows: list[Row] = [{"": world} | {f"{part}, bytes": held[part] for part, *_ in looks} for world, held, _ in worlds]
    return book.Figure(HELD, "measured", said, rows, svg.render(y))


def losses(often: Mapping[int, float], run: Any) -> book.Figure:
    """The held-out loss after each update, with an update after each pass and as in `run`: by pass, and by update.

    often: losses by the pass they were measured after; each result of `run` has the passes for each update beside it.
    """
    curves = {1: often} | {passes: curve for curve, passes in run.results[:1]}
    name = {passes: f"passes = {passes}" for passes in curves} | {1: "an update after each pass"}
    few = max(often) // max(curves)  # updates that all have taken
    last = [f"{curve[max(often)]:.2f} with {name[n]}" for n, curve in sorted(curves.items())]
    early = [f"{curve[few * n]:.2f} with {name[n]}" for n, curve in sorted(curves.items())]
    said = f"After {max(often)} passes the held-out loss is {listing(last)}."
    if len(curves) > 1:
        said += f" After {few} update{'s' * (few > 1)} it is {listing(early)}."
    title = "The same points, by pass and by update" if len(curves) > 1 else "The loss after each update"
    svg, wide, high = Svg(WIDTH, title, said), 310.0, 190.0
    looks = dict(zip(sorted(curves), ((BLUE, "circle", "/"), (ORANGE, "square", "")), strict=False))
    shown = [(name[n], colour, hatch, "") for n, (colour, _, hatch) in looks.items()]
    top = legend(svg, heading(svg, run.trace.badge, said), shown) + 14
    values = [loss for curve in curves.values() for loss in curve.values()]
    low, peak = floor(2 * min(values)) / 2, ceil(2 * max(values)) / 2
    for panel, unit in enumerate(("pass", "update")):
        left = 52 + panel * 378.0

        def x(at: float, left: float = left) -> float:
            return left + wide * at / max(often)

        def y(loss: float) -> float:
            return top + 20 + high * (peak - loss) / max(peak - low, 0.5)

        svg.text(left, top + 6, f"by {unit}", bold=True)
        svg.rect(left, top + 20, wide, high)
        for half in range(round(2 * low), round(2 * peak) + 1):
            svg.line(left - 4, y(half / 2), left, y(half / 2))
            svg.text(left - 6, y(half / 2) + 4, f"{half / 2:g}", 11, "end")
        for at in range(0, max(often) + 1, max(1, max(often) // 8)):
            svg.line(x(at), top + 20 + high, x(at), top + 24 + high)
            svg.text(x(at), top + 37 + high, f"{at}", 11, "middle")
        svg.text(left + wide / 2, top + 54 + high, f"{unit}es" if unit == "pass" else "updates", 11, "middle")
        for n, (colour, shape, _) in looks.items():
            points = [(x(at if unit == "pass" else at // n), y(loss)) for at, loss in curves[n].items()]
            svg.path("M" + " L".join(f"{number(a)} {number(b)}" for a, b in points), colour=colour, width=2)
            for a, b in points:
                svg.marker(a, b, shape, colour, 4)
    svg.text(8, top + 14, "loss", 11)
    rows: list[Row] = [
        {"pass": at} | {name[n]: curve[at] for n, curve in sorted(curves.items()) if at in curve}
        | {f"update, {name[n]}": at // n for n, curve in sorted(curves.items()) if at in curve and n > 1}
        for at in sorted({at for curve in curves.values() for at in curve})
    ]  # fmt: skip
    return book.Figure(title, run.trace.badge, said, rows, svg.render(top + high + 64))
