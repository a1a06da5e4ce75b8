"""What `FullyShard` refuses, because it would be wrong without anybody noticing."""

from __future__ import annotations

import weakref
import zlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from labkit.wire.errors import Refused

if TYPE_CHECKING:
    from labkit.parallel.fsdp.shard import Shard


def refuse_nan(shard: Shard, flat: Tensor) -> None:
    """Name the parameter whose gradient is not finite, before the sum carries it to every rank. One pass over it."""
    if torch.isfinite(flat.sum()):  # one NaN or infinity makes the sum one
        return
    for name, view in zip(shard.flat.names, shard.flat.views(flat), strict=True):
        bad = view.numel() - int(torch.isfinite(view).sum())
        if bad:
            raise Refused(f"rank {_rank(shard)}: {bad} of the {view.numel()} numbers in the gradient of {name!r} are "
                          "NaN or infinite. Nothing of this unit was sent: look at the batch of this rank")  # fmt: skip


def refuse_empty_batch(rank: int, tensors: Iterable[Tensor]) -> None:
    """A mean over no examples is NaN, which the average would carry to every rank."""
    for x in tensors:
        if x.dim() and not len(x):
            raise Refused(f"rank {rank}: this batch is empty (shape {tuple(x.shape)}), and it would count as much "
                          "as the others: build the model with average='weights', and run this step in "
                          "`with model.weighted(0):` here and model.weighted(n) elsewhere")  # fmt: skip


def refuse_replaced(shard: Shard, module: nn.Module, attribute: str, name: str) -> None:
    """A module may not hold a parameter of its own where a gathered one goes."""
    if attribute in module._parameters:
        raise Refused(f"rank {_rank(shard)}: parameter {name!r} was replaced or resized after wrapping (now "
                      f"{list(module._parameters[attribute].shape)}): the optimizer and the other ranks know nothing "  # type: ignore[union-attr]
                      "of it. Change the model first, then wrap it")  # fmt: skip


def checksum(x: Tensor) -> str:
    """Eight digits that differ if the values do."""
    data = x.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
    return f"{zlib.crc32(data.tobytes() if not data.size else data.data):08x}"


# A step with gradients that were never reduced: no_sync was left open, or held the last microbatch, too.

_watched: weakref.WeakSet[Any] = weakref.WeakSet()
_listening: list[Any] = []


def watch_steps(model: nn.Module) -> None:
    """From now on `optimizer.step()`, of any optimizer, refuses to train `model` while it has unreduced gradients."""
    _watched.add(model)
    if not _listening:
        _listening.append(register_optimizer_step_pre_hook(_before_step))


def _before_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
    for model in _watched:
        waiting = [s for s in unreduced(model.shards) if id(s.stretch) in trained]
        if waiting:
            raise Refused(f"rank {_rank(waiting[0])}: this step would leave out gradients that were only summed up on "
                          "this rank, never reduced: the last microbatch must run outside of no_sync() (is it still "
                          "open?). To drop them, call model.zero_grad()")  # fmt: skip


def unreduced(shards: Iterable[Shard]) -> Iterator[Shard]:
    """The shards that hold gradients of microbatches that were not reduced."""
    return (s for s in shards if s.unreduced is not None)


def _rank(shard: Shard) -> int:
    return shard.sharding.shard.context.rank
