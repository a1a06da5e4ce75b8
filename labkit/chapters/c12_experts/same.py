"""Training on ranks beside training on one device: the same text, the same model, and how far the weights are apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

import torch
from torch import Tensor, nn

from labkit.data import batches, text
from labkit.models import GPT, GPTConfig, MoEConfig, next_token_loss
from labkit.wire import Group

STEPS, BATCH, CONTEXT = 3, 2, 16
RATES = {"SGD": 0.5, "AdamW": 3e-3}


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


def stepper(model: nn.Module, optimizer: str) -> Callable[[], None]:
    """Takes a step and clears the gradients."""
    taking = getattr(torch.optim, optimizer)(model.parameters(), lr=RATES[optimizer])

    def step() -> None:
        taking.step()
        taking.zero_grad()

    return step


def scale_experts(model: nn.Module, factor: float) -> None:
    for name, p in model.named_parameters():
        if "experts" in name and p.grad is not None:
            p.grad *= factor


def furthest(model: nn.Module, experts: int, optimizer: str, size: int) -> float:
    """The largest difference of a weight from that of one device which read everything."""
    one = gpt(experts)
    step = stepper(one, optimizer)
    for inputs, targets in lessons(0, 1, BATCH * size):
        next_token_loss(one(inputs), targets).backward()
        step()
    there = dict(one.named_parameters())
    return max(float((p - there[name]).detach().abs().max()) for name, p in model.named_parameters())
