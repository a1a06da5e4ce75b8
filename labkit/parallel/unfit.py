"""Gradients that must not be used: with NaN in them, of no examples, or seen by one rank only; refused everywhere."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from labkit.wire.errors import Refused

AVERAGES = ("ranks", "weights", "examples")
AVERAGES_SAID = "'ranks' (all count the same), 'examples' (by the batch), or 'weights' (with model.weighted(n))"


def refuse_nan(rank: int, flat: Tensor, names: Sequence[str], views: Sequence[Tensor]) -> None:
    """Name the parameter whose gradient is not finite, before a sum carries it to every rank.

    flat: gradients side by side; views: each of them in it. Costs one pass over `flat`, and more only if it is bad.
    """
    if torch.isfinite(flat.sum()):  # one NaN or infinity makes the sum one
        return
    for name, view in zip(names, views, strict=True):
        bad = view.numel() - int(torch.isfinite(view).sum())
        if bad:
            raise Refused(f"rank {rank}: {bad} of the {view.numel()} numbers in the gradient of {name!r} are NaN or "
                          "infinite, and nothing of it was sent: look at this rank's batch and loss")  # fmt: skip


def refuse_empty_batch(rank: int, inputs: Iterable[object], instead: str) -> None:
    """No examples make a gradient of zeros, which would draw the average down as if they were some."""
    for x in inputs:
        if isinstance(x, Tensor) and x.dim() and not len(x):
            raise Refused(f"rank {rank}: this batch is empty (shape {tuple(x.shape)}), and it would count as much as "
                          f"the others: {instead}")  # fmt: skip


class Accumulates(Protocol):
    """Adds up gradients on this rank, in `no_sync`, which a later backward is to send."""

    def refuse_step(self, parameters: set[int]) -> None:
        """Raise Refused if one of these parameters (by `id`) has a gradient that was never sent."""


_watched: weakref.WeakSet[Accumulates] = weakref.WeakSet()
_listening: list[object] = []


def watch_steps(owner: Accumulates) -> None:
    """From now on `step()` of any torch optimizer asks `owner.refuse_step` first.

    It finds a no_sync that was left open, or that held the last microbatch, too.
    """
    _watched.add(owner)
    if not _listening:
        _listening.append(register_optimizer_step_pre_hook(_before_step))


def _before_step(optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
    trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
    for owner in _watched:
        owner.refuse_step(trained)
