"""What `DataParallel` refuses, because it would be wrong without anybody noticing."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from labkit.parallel.data.buckets import Buffer
from labkit.wire.errors import Refused

if TYPE_CHECKING:
    from labkit.parallel.data.reducer import Reducer


class Unchanged:
    """Remembers the parameters of a module, and refuses it when they have changed since."""

    def __init__(self, module: nn.Module, rank: int):
        self._rank = rank
        self._known = [(name, p, tuple(p.shape), p.requires_grad) for name, p in module.named_parameters()]

    def check(self, module: nn.Module) -> None:
        """The same parameters, in the same shapes, trained or frozen as before."""
        for known, p in zip_longest(self._known, module.parameters()):
            if known is None or p is None or p is not known[1]:
                what = "a parameter was added" if known is None else f"parameter {known[0]!r} was replaced or removed"
            elif tuple(p.shape) != known[2]:
                what = f"parameter {known[0]!r} was resized from {known[2]} to {tuple(p.shape)}"
            elif p.requires_grad != known[3]:
                what = f"parameter {known[0]!r} was {'frozen' if known[3] else 'unfrozen'}"
            else:
                continue
            raise Refused(f"rank {self._rank}: {what} after wrapping, and its gradient has no place in the buckets: "
                          "change the module first, then wrap it (again)")  # fmt: skip


def refuse_empty_batch(rank: int, inputs: Iterable[Any]) -> None:
    """No examples make a gradient of zeros, which would draw the average down as if they were some."""
    for x in inputs:
        if isinstance(x, Tensor) and x.dim() and not len(x):
            raise Refused(f"rank {rank}: this batch is empty (shape {tuple(x.shape)}), and it would count as much as "
                          "the others: use average='weights' and model.weighted(0), or model.join()")  # fmt: skip


def refuse_sparse(module: nn.Module) -> None:
    """A sparse gradient lists the rows that it has, and these differ between ranks: a bucket has no place for it."""
    for name, part in module.named_modules():
        if getattr(part, "sparse", False) is True:
            raise Refused(f"{name!r} makes sparse gradients, which cannot lie in a bucket: build it with sparse=False")


def refuse_nan(rank: int, buffer: Buffer) -> None:
    """Name the parameter whose gradient is not finite, before the sum carries it to every rank. One pass over it."""
    if torch.isfinite(buffer.flat.sum()):  # one NaN or infinity makes the sum one
        return
    for name, view in zip(buffer.layout.names, buffer.views, strict=True):
        bad = view.numel() - int(torch.isfinite(view).sum())
        if bad:
            raise Refused(f"rank {rank}: {bad} of the {view.numel()} numbers in the gradient of {name!r} are NaN or "
                          "infinite. Nothing of this bucket was sent: look at the batch of this rank")  # fmt: skip


# A step with gradients that only this rank has seen: no_sync was left open, or held the last microbatch, too.

_watched: weakref.WeakSet[Reducer] = weakref.WeakSet()
_listening: list[Any] = []


def watch_steps(reducer: Reducer) -> None:
    """From now on `optimizer.step()`, of any optimizer, refuses gradients of `reducer` that were not averaged."""
    _watched.add(reducer)
    if not _listening:
        _listening.append(register_optimizer_step_pre_hook(_before_step))


def _before_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    for reducer in _watched:
        if reducer.holds_unsent(_parameters(optimizer)):
            raise Refused(f"rank {reducer.group.rank}: this step would use gradients that were never averaged, and "
                          "the models would part: the last microbatch must run outside of no_sync() (is it still "
                          "open?). To train apart on purpose, call model.module")  # fmt: skip


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]
