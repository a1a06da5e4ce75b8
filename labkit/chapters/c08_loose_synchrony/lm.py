"""What section 4 of chapter 8 trains: a small GPT on Python's own documentation, and who looks at its loss when."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from labkit import Link, cost, launch
from labkit.chapters.c08_loose_synchrony.task import for_each, now
from labkit.collectives.choose import choose
from labkit.data import batches, text
from labkit.models import GPT, GPTConfig, next_token_loss
from labkit.wire import Group

CONFIG = GPTConfig(context=16, layers=1, width=32, heads=2)
BATCH, STEP = 4, 0.01  # texts of a rank; seconds of the virtual clock that a step computes


Batch = tuple[Tensor, Tensor]


def model(seed: int = 0) -> GPT:
    return GPT(CONFIG, seed)


def data(group: Group, seed: int, steps: int) -> Iterator[tuple[int, Batch]]:
    """(1, batch), (2, batch), ... of this rank: no two ranks read the same text."""
    return enumerate(islice(batches(text().train, BATCH, CONFIG.context, seed, group.rank, group.size), steps), 1)


def loss(net: nn.Module, batch: Batch) -> Tensor:
    inputs, targets = batch
    return next_token_loss(net(inputs), targets)


def gradient(group: Group, net: nn.Module, batch: Batch) -> None:
    """Put that of the batch into the parameters, in `STEP` seconds of the virtual clock."""
    net.zero_grad()
    loss(net, batch).backward()
    group.compute(STEP)


def read(net: nn.Module) -> Tensor:
    """All weights as one flat tensor of their own."""
    return parameters_to_vector(net.parameters()).detach()


def write(net: nn.Module, weights: Tensor) -> None:
    """Put such a tensor into the model; the tensor stays as it is."""
    vector_to_parameters(weights.clone(), net.parameters())


@cache
def kept_back() -> Batch:
    return next(batches(text().val, 96, CONFIG.context, 1))


@dataclass
class Watch:
    """The loss of rank 0 on text that nobody trains on, every `often` steps, by milliseconds of the virtual clock."""

    group: Group
    model: nn.Module
    often: int = 8
    steps: int = 0
    curve: list[tuple[float, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.began = now(self.group)

    @torch.no_grad()
    def look(self) -> None:
        """To be called after each step."""
        self.steps += 1
        if self.steps % self.often == 0 and self.group.rank == 0:
            at = 1e3 * (now(self.group) - self.began)
            self.curve.append((at, loss(self.model, kept_back()).item()))

    def __reduce__(self) -> Any:
        """Only what was seen goes back to the notebook."""
        return _seen, (self.curve, self.steps, now(self.group) - self.began)


@dataclass
class Seen:
    curve: list[tuple[float, float]]
    steps: int
    seconds: float

    def last(self) -> float:
        return self.curve[-1][1]


def _seen(*parts: Any) -> Seen:
    return Seen(*parts)


def numel() -> int:
    return sum(p.numel() for p in GPT(CONFIG).parameters())


Rule = Callable[[Tensor, Tensor, Tensor, float, float], tuple[Tensor, Tensor]]


def with_rounds(world: Any, local: Callable[..., Any], lengths: Sequence[int]) -> dict[str, Any]:
    """A run of local SGD on the kept world for each number of local steps in a round, by name."""
    return for_each(lambda every: world.run(local, every), {f"H = {every}": every for every in lengths}, "64 steps, {}")


def gain_by_choice(ranks: int, link: Link, runs: Mapping[str, Any]) -> float:
    """How many times as fast the last of the runs of `with_rounds` would be as the first, by the formulas, with the
    all-reduce that "auto" takes on this link."""
    chosen = choose("all_reduce", 4 * numel(), ranks, cost.Links(link.latency, 1 / link.bandwidth))
    each = chosen.seconds[chosen.algorithm]
    often, *_, rarely = (int(name.split()[-1]) for name in runs)
    steps = next(iter(runs.values())).results[0].steps
    first, last = (steps * STEP + steps // every * each for every in (often, rarely))
    return first / last


def less_often(
    local: Callable[..., Any], ranks: int, every: int, outer_step: Rule | None, rate: float, link: Any
) -> dict[str, Any]:
    """What a workbench shows of a run of local SGD on its own world, over this network."""
    outer = Outer(outer_step) if outer_step else None
    run = launch(partial(local, every=every, outer=outer, rate=rate), ranks, network=link, clock="virtual")
    seen: Seen = run.results[0]
    n = run.trace.world_size
    return {
        "name": f"H = {every}, {'outer step' if outer else 'average'}",
        "curve": seen.curve, "steps": seen.steps, "seconds": seen.seconds,
        "computing": STEP * seen.steps, "sent": sent_in(run),
        "formula": cost.local_sgd_bytes_by_rank(numel(), 4, n, seen.steps, every)[0],
    }  # fmt: skip


def sent_in(run: Any) -> int:
    """Bytes that rank 0 sent."""
    return sum(m.nbytes for m in run.trace.sends if m.src == 0)


@dataclass
class Outer:
    """What becomes of the average: the step of a rule such as `outer_step`, with its velocity from round to round.

    The paper has a rate of 0.7 and a momentum of 0.9, for hundreds of rounds.
    """

    rule: Rule
    lr: float = 1.0
    momentum: float = 0.5
    velocity: Tensor | None = None

    def __call__(self, begun: Tensor, mean: Tensor) -> Tensor:
        """The weights that the next round begins with."""
        velocity = torch.zeros_like(begun) if self.velocity is None else self.velocity
        new, self.velocity = self.rule(begun, mean, velocity, self.lr, self.momentum)
        return new
