"""A loss is rehearsed: ranks that are lost at a named place and come back, without the end of a process.

A rank that is lost leaves its group, so all who wait for it there get PeerLost, as if its process had died. It stays a
process, because the others need it to end their function well. When it comes back, its function is called anew:
nothing that it had in its variables is left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from labkit import collectives
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group

Life = dict[str, Any]
KILLED = "killed"
ADAMW = {"rate": 1 / 16, "first_decay": 0.9, "second_decay": 0.99, "eps": 1e-5, "decay": 0.01}  # of `adamw_step`


class Killed(BaseException):
    """This rank was lost. Not an Exception: what a program catches does not save it."""


def reach(place: str, attempt: int, life: Life, group: Group) -> None:
    """Say that this rank is at `place` of attempt number `attempt`. If the plan wants it, it is lost here."""
    if life["dies"] == [place, attempt]:
        group.leave()
        raise Killed


def live(run: Callable[[Life, Group], Any], lives: Sequence[Life], group: Group) -> list[Any]:
    """What `run(life, ranks)` returned in each life of this rank, "killed" where it was lost.

    ranks: a group of all ranks, whose connections are open, and which may be left.
    """
    ranks = group.subgroup(list(range(group.size)))
    collectives.barrier(ranks)
    left = []
    for life in lives:
        try:
            left.append(run(life, ranks))
        except Killed:
            left.append(KILLED)
    collectives.barrier(group)  # who is lost stays until the others are through
    return left


def gradient_of(weights: Tensor, samples: Tensor) -> Tensor:
    """The gradient of a model with float64 `weights` on the samples with these numbers: like `weights`, their mean."""
    places = torch.arange(len(weights))
    each = (samples[:, None] * (places + 3) + places) % 11
    return each.double().mean(0) + weights / 4


def gradient_of_shards(weights: Tensor, shards: Sequence[int], samples: Sequence[int]) -> Tensor:
    """The gradient of the shards with these numbers on these samples: like `weights`, float64[len(shards), width].

    It stands for a backward pass and the sum over replicas. A shard's gradient depends on its number and its weights,
    and not on the rank that holds it.
    """
    places = torch.arange(weights.shape[1])
    numbers = torch.tensor(list(samples))[:, None, None] + 5 * torch.tensor(list(shards), dtype=torch.int64)[:, None]
    return (numbers * (places + 3) % 11 - 5).double().mean(0) + weights / 4


def adamw_step(state: Tensor, steps: int, gradient: Tensor) -> Tensor:
    """The state after one more step of AdamW, which has made `steps` steps before (Loshchilov & Hutter 2019).

    state: float64[3, ...], weights and both moments. gradient: like the weights. `state` stays as it is.
    Raises RefusedError if the shapes do not fit together, or `steps` is no count.
    """
    if state.dim() < 1 or state.shape[0] != 3 or state.shape[1:] != gradient.shape:
        raise RefusedError(
            f"adamw_step: a state of shape {list(state.shape)} and a gradient of {list(gradient.shape)}. It "
            "needs weights and two moments, [3, ...], and a gradient like the weights"
        )
    if type(steps) is not int or steps < 0:
        raise RefusedError(f"adamw_step: {steps!r} steps were made before; it needs a whole number, 0 or more")
    rate, first_decay, second_decay, eps, decay = ADAMW.values()
    first = first_decay * state[1] + (1 - first_decay) * gradient
    second = second_decay * state[2] + (1 - second_decay) * gradient**2
    root = (second / (1 - second_decay ** (steps + 1))).sqrt() + eps
    weights = (1 - rate * decay) * state[0] - rate / (1 - first_decay ** (steps + 1)) * first / root
    return torch.stack([weights, first, second])
