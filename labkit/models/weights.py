"""The weights of a model seen from outside: how many, which values, which gradient."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw the CPU's random numbers from `seed` inside, and leave the caller's sequence as it was.

    Weights are made on the CPU and moved later, so that every device starts from the same values.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def num_parameters(model: nn.Module) -> int:
    """How many numbers training adjusts. A weight that two layers share counts once."""
    return sum(p.numel() for p in model.parameters())


def state(model: nn.Module) -> dict[str, Tensor]:
    """A copy of every parameter on the CPU, by name: training on does not change it.

    A weight that two layers share appears once, under its first name. Buffers are left out:
    none of the models here has any.
    """
    return {name: p.detach().to("cpu", copy=True) for name, p in model.named_parameters()}


def flat_gradient(model: nn.Module) -> Tensor:
    """All gradients as one vector, in the order of `model.parameters()`.

    Returns a new tensor of shape (num_parameters(model),) with the dtype and device of the
    parameters. A parameter that the loss did not reach contributes zeros, so that the vector
    has the same length on every rank.
    """
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    return torch.cat([g.detach().reshape(-1) for g in grads])
