"""What `FullyShard` refuses, because it would be wrong without anybody noticing."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from labkit.wire.errors import Refused

if TYPE_CHECKING:
    from labkit.parallel.fsdp.shard import Shard


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


def refuse_unreduced(shards: Iterable[Shard], parameters: set[int]) -> None:
    """An optimizer is about to train `parameters` (by `id`) without gradients that were only summed up on this rank."""
    for shard in unreduced(shards):
        if id(shard.stretch) in parameters:
            raise Refused(f"rank {_rank(shard)}: this step would leave out gradients that were only summed up on this "
                          "rank, never reduced: the last microbatch must run outside of no_sync() (is it still "
                          "open?). To drop them, call model.zero_grad()")  # fmt: skip


def unreduced(shards: Iterable[Shard]) -> Iterator[Shard]:
    """The shards that hold gradients of microbatches that were not reduced."""
    return (s for s in shards if s.unreduced is not None)


def _rank(shard: Shard) -> int:
    return shard.sharding.shard.context.rank
