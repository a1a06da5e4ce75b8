"""Training on ranks beside training on one device: the same text, the same model, and how far the weights are apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from labkit.chapters.c12_experts import layers
from labkit.data import batches, text
from labkit.models import GPT, GPTConfig, MoEConfig, next_token_loss
from labkit.wire import Group

STEPS, BATCH, CONTEXT = 3, 2, 16
RATES = {"SGD": 0.5, "AdamW": 3e-3}
WAYS = (("all ranks", "SGD"), ("the replicas", "SGD"), ("the replicas", "AdamW"))  # divisors and optimizers to compare


def gpt(experts: int) -> GPT:
    """A small GPT with a mixture, in 64 bits, so that only a mistake makes a difference. Nothing is dropped."""
    moe = MoEConfig(experts, 2 if experts > 1 else 1, hidden=0.5, balance=0)
    return GPT(GPTConfig(context=CONTEXT, width=16, layers=1, heads=2, moe=moe), 0).double()


def row_and_column(group: Group, across: int) -> tuple[Group, Group]:
    """Of the grid of ranks: those among whom the experts are shared out, and those that hold the same ones."""
    row = group.rank // across * across
    return group.subgroup(range(row, row + across)), group.subgroup(range(group.rank % across, group.size, across))


def lessons(rank: int, size: int, batch: int = BATCH) -> Iterator[tuple[Tensor, Tensor]]:
    """What this rank reads in three steps."""
    return islice(batches(text().train, batch, CONTEXT, 0, rank, size), STEPS)


def length_of_a_row(size: int) -> int:
    """Of the grid of ranks: two rows where that leaves two ranks or more in each, and else a single one."""
    return size // 2 if size % 2 == 0 and size > 2 else size


def stepper(model: nn.Module, optimizer: str) -> Callable[[], None]:
    """Takes a step and clears the gradients."""
    taking = getattr(torch.optim, optimizer)(model.parameters(), lr=RATES[optimizer])

    def step() -> None:
        taking.step()
        taking.zero_grad()

    return step


class Pair:
    """The GPT on a grid of ranks, and the same GPT on one device that reads what all of them read together.

    model: on the ranks; its mixture computes as `forward` says. lessons: what this rank reads. replicas: the ranks
    that hold the same experts. off: by step, how far the weights (experts', all others) are from one device's, beside
    the furthest that one of those has gone. factor: how many times too large the experts' gradients were made.
    """

    def __init__(self, group: Group, forward: Callable[..., Any], optimizer: str) -> None:
        across = length_of_a_row(group.size)
        row, self.replicas = row_and_column(group, across)
        self.group, self.lessons, self.factor = group, lessons(group.rank, group.size), 1.0
        self.model, self._one = gpt(2 * across), gpt(2 * across)
        self._began = {name: p.detach().clone() for name, p in self._one.named_parameters()}
        layers.spread(self.model, row, forward)
        self._steps = stepper(self.model, optimizer), stepper(self._one, optimizer)
        self._read, self.off = lessons(0, 1, BATCH * group.size), list[tuple[float, float]]()

    def divide_experts_by(self, by: str) -> None:
        """The experts' gradients as if they had been divided by this, and not by the number of all ranks."""
        divisors = {"all ranks": self.group.size, "the replicas": self.replicas.size, "nothing": 1}
        self.factor = self.group.size / divisors[by]
        for name, p in self.model.named_parameters():
            if "experts" in name and p.grad is not None:
                p.grad *= self.factor

    def step(self) -> None:
        """A step of both, and how far they are apart then."""
        inputs, targets = next(self._read)
        next_token_loss(self._one(inputs), targets).backward()
        for step in self._steps:
            step()
        mine, off, gone = dict(self._one.named_parameters()), [0.0, 0.0], [0.0, 0.0]
        for name, p in self.model.named_parameters():
            kind = "experts" not in name
            off[kind] = max(off[kind], float((p - mine[name]).detach().abs().max()))
            gone[kind] = max(gone[kind], float((mine[name] - self._began[name]).detach().abs().max()))
        self.off.append((off[0] / gone[0], off[1] / gone[1]))


def furthest(run: Any) -> float:
    """After the last step, over all ranks and kinds of weights."""
    return max(max(steps[-1]) for steps, _ in run.results)
