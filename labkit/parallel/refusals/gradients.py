"""Gradients that must not be used: with NaN in them, of no examples, late, missing, or seen by one rank only."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from labkit.wire.errors import RefusedError

if TYPE_CHECKING:
    from labkit.parallel.fsdp.flat_parameter import FlatParameter

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
            raise RefusedError(
                f"rank {rank}: {bad} of the {view.numel()} numbers in the gradient of {name!r} "
                f"{'is' if bad == 1 else 'are'} NaN or infinite, and nothing of it was sent: "
                "look at this rank's batch and loss"
            )


def refuse_empty_batch(rank: int, inputs: Iterable[object], instead: str) -> None:
    """No examples make a gradient of zeros, which would draw the average down as if they were some."""
    for x in inputs:
        if isinstance(x, Tensor) and x.dim() and not len(x):
            raise RefusedError(
                f"rank {rank}: this batch is empty (shape {tuple(x.shape)}), and it would count as much as "
                f"the others: {instead}"
            )


class Accumulates(Protocol):
    """Adds up gradients on this rank, in `no_sync`, which a later backward is to send."""

    def refuse_step(self, parameters: set[int]) -> None:
        """Raise RefusedError if one of these parameters (by `id`) has a gradient that was never sent."""


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


def unfinished(rank: int) -> RefusedError:
    """A forward begins, and gradients of the step before are half sent."""
    return RefusedError(
        f"rank {rank}: the backward before this forward did not come to its end (an error in it?), and gradients of "
        "it are on their way: wrap the module anew"
    )


def came_again(rank: int, name: str, had_gradient: bool, static: bool) -> RefusedError:
    """A gradient arrives for the second time, or after it was taken for absent."""
    if had_gradient:
        return RefusedError(
            f"rank {rank}: the gradient of {name!r} was finished twice in one backward, and its bucket may be gone. "
            "Reentrant checkpointing of a part that is used twice does that"
        )
    if static:
        return RefusedError(
            f"rank {rank}: {name!r} got a gradient, but it had none in the first step, and static_graph=True "
            "promises that all steps use the same parameters: use find_unused_parameters=True"
        )
    return RefusedError(
        f"rank {rank}: {name!r} got a gradient, although no output of the forward depends on it: return every tensor "
        "that the loss is made of"
    )


def never_came(rank: int, names: Sequence[str], static: bool) -> RefusedError:
    """Backward is over, and gradients are missing."""
    shown = ", ".join(map(repr, names[:3])) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    if static:
        return RefusedError(
            f"rank {rank}: backward ended without a gradient for {shown}, which had one in the first step, and "
            "static_graph=True promises that all steps use the same parameters: use find_unused_parameters=True"
        )
    return RefusedError(
        f"rank {rank}: backward ended without a gradient for {shown}, and the bucket they lie in would wait for ever: "
        "pass find_unused_parameters=True, or freeze them with requires_grad_(False) before wrapping"
    )


def never_averaged(rank: int) -> RefusedError:
    """An optimizer is about to use gradients that only this rank has seen."""
    return RefusedError(
        f"rank {rank}: this step would use gradients that were never averaged, and the models would part: the last "
        "microbatch must run outside of no_sync() (is it still open?). To train apart on purpose, call model.module"
    )


def refuse_unreduced(flat_params: Iterable[FlatParameter], parameters: set[int]) -> None:
    """An optimizer is about to train `parameters` (by `id`) without gradients that were only summed up on this rank."""
    for flat_param in unreduced(flat_params):
        if id(flat_param.shard) in parameters:
            raise RefusedError(
                f"rank {flat_param.world_rank}: this step would leave out gradients that were only summed up here, "
                "never reduced: the last microbatch must run outside of no_sync() (is it still open?). To drop them, "
                "call model.zero_grad()"
            )


def unreduced(flat_params: Iterable[FlatParameter]) -> Iterator[FlatParameter]:
    """The flat parameters that hold gradients of microbatches that were not reduced."""
    return (s for s in flat_params if s.unreduced is not None)
