"""What `FullyShard` refuses, because it would be wrong without anybody noticing."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from labkit.wire.errors import Refused

if TYPE_CHECKING:
    from labkit.parallel.fsdp.flat_parameter import FlatParameter


def refuse_replaced(flat_param: FlatParameter, module: nn.Module, attribute: str, name: str) -> None:
    """A module may not hold a parameter of its own where a gathered one goes."""
    if attribute in module._parameters:
        raise Refused(f"rank {_rank(flat_param)}: parameter {name!r} was replaced or resized after wrapping (now "
                      f"{list(module._parameters[attribute].shape)}): the optimizer and the other ranks know nothing "  # type: ignore[union-attr]
                      "of it. Change the model first, then wrap it")  # fmt: skip


def checksum(x: Tensor) -> str:
    """Eight digits that differ if the values do."""
    data = x.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
    return f"{zlib.crc32(data.tobytes() if not data.size else data.data):08x}"


def refuse_unreduced(flat_params: Iterable[FlatParameter], parameters: set[int]) -> None:
    """An optimizer is about to train `parameters` (by `id`) without gradients that were only summed up on this rank."""
    for flat_param in unreduced(flat_params):
        if id(flat_param.shard) in parameters:
            raise Refused(
                f"rank {_rank(flat_param)}: this step would leave out gradients that were only summed up on this rank, "
                "never reduced: the last microbatch must run outside of no_sync() (is it still open?). To drop them, "
                "call model.zero_grad()"
            )


def unreduced(flat_params: Iterable[FlatParameter]) -> Iterator[FlatParameter]:
    """The flat parameters that hold gradients of microbatches that were not reduced."""
    return (s for s in flat_params if s.unreduced is not None)


def _rank(flat_param: FlatParameter) -> int:
    return flat_param.sharding.shard_group.context.rank
