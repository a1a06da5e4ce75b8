"""Small trainings for the tests of FT-HSDP: a model, samples by number, and three ways to cut it inside a replica."""

from __future__ import annotations

import torch
from torch import nn

from labkit.models import GPT, MLP, GPTConfig, MLPConfig, next_token_loss
from labkit.parallel import ContextParallel, FullyShard, TensorParallelGPT
from labkit.resilience import Deadlines
from labkit.resilience.ft_hsdp import FtConfig

GPT_CONFIG = GPTConfig(vocab=31, context=8, layers=2, heads=2, width=16)
LIMITS = Deadlines.for_step(0.3)  # no limit below a second


def config(replicas=3, ranks=1, **options) -> FtConfig:
    return FtConfig(replicas, ranks, **{"batch": 4, "deadlines": LIMITS, "join_wait": 1.0, **options})


def tokens(numbers, length=9):
    """Sample number n as a row of symbols: a function of n alone."""
    at = torch.arange(length)
    return (numbers[:, None] * 7 + at * (1 + numbers[:, None] % 5)) % GPT_CONFIG.vocab


def build_mlp(inner, seed):
    """Plain: one rank a replica."""
    model = MLP(MLPConfig((6, 16, 3)), seed=seed)

    def loss(model, numbers):
        x = torch.sin(numbers[:, None] * torch.arange(1.0, 7.0))
        return nn.functional.cross_entropy(model(x), numbers % 3)

    return model, torch.optim.AdamW(model.parameters(), lr=1e-2), loss


def build_fsdp(inner, seed):
    """Cut among the ranks of a replica; each computes its part of the batch."""
    model = FullyShard(GPT(GPT_CONFIG, seed=seed), inner)

    def loss(model, numbers):
        rows = tokens(numbers.tensor_split(inner.size)[inner.rank])
        return next_token_loss(model(rows[:, :-1]), rows[:, 1:])

    return model, torch.optim.AdamW(model.parameters(), lr=1e-2), loss


def build_tp(inner, seed):
    """Heads and columns among the ranks of a replica; all of them see the whole batch."""
    model = TensorParallelGPT(GPT_CONFIG, inner, seed=seed)

    def loss(model, numbers):
        rows = tokens(numbers)
        return model(rows[:, :-1], rows[:, 1:])

    return model, torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9), loss


def build_context(inner, seed):
    """Cut as with FSDP; each rank has a part of the positions of every sequence."""
    context = ContextParallel(inner)
    model = FullyShard(context.into(GPT(GPT_CONFIG, seed=seed)), inner)

    def loss(model, numbers):
        rows = tokens(numbers)
        inputs, targets = context.cut(rows[:, :-1]), context.cut(rows[:, 1:])
        return inner.size * context.weight * next_token_loss(model(inputs, context.positions), targets)

    return model, torch.optim.AdamW(model.parameters(), lr=1e-2), loss


BUILDS = {"plain": build_mlp, "fsdp": build_fsdp, "tp": build_tp, "context": build_context}
