"""What the workbenches of chapter 0 show: of a sum, and of a training run whose ranks return (losses, model)."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from labkit import book
from labkit.book.drawing.boxes import arrived, collective_boxes, length, message_boxes, work_boxes
from labkit.book.drawing.style import GREY, RED, series
from labkit.book.timelines.reads import Trace
from labkit.book.timelines.timelines import whole
from labkit.data import digits

MOST_LINES = 8  # of one figure
LESS = 110  # pixels by which the plots of the second workbench are lower than others: its controls stay in sight


@dataclass(frozen=True)
class Plain:
    """How a line looks that has no dashes and no markers."""

    colour: str
    width: float


RANK, MEAN, BAND = Plain(GREY, 1.3), Plain(RED, 2.6), Plain("#a3d5f2", 9)


def sums(run: Any) -> str:
    """Who lives, and what they hold after they have added up vectors of 1, 2, ...; results: (sum, who to kill)."""
    kill = run.results[0][1]
    nobody = "" if kill == "nobody" else f"There is no rank {kill} here, so nobody was killed. "
    size = len(run.results)
    alive = "0 and 1" if size == 2 else f"0 to {size - 1}"
    brought = ", ".join(str(1 + rank) for rank in range(size))
    held = ", ".join(f"{x[0]:g}" for x, _ in run.results)
    return f"{nobody}Ranks {alive} are alive. They brought {brought}, and now they hold {held}."


def circle(run: Any) -> book.Stepper:
    """The messages of the sum, around the circle of ranks."""
    return book.replay(run.trace, by="round", shape="circle")


class Watch:
    """Marks for the timeline, and the last layer's weights after each step in `model.last_layers`; hooks see to both.

    A step begins with the forward pass. The span "gradient" ends when every parameter has its gradient; "optimizer" is
    what its name says.
    """

    def __init__(self, group: Any, model: Any, optimizer: Any) -> None:
        self._group, self._model, self._parameters = group, model, list(model.parameters())
        self._span: Any = None
        self._due = 0
        model.last_layers = []
        model.register_forward_pre_hook(_Hook(self._begins))
        for p in self._parameters:
            p.register_post_accumulate_grad_hook(self._has_gradient)
        optimizer.register_step_pre_hook(lambda *_: self._open("optimizer"))
        optimizer.register_step_post_hook(lambda *_: self._ends())

    def _begins(self, *_: Any) -> None:
        self._group.step(len(self._model.last_layers))
        self._due = len(self._parameters)
        self._open("gradient")

    def _has_gradient(self, _: Any) -> None:
        self._due -= 1
        if not self._due:
            self._close()

    def _ends(self) -> None:
        self._close()
        self._model.last_layers.append(self._model.layers[-1].weight.detach().clone())

    def _open(self, name: str) -> None:
        self._span = self._group.span(name, kind="compute")
        self._span.__enter__()

    def _close(self) -> None:
        self._span.__exit__(None, None, None)


class _Hook:
    """A hook that does nothing any more once its model has travelled to another process."""

    def __init__(self, does: Any = None) -> None:
        self._does = does

    def __call__(self, *about: Any) -> None:
        if self._does is not None:
            self._does(*about)

    def __reduce__(self) -> Any:
        return _Hook, ()


def watch(group: Any, model: Any, optimizer: Any) -> None:
    """See `Watch`: the hooks of the model and of the optimizer keep it."""
    Watch(group, model, optimizer)


def parts_of_step(trace: Trace, step: int) -> dict[str, Any]:
    """Rank 0 in this step, as the timeline draws it.

    whole: milliseconds from the beginning of its first box to the end of its last one.
    compute, sums, rest: milliseconds of these in a computing box, inside a sum or a message, or in no box;
    share: the three as whole percents of `whole`, which add up to 100. messages, kB: what rank 0 sends in the step.
    quick, slow: milliseconds in computing boxes on the rank where that takes least, and on the one where it takes most;
    quickest, slowest: these ranks. A box is longer than its work where the rank loses its core in between.
    """
    messages = [m for m in trace.sends if m.step == step and arrived(m)]
    boxes = [*work_boxes(trace, step), *collective_boxes(trace, step), *message_boxes(trace, messages)]
    mine = [b for b in boxes if b.rank == 0]
    first, last = whole(mine)
    by_rank = {
        rank: [(b.start, b.end) for b in boxes if b.rank == rank and b.kind == "compute"]
        for rank in sorted({b.rank for b in boxes})
    }
    spent = {rank: length(stretches) for rank, stretches in by_rank.items()}
    quickest, slowest = min(spent, key=spent.__getitem__), max(spent, key=spent.__getitem__)
    computing = by_rank[0]
    talking = [(b.start, b.end) for b in mine if b.lane != "work"]
    compute = length(computing)
    sums = length([*computing, *talking]) - compute
    parts = {"whole": last - first, "compute": compute, "sums": sums, "rest": last - first - compute - sums}
    parts |= {"quick": spent[quickest], "slow": spent[slowest]}
    share = [round(100 * part / parts["whole"]) for part in (compute, sums)]
    sent = [m.nbytes for m in messages if m.src == 0]
    rest = {"share": [*share, 100 - sum(share)], "messages": len(sent), "kB": sum(sent) / 1e3}
    rest |= {"quickest": quickest, "slowest": slowest}
    return {name: 1e3 * part for name, part in parts.items()} | rest


def cores() -> int:
    """How many cores the ranks of this machine share."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def ordinary_step(trace: Any, steps: int) -> int:
    """The step of median duration, without the first one, in which everything is done for the first time."""
    begin_and_end = {step: trace.during_step(step) for step in range(1, steps)}
    return sorted(begin_and_end, key=lambda step: begin_and_end[step][1] - begin_and_end[step][0])[(steps - 1) // 2]


def algorithms(trace: Any, step: int) -> list[str]:
    """The algorithm of each sum that rank 0 took part in, in this step."""
    calls = trace.collectives("all_reduce")
    return [c.algorithm for c in calls if c.rank == 0 and c.step == step and not c.nested]


def accuracy(model: Any) -> float:
    """The part of the test images that the model gets right."""
    images = digits()[1]
    with torch.no_grad():
        return (model(images.x).argmax(1) == images.y).float().mean().item()


def count_different(models: list[Any]) -> int:
    """How many of the models differ, in any bit."""
    return len({torch.nn.utils.parameters_to_vector(m.parameters()).detach().numpy().tobytes() for m in models})


def models(run: Any) -> str:
    """How many models the ranks have in the end, and how good they are."""
    ended = [model for _, model in run.results]
    count, best = count_different(ended), sorted(accuracy(model) for model in ended)
    ranks = f"{len(ended)} rank{'s' * (len(ended) > 1)}"
    if count == 1:
        return f"{ranks}, 1 model: it gets {best[0]:.1%} of the test images right."
    return f"{ranks}, {count} different models: they get {best[0]:.1%} to {best[-1]:.1%} of the test images right."


def curves(run: Any) -> book.Figure:
    """The loss on each rank, by step, and the mean of all ranks; its sentence also says what models came of it."""
    drawn = _losses(run, MOST_LINES - 1)
    looks = dict.fromkeys(drawn, RANK)
    ends = sorted(losses[-1] for losses, _ in run.results)
    first, last = run.results[0][0][0], f"{ends[0]:.2g}" + f" to {ends[-1]:.2g}" * (len(ends) > 1)
    said = f"The loss begins near {first:.2g} and ends at {last}."
    if len(ends) > 1:
        drawn["mean of the ranks"], looks["mean of the ranks"] = dict(enumerate(_mean(run))), MEAN
        said = f"The loss begins near {first:.2g} and ends at {last}, with a mean of {_mean(run)[-1]:.2g}."
    said = " ".join(part for part in (models(run), together(run), said) if part)
    figure = book.lines(drawn, title="Loss on each rank", badge="measured", sentence=said)
    return _lower(_drawn_as(figure, looks) if len(ends) > 1 else figure)


def one_and_many(one: Any, many: Any) -> book.Figure:
    """The losses of one rank with a large batch, and of many ranks which look at the same images in smaller batches."""
    ranks = len(many.results)
    alone, together = "1 rank, all images", f"mean of the {ranks} ranks"
    means = {alone: _mean(one), together: _mean(many)}
    lines = {name: {float(k): loss for k, loss in enumerate(mean)} for name, mean in means.items()}
    each = _losses(many, MOST_LINES - 2)
    off = max(abs(a - b) for a, b in zip(*means.values(), strict=True))
    good = [f"{accuracy(run.results[0][1]):.1%}" for run in (one, many)]
    said = f"The line of 1 rank is never more than {off:.1g} away from the mean of the {ranks} ranks. " if off else (
        f"The line of 1 rank is the mean of the {ranks} ranks, to the last bit. ")  # fmt: skip
    said += f"Both models get {good[0]} of the test images right." if good[0] == good[1] else (
        f"The models get {good[0]} and {good[1]} of the test images right.")  # fmt: skip
    drawn = {alone: lines[alone]} | each | {together: lines[together]}  # the later ones lie on top
    title = f"The same images on 1 rank and on {ranks}"
    figure = book.lines(drawn, title=title, badge="measured", sentence=said)
    return _drawn_as(figure, {alone: BAND} | dict.fromkeys(each, RANK) | {together: MEAN})


def _drawn_as(figure: book.Figure, looks: Mapping[str, Plain]) -> book.Figure:
    """The same chart of lines, in which each line looks as `looks` says, plain, in the plot and in the picture.

    The ranks, which all look the same, have one entry in the legend of the plot; who points at one reads its number.
    """
    assert figure.spec is not None
    data = []
    for trace in figure.spec["data"]:
        look = looks[trace["name"]]
        line = {"color": look.colour, "width": look.width, "dash": "solid"}
        data.append({key: value for key, value in trace.items() if key != "marker"} | {"mode": "lines", "line": line})
        if look is RANK:
            first = not any(other.get("legendgroup") == "ranks" for other in data)
            data[-1] |= {"name": "each rank", "legendgroup": "ranks", "showlegend": first}
    new = {series(k).colour: look for k, look in enumerate(looks.values())}
    svg = re.sub(r'<path [^>]*stroke="#111"[^>]*/>\n', "", figure.svg)  # the markers

    def plain(line: re.Match[str]) -> str:
        look = new[line[1]]
        return f'stroke="{look.colour}" stroke-width="{look.width}"'

    svg = re.sub(r'stroke="(#\w+)" stroke-width="2.4"(?: stroke-dasharray="[^"]*")?', plain, svg)
    return replace(figure, svg=svg, spec=figure.spec | {"data": data})


def _lower(figure: book.Figure) -> book.Figure:
    """The same figure with a plot that is not as high."""
    assert figure.spec is not None
    layout = figure.spec["layout"]
    return replace(figure, spec=figure.spec | {"layout": layout | {"height": layout["height"] - LESS}})


def _losses(run: Any, most: int) -> dict[str, dict[float, float]]:
    """A line for each of the first `most` ranks."""
    each = [losses for losses, _ in run.results[:most]]
    return {f"rank {rank}": {float(k): loss for k, loss in enumerate(losses)} for rank, losses in enumerate(each)}


def _mean(run: Any) -> list[float]:
    """The mean loss of the ranks, by step."""
    return [sum(step) / len(step) for step in zip(*(losses for losses, _ in run.results), strict=True)]


def _distances(run: Any) -> dict[str, dict[float, float]]:
    """How far the last layer of each rank is from that of rank 0, by step."""
    weights = [model.last_layers for _, model in run.results[:MOST_LINES]]
    return {
        f"rank {rank}": {float(k): (w - weights[0][k]).norm().item() for k, w in enumerate(mine)}
        for rank, mine in enumerate(weights)
    }


def together(run: Any) -> str:
    """That all ranks have had the same weights, where there are several and they have."""
    if len(run.results) == 1 or any(distance for line in _distances(run).values() for distance in line.values()):
        return ""
    return "All ranks have the same weights in their last layer after every step, to the last bit."


def apart(run: Any) -> book.Figure | str:
    """How far the weights of each rank are from those of rank 0, by step; nothing where they are always the same."""
    if len(run.results) == 1 or together(run):
        return ""
    lines = _distances(run)
    most = max(list(line.values())[-1] for line in lines.values())
    norm = run.results[0][1].last_layers[-1].norm()
    said = f"The ranks drift apart: in the end one of them is {most:.2g} away from rank 0, "
    said += f"whose weights have a norm of {norm:.2g}."
    title, y = "Distance from rank 0 after each step (last layer)", "norm of the difference"
    return _lower(book.lines(lines, title=title, y=y, badge="measured", sentence=said))
