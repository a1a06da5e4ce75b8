"""What section 3 of chapter 8 trains: a small GPT on Python's own documentation, and who looks at its loss when."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from labkit import cost
from labkit.chapters.c08_loose_synchrony.task import now
from labkit.data import batches, text
from labkit.models import GPT, GPTConfig, next_token_loss
from labkit.wire import Group

CONFIG = GPTConfig(context=16, layers=1, width=32, heads=2)
BATCH, STEP = 4, 0.01  # texts of a rank; seconds of the virtual clock that a step computes


def data(group: Group, seed: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches of this rank: no two ranks read the same text."""
    return batches(text().train, BATCH, CONFIG.context, seed, group.rank, group.size)


@cache
def kept_back() -> tuple[Tensor, Tensor]:
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
            inputs, targets = kept_back()
            loss = next_token_loss(self.model(inputs), targets).item()
            self.curve.append((1e3 * (now(self.group) - self.began), loss))

    def __reduce__(self) -> Any:
        """Only what was seen goes back to the notebook."""
        return _seen, (self.curve, self.steps, now(self.group) - self.began)


@dataclass
class Seen:
    curve: list[tuple[float, float]]
    steps: int
    seconds: float


def _seen(*parts: Any) -> Seen:
    return Seen(*parts)


def numel() -> int:
    return sum(p.numel() for p in GPT(CONFIG).parameters())


def told(run: Any, every: int, name: str) -> dict[str, Any]:
    """What a workbench shows of a run of local SGD."""
    seen: Seen = run.results[0]
    n = run.trace.world_size
    return {
        "name": name, "curve": seen.curve, "steps": seen.steps, "seconds": seen.seconds,
        "computing": STEP * seen.steps, "sent": sent_in(run),
        "formula": cost.local_sgd_bytes_by_rank(numel(), 4, n, seen.steps, every)[0],
    }  # fmt: skip


def sent_in(run: Any) -> int:
    """Bytes that rank 0 sent in the steps, without what it sends before the first one."""
    return sum(m.nbytes for m in run.trace.sends if m.src == 0 and m.step == 1)


Rule = Callable[[Tensor, Tensor, Tensor, float, float], tuple[Tensor, Tensor]]


class _Outer(torch.optim.Optimizer):
    """The outer optimizer, by a reader's rule. Its one gradient is where the round began less the mean."""

    def __init__(self, parameters: list[nn.Parameter], rule: Rule, lr: float, momentum: float) -> None:
        super().__init__(parameters, {})
        self.rule, self.lr, self.momentum = rule, lr, momentum
        self.velocity = torch.zeros_like(parameters[0])

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        (begun,) = self.param_groups[0]["params"]
        mean = begun - begun.grad
        new, self.velocity = self.rule(begun.detach().clone(), mean, self.velocity, self.lr, self.momentum)
        begun.copy_(new)


@dataclass(frozen=True)
class Outer:
    """Makes an outer optimizer of a rule such as `outer_step`. The paper has 0.7 and 0.9, for hundreds of rounds."""

    rule: Rule
    lr: float = 1.0
    momentum: float = 0.5

    def __call__(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return _Outer(parameters, self.rule, self.lr, self.momentum)
