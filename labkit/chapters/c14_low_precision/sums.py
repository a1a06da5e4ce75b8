"""Sections 3 and 4 of chapter 14: long sums in few bits, updates that are rounded away, and losses that are scaled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from labkit.chapters.c14_low_precision import lm
from labkit.collectives import all_gather, reduce_scatter
from labkit.models import next_token_loss
from labkit.optim.precision import FP16, Format, round_to
from labkit.wire import Group

H100 = Format("14 bits", 8, 13)  # of which one is not stored: DeepSeek-V3 (2024), section 3.3.2


def running(terms: int, accumulator: Format, promote: int | None = None, every: int = 64) -> list[tuple[int, float]]:
    """(terms so far, their sum) of so many ones, added one by one in `accumulator`; as `multiply` does it."""
    total, partial, found = 0.0, torch.zeros(()), [(0, 0.0)]
    for n in range(1, terms + 1):
        partial = round_to(partial + 1, accumulator, overflow="special")
        if promote and n % promote == 0:
            total, partial = total + float(partial), torch.zeros(())
        if n % every == 0:
            found.append((n, total + float(partial)))
    return found


# 4: scaled losses --------------------------------------------------------------------------------------------------

Agree = Callable[[Sequence[Tensor], Group], bool]
START, INTERVAL = 2.0**22, 4  # a scale that is soon too large; good steps before it is doubled


@dataclass(frozen=True)
class Scaled:
    """What a rank tells of a step: the loss scale that it used, whether it took the step, its loss."""

    scale: float
    taken: bool
    loss: float


def scaled_training(group: Group, agree: Agree, steps: int, seed: int) -> list[Scaled]:
    """Gradients in FP16 with a dynamic scale, optimizer state and update cut in shards as in ZeRO (chapter 5).

    Each rank holds the sum of its shard alone, and asks `agree` whether to take the step.
    """
    model, scale, good, told = lm.gpt(seed), START, 0, []
    optimizer = None
    for inputs, targets in lm.lessons(group, seed, steps):
        model.zero_grad()
        loss = next_token_loss(model(inputs), targets)
        (loss * scale).backward()
        flat = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        flat = torch.nn.functional.pad(flat, (0, -len(flat) % group.size))
        narrow = round_to(flat / group.size, FP16, overflow="special").half()
        shard = reduce_scatter(narrow, group, algorithm="pairwise").float() / scale
        taken = agree([shard], group)
        told.append(Scaled(scale, taken, loss.item()))
        weights = parameters_to_vector(model.parameters()).detach()
        mine = torch.nn.functional.pad(weights, (0, -len(weights) % group.size)).chunk(group.size)[group.rank].clone()
        if optimizer is None:
            master = torch.nn.Parameter(mine)
            optimizer = torch.optim.AdamW([master], lm.RATE)
        if taken:
            master.grad = shard
            optimizer.step()
            good += 1
        else:
            scale, good = scale / 2, 0
        if good == INTERVAL:
            scale, good = scale * 2, 0
        whole = all_gather(master.detach(), group)[: len(weights)]
        vector_to_parameters(whole, model.parameters())
    return told


def alone(shards: Sequence[Tensor], group: Group) -> bool:
    """Each rank by itself."""
    return all(bool(x.isfinite().all()) for x in shards)


def apart(run: Any) -> int:
    """In how many steps the ranks did not have the same scale."""
    return sum(len({step.scale for step in steps}) > 1 for steps in zip(*run.results, strict=True))


def torn(run: Any) -> int:
    """In how many steps some ranks took the step, and others did not."""
    return sum(len({step.taken for step in steps}) > 1 for steps in zip(*run.results, strict=True))
