"""What chapter 11 runs a model on: two packed texts, and a training in which positions are told or not."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import torch
from torch import Tensor

from labkit import collectives
from labkit.chapters.c11_context_parallelism.attention import packed
from labkit.data import batches, text
from labkit.models import GPT, GPTConfig
from labkit.parallel import ContextParallel
from labkit.wire import Group


def two_texts(size: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Two sequences of two texts each, which differ in the first text only, and the number of each token's text."""
    a, b, second = text().train[: 3 * size].long().split(size)
    return (torch.cat((a, second)), torch.cat((b, second))), packed(2 * size, 2)


def train(group: Group, loss_of: Callable[..., Tensor], config: GPTConfig, seed: int, steps: int) -> list[float]:
    """The losses of a small GPT. Every rank trains on its part of each text, and the gradients are summed.

    loss_of(model, inputs, targets, context): this rank's share of the loss of a batch.
    """
    context, model = ContextParallel(group, layout="contiguous"), GPT(config, seed)
    if group.size > 1:
        context.into(model)
    adam, losses = torch.optim.AdamW(model.parameters(), lr=3e-3), []
    for batch in islice(batches(text().train, 4, config.context, seed), steps):
        loss = loss_of(model, *map(context.cut, batch), context)
        adam.zero_grad()
        loss.backward()
        for p in model.parameters():
            assert p.grad is not None
            collectives.all_reduce(p.grad, group)
        adam.step()
        losses.append(collectives.all_reduce(loss.detach(), group).item())
    return losses
