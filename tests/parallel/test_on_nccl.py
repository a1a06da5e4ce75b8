"""Strategies over the stand-in for NCCL: to the bit and to the byte what they are over labkit's own sockets."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from slices import STAND_IN, few
from torch import nn

from labkit import launch
from labkit.models import GPT, GPTConfig, next_token_loss, seeded, state
from labkit.parallel import (
    AdamW,
    DataParallel,
    FullyShard,
    Pipeline,
    TensorParallelGPT,
    ZeRO1,
    ZeRO2,
    ZeRO3,
)  # fmt: skip
from labkit.parallel.pipeline import one_f_one_b

pytestmark = pytest.mark.ranks

CONFIG = GPTConfig(context=8, layers=2, width=24, heads=4, vocab=31)
TOKENS = torch.arange(12 * 9).reshape(12, 9) * 7 % 31


def steps(model, group, own=False, rows=True):
    """Two steps of a language model on this rank's rows (or on all of them); its losses and weights.

    own: the wrapper is the optimizer, too.
    """
    mine = TOKENS.tensor_split(group.size)[group.rank] if rows else TOKENS
    optimizer, losses = model if own else torch.optim.SGD(model.parameters(), lr=0.1), []
    for _ in range(2):
        optimizer.zero_grad()
        loss = next_token_loss(model(mine[:, :-1]), mine[:, 1:])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [x.detach().clone() for x in model.state_dict().values()]


def data_parallel(group):
    return steps(DataParallel(GPT(CONFIG), group), group)


def zero(stage, group):
    model = stage(GPT(CONFIG), group, AdamW(lr=0.1))
    losses, _ = steps(model, group, own=True)
    return losses, list(state(model).values())


def fully_shard(group):
    return steps(FullyShard(GPT(CONFIG), group), group)


def tensor_parallel(group):
    return steps(TensorParallelGPT(CONFIG, group), group, rows=False)


def pipeline(group):
    with seeded(3):
        layers = [nn.Linear(6, 6) for _ in range(group.size)]
    x = torch.arange(48.0).view(8, 6) / 48
    made = Pipeline(layers[group.rank], group, F.mse_loss)
    done = made.execute(one_f_one_b(group.size, 4), x, x)
    return [done.loss], [p.grad.clone() for p in layers[group.rank].parameters()]


CASES = {
    "pipeline": pipeline, "FSDP": fully_shard, "tensor parallel": tensor_parallel, "data parallel": data_parallel,
    "ZeRO-1": partial(zero, ZeRO1), "ZeRO-2": partial(zero, ZeRO2), "ZeRO-3": partial(zero, ZeRO3),
}  # fmt: skip


@pytest.mark.parametrize("name", few(CASES, keep=7))
@pytest.mark.parametrize("size", few([2, 4]))
def test_a_strategy_gives_what_it_gives_over_sockets(size, name):
    here, there = (launch(CASES[name], size, transport=wire) for wire in (STAND_IN, "local"))
    for (losses, tensors), (others, expected) in zip(here.results, there.results, strict=True):
        assert losses == others and all(map(torch.equal, tensors, expected))
    assert here.trace.bytes_sent() == there.trace.bytes_sent() and sum(here.trace.bytes_sent()) > 0
