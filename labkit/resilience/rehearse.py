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
from labkit.wire.group import Group

Life = dict[str, Any]
KILLED = "killed"


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
