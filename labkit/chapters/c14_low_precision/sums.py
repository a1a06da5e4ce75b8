"""Sections 4 and 5 of chapter 14: long sums in few bits, updates that are rounded away, and losses that are scaled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from labkit import book
from labkit.chapters.c14_low_precision import lm
from labkit.collectives import all_gather, reduce_scatter
from labkit.models import next_token_loss
from labkit.optim.precision import FP16, Format, round_to
from labkit.wire import Group


@cache
def _one_more(total: float, accumulator: Format) -> float:
    return round_to(torch.tensor(total + 1), accumulator, overflow="special").item()


def running(terms: int, accumulator: Format, promote: int | None = None, every: int = 64) -> list[tuple[int, float]]:
    """(terms so far, their sum) of so many ones, added one by one in `accumulator`; as `multiply` does it."""
    total, partial, found = 0.0, 0.0, [(0, 0.0)]
    for n in range(1, terms + 1):
        partial = _one_more(partial, accumulator)
        if promote and n % promote == 0:
            total, partial = total + partial, 0.0
        if n % every == 0:
            found.append((n, total + partial))
    return found


def each_way(terms: int, ways: Mapping[str, tuple[Format, int | None]]) -> dict[str, list[tuple[int, float]]]:
    """The running sum of so many ones with each (accumulator, terms after which it is moved), by name."""
    named = book.in_turn([*ways], f"adding {terms:,} ones in {{}}")
    return {name: running(terms, *ways[name]) for name in named}


# 5: scaled losses --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scaled:
    """What a rank tells of a step: the loss scale that it used, whether it took the step, its loss."""

    scale: float
    taken: bool
    loss: float


class Sharded:
    """A small GPT whose optimizer is cut in shards, as in ZeRO (chapter 5): each rank updates its part of the weights.

    told: a line for each step.
    """

    def __init__(self, group: Group, seed: int) -> None:
        self.group, self.model, self.told = group, lm.gpt(seed), list[Scaled]()
        self._numbers, self._loss = len(parameters_to_vector(self.model.parameters())), 0.0
        self._master = torch.nn.Parameter(self._mine(parameters_to_vector(self.model.parameters()).detach()).clone())
        self._optimizer = torch.optim.AdamW([self._master], lm.RATE)

    def gradient(self, texts: tuple[Tensor, Tensor], scale: float) -> Tensor:
        """This rank's part of the mean gradient of the scaled loss, summed in FP16; infinite where that ends.

        First all ranks gather the weights, of which each has updated its part.
        """
        whole = all_gather(self._master.detach(), self.group)[: self._numbers]
        vector_to_parameters(whole, self.model.parameters())
        self.model.zero_grad()
        loss = next_token_loss(self.model(texts[0]), texts[1])
        (loss * scale).backward()
        self._loss = loss.item()
        flat = torch.cat([p.grad.flatten() for p in self.model.parameters() if p.grad is not None])
        flat = torch.nn.functional.pad(flat / self.group.size, (0, -len(flat) % self.group.size))
        narrow = round_to(flat, FP16, overflow="special").half()
        return reduce_scatter(narrow, self.group, algorithm="pairwise").float()

    def step(self, shard: Tensor) -> None:
        """Update this rank's part of the weights."""
        self._master.grad = shard
        self._optimizer.step()

    def note(self, scale: float, taken: bool) -> None:
        """Write down what was decided."""
        self.told.append(Scaled(scale, taken, self._loss))

    def _mine(self, weights: Tensor) -> Tensor:
        padded = torch.nn.functional.pad(weights, (0, -len(weights) % self.group.size))
        return padded.chunk(self.group.size)[self.group.rank]


def loss(run: Any, few: int = 10) -> float:
    """The mean loss of the last steps, of all ranks."""
    losses = [step.loss for told in run.results for step in told[-few:]]
    return sum(losses) / len(losses)


def alone(shards: Sequence[Tensor], group: Group) -> bool:
    """Each rank by itself."""
    return all(bool(x.isfinite().all()) for x in shards)


def apart(run: Any) -> int:
    """In how many steps the ranks did not have the same scale."""
    return sum(len({step.scale for step in steps}) > 1 for steps in zip(*run.results, strict=True))


def torn(run: Any) -> int:
    """In how many steps some ranks took the step, and others did not."""
    return sum(len({step.taken for step in steps}) > 1 for steps in zip(*run.results, strict=True))
