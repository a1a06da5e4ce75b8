"""Small models for storms, of each kind that a replica may be: plain, FSDP or tensor-parallel inside.

Each `build(inner_group, seed)` is what `ft_hsdp.train` wants. Samples are made of their numbers alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from labkit.models.gpt import GPT, GPTConfig, next_token_loss
from labkit.wire.group import Group

SMALL = GPTConfig(vocab=32, context=8, layers=2, heads=2, width=16)


def tokens(numbers: Tensor, config: GPTConfig = SMALL) -> tuple[Tensor, Tensor]:
    """Inputs and targets of these samples, int64 of shape (len(numbers), context)."""
    place = torch.arange(config.context + 1)
    text = (numbers[:, None] * 17 + place * (1 + numbers[:, None] % 5) + 3) % config.vocab
    return text[:, :-1], text[:, 1:]


def plain(inner: Group, seed: int) -> tuple[Any, Any, Any]:
    """A replica of one rank: a perceptron with dropout."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Dropout(0.1), nn.Linear(32, 4))

    def loss(model: nn.Module, numbers: Tensor) -> Tensor:
        x = torch.sin(numbers[:, None].float() * torch.arange(1, 9) * 0.37)
        return nn.functional.mse_loss(model(x), torch.cos(x[:, :4] * 3))

    return model, torch.optim.AdamW(model.parameters(), lr=3e-3), loss


def fsdp(inner: Group, seed: int) -> tuple[Any, Any, Any]:
    """A GPT cut among the ranks of the replica, each with a part of its batch."""
    from labkit.parallel import FullyShard

    model = FullyShard(GPT(SMALL, seed), inner)

    def loss(model: nn.Module, numbers: Tensor) -> Tensor:
        x, y = tokens(numbers[inner.rank :: inner.size])
        return next_token_loss(model(x), y)

    return model, torch.optim.AdamW(model.parameters(), lr=3e-3), loss


def tp(inner: Group, seed: int) -> tuple[Any, Any, Any]:
    """A GPT of which every rank of the replica has a part of each layer, with the whole batch."""
    from labkit.parallel import TensorParallelGPT

    model = TensorParallelGPT(SMALL, inner, seed=seed)
    return model, torch.optim.AdamW(model.parameters(), lr=3e-3), lambda model, numbers: model(*tokens(numbers))


MODELS: dict[str, Callable[[Group, int], tuple[Any, Any, Any]]] = {"plain": plain, "fsdp": fsdp, "tp": tp}


class Paced:
    """`build` of one of the models, whose forward takes `seconds` at least."""

    def __init__(self, name: str, seconds: float):
        self.name, self.seconds = name, seconds

    def __call__(self, inner: Group, seed: int) -> tuple[Any, Any, Any]:
        model, optimizer, loss = MODELS[self.name](inner, seed)

        def paced(model: nn.Module, numbers: Tensor) -> Tensor:
            with inner.compute(self.seconds):
                return loss(model, numbers)

        return model, optimizer, paced if self.seconds else loss
