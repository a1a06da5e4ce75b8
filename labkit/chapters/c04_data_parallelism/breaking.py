"""One rank that breaks the agreement of data parallelism, in one of several ways, and what it does to the others."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn

from labkit import book
from labkit.book.drawing.figure import WIDTH, heading, legend
from labkit.book.drawing.style import GREEN, GREY, ON_COLOUR, ORANGE, YELLOW
from labkit.book.drawing.svg import Svg
from labkit.book.drawing.tables import Row
from labkit.book.drawing.units import listing
from labkit.models import GPT, GPTConfig
from labkit.parallel import DataParallel
from labkit.wire import Group
from labkit.wire.errors import RefusedError

AGREED = "does as agreed"
WIDER, UNUSED = "builds a wider model", "skips a layer"
INFINITE, EARLY = "has an infinite number", "leaves a step early"
WAYS = [AGREED, INFINITE, WIDER, UNUSED, EARLY]
REFUSED = "did not bring the same model"
GUARDS = ["none", "check_nan", "find_unused_parameters", "join"]


def small_gpt(way: str, width: int, seed: int) -> GPT:
    """The model of a rank that goes this way: another width inside, a layer that nobody uses, or a bad gradient."""
    model = GPT(GPTConfig(width=width, layers=4, expansion=8 if way == WIDER else 4), seed)
    block: Any = model.blocks[2]
    if way == UNUSED:
        block.feed_forward.register_forward_hook(lambda module, inputs, output: torch.zeros_like(output))
    if way == INFINITE:
        block.attention.out.bias.register_hook(lambda g: g.index_fill(0, torch.tensor([0]), torch.inf))
    return model


def wrapped(
    group: Group, way: str, guard: str, width: int, seed: int
) -> tuple[nn.Module, torch.optim.Optimizer, AbstractContextManager[Any]]:
    """`small_gpt` in labkit's wrapper with this guard, its optimizer, and `join` or a context that does nothing."""
    on: dict[str, Any] = {guard: True} if guard in ("check_nan", "find_unused_parameters") else {}
    model = DataParallel(small_gpt(way, width, seed), group, algorithm="ring", **on)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, sgd, model.join(step=sgd.step) if guard == "join" else nullcontext()


def weights_of(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def bad_numbers(model: nn.Module) -> int:
    """How many weights are NaN or infinite."""
    return int((~weights_of(model).isfinite()).sum())


def refused(step: Callable[..., Any]) -> Callable[..., Any]:
    """`step`, which returns why if all ranks together refuse their models. Else one of them would be named."""

    @wraps(step)
    def tried(group: Group, *args: Any, **settings: Any) -> Any:
        try:
            return step(group, *args, **settings)
        except RefusedError as why:
            if REFUSED not in str(why):
                raise
            return str(why)

    return tried


def verdict(run: Any) -> str:
    """What the ranks hold in the end. Each returns `bad_numbers` after each of its steps, and all its weights."""
    if isinstance(run.results[0], str):
        return f"All ranks refused, before a gradient was sent: {run.results[0]}."
    bad, weights = [found[-1] for found, _ in run.results], [final for _, final in run.results]
    said = f"No rank raised an error ({run.trace.badge})."
    if max(bad):
        every, whole = f"{max(bad):,}", f"{len(weights[0]):,}"
        which = f"all {whole}" if every == whole else f"{every} of the {whole}"
        who = "every rank" if min(bad) == max(bad) else "a rank"
        return f"{said} On {who} {which} weights are no longer finite."
    same = all(torch.equal(weights[0], one) for one in weights)
    taken = [len(found) for found, _ in run.results]
    steps = "" if min(taken) == max(taken) else (
        f" One rank read {min(taken)} batch, and the others {max(taken)}. Equal is not yet right: what did "
        "the last step average?"
    )  # fmt: skip
    return (
        f"{said} All replicas are {'equal, bit for bit' if same else 'different'}, and all weights are finite.{steps}"
    )


def weights_after(run: Any) -> book.Figure | str:
    """For each rank and step: all weights finite, some not, none."""
    if isinstance(run.results[0], str):
        return "No rank took a step."
    found, whole = [found for found, _ in run.results], len(run.results[0][1])
    steps = max(map(len, found))
    looks = {"all finite": (GREEN, ""), "some not finite": (YELLOW, "\\"), "most or all not finite": (ORANGE, "x"),
             "no step of its own": (GREY, "/")}  # fmt: skip
    rows: list[Row] = [
        {"rank": rank} | {f"not finite after step {k + 1}": count for k, count in enumerate(mine)}
        for rank, mine in enumerate(found)
    ]
    each = [listing([f"{count:,} after step {k + 1}" for k, count in enumerate(mine)]) for mine in found]
    who = "; ".join(f"rank {rank}: {told}" for rank, told in enumerate(each))
    said = f"Weights that are not finite, of {whole:,}: " + (f"on each rank {each[0]}" if len(set(each)) == 1 else who)
    fewer = [str(rank) for rank, mine in enumerate(found) if len(mine) < steps]
    if fewer and not any(map(any, found)):
        said = f"All weights are finite. Rank{'s' * (len(fewer) > 1)} {listing(fewer)} took fewer steps of their own"
        if len(fewer) == 1 and steps == 2:
            said = f"All weights are finite. Rank {fewer[0]} took no second step of its own"
    svg = Svg(WIDTH, "The weights after each step", said)
    top = heading(svg, run.trace.badge, said + ".")
    top = legend(svg, top, [(name, colour, hatch, "") for name, (colour, hatch) in looks.items()]) + 8
    wide = min(84.0, (WIDTH - 110) / len(found))
    for rank, mine in enumerate(found):
        x = 96 + rank * wide
        svg.text(x + wide / 2 - 4, top + 8, f"rank {rank}", 11, "middle")
        for k in range(steps):
            count = mine[k] if k < len(mine) else None
            state = "no step of its own" if count is None else (
                "all finite" if not count else "some not finite" if count < whole / 2 else "most or all not finite"
            )  # fmt: skip
            colour, hatch = looks[state]
            svg.rect(x, top + 16 + 40 * k, wide - 8, 34, colour, hatch, ON_COLOUR, stroke_width=0.7)
    for k in range(steps):
        svg.text(88, top + 37 + 40 * k, f"after step {k + 1}", 11, "end")
    return book.Figure(
        "The weights after each step", run.trace.badge, said + ".", rows, svg.render(top + 24 + 40 * steps)
    )
