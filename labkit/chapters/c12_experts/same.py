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
WAYS = (("all ranks", "SGD"), ("its ranks", "SGD"), ("its ranks", "AdamW"))  # divisors and optimizers to compare


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


class OneDevice:
    """The same model on one device that reads what all ranks read together. It goes a step at a time beside them."""

    def __init__(self, experts: int, optimizer: str, size: int) -> None:
        self.model = gpt(experts)
        self.began = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        self.step = stepper(self.model, optimizer)
        self.lessons = lessons(0, 1, BATCH * size)

    def goes_on(self, model: nn.Module) -> tuple[float, float]:
        """Takes its next step. How far the weights of `model` are from its own, beside the furthest that one of its own
        has gone from where it began: experts' weights, all others."""
        inputs, targets = next(self.lessons)
        next_token_loss(self.model(inputs), targets).backward()
        self.step()
        mine, off, gone = dict(self.model.named_parameters()), [0.0, 0.0], [0.0, 0.0]
        for name, p in model.named_parameters():
            kind = "experts" not in name
            off[kind] = max(off[kind], float((p - mine[name]).detach().abs().max()))
            gone[kind] = max(gone[kind], float((mine[name] - self.began[name]).detach().abs().max()))
        return off[0] / gone[0], off[1] / gone[1]


def three_steps(
    group: Group, across: int, forward: Callable[..., Any], gradients: Callable[..., None], by: str, optimizer: str
) -> tuple[list[tuple[float, float]], float]:
    """What a rank does: train the GPT, its mixture as `forward` says, with rows of `across` ranks, beside one device.

    gradients(model, inputs, targets, group, twins, divisor) fills every p.grad. by: what divides those of experts.
    Returns, by step, how far (experts' weights, all others) are from one device's, and the factor of the mistake.
    """
    row, twins = row_and_column(group, across)
    model, one = gpt(2 * across), OneDevice(2 * across, optimizer, group.size)
    layers.spread(model, row, forward)
    step, off = stepper(model, optimizer), []
    divisor = {"all ranks": group.size, "its ranks": twins.size, "nothing": 1}[by]
    for inputs, targets in lessons(group.rank, group.size):
        gradients(model, inputs, targets, group, twins, divisor)
        step()
        off.append(one.goes_on(model))
    return off, group.size / divisor


def furthest(run: Any) -> float:
    """After the last step, over all ranks and kinds of weights."""
    return max(max(steps[-1]) for steps, _ in run.results)
