"""The transport's own collectives, as one more algorithm: what gloo or NCCL do when torch.distributed asks.

What happens inside is not ours to see: the order of addition is the library's, and its bytes are not computed
but measured (the trace reads the kernel's counters of the sockets). They need equal parts, so where ours are
not equal the parts are padded to the longest. What is only moved travels as plain bytes, because the
libraries do not know every dtype (gloo has neither int16 nor 8-bit floats).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from labkit.collectives.checks import native_library
from labkit.collectives.chunks import Chunks, even_sizes, room_for
from labkit.collectives.registry import algorithm
from labkit.wire.dtypes import as_bytes
from labkit.wire.group import Group
from labkit.wire.ops import SUM, ReduceOp


@algorithm("broadcast", "native", requires=native_library)
def native_broadcast(x: Tensor, group: Group, root: int = 0) -> Tensor:
    """Copy `x` of `root` to all ranks, in place, and return it. x: same shape and dtype on every rank."""
    group.native.broadcast(as_bytes(x), root)
    return x


@algorithm("reduce", "native", requires=native_library)
def native_reduce(x: Tensor, group: Group, op: ReduceOp = SUM, root: int = 0) -> Tensor:
    """Reduce `x` over all ranks into `x` of `root`, and return `x`; elsewhere `x` may hold partial sums."""
    group.native.reduce(x, root, op)
    return x


@algorithm("all_reduce", "native", requires=native_library)
def native_all_reduce(x: Tensor, group: Group, op: ReduceOp = SUM) -> Tensor:
    """Reduce `x` over all ranks, in place, and return it. Accumulation and order: the library's choice."""
    group.native.all_reduce(x, op)
    return x


@algorithm("reduce_scatter", "native", requires=native_library)
def native_reduce_scatter(x: Tensor, group: Group, op: ReduceOp = SUM) -> Tensor:
    """Return rows `torch.tensor_split(x, N)[rank]` of the reduction of `x`, which stays as it was.

    gloo's is an all_reduce of which each rank keeps its part: twice the bytes of `ring_reduce_scatter`.
    """
    rows = even_sizes(len(x), group.size)
    out = room_for(x, rows[:1]).whole
    group.native.reduce_scatter(out, _padded(Chunks(x, rows)), op)
    return out[: rows[group.rank]]


@algorithm("all_gather", "native", requires=native_library)
def native_all_gather(x: Tensor, group: Group, sizes: Sequence[int] | None = None) -> Tensor:
    """Return every rank's `x`, joined along the first dimension. `sizes`: rows of each, if they differ."""
    sizes = sizes or [len(x)] * group.size
    longest = max(sizes)
    mine = _padded(Chunks(x, [len(x)]), longest)
    blocks = room_for(x, [longest] * group.size)
    group.native.all_gather(as_bytes(blocks.whole), as_bytes(mine))
    return _trimmed(blocks, sizes)


@algorithm("all_to_all", "native", requires=native_library)
def native_all_to_all(x: Tensor, group: Group) -> Tensor:
    """Send part r of `x` (`torch.tensor_split(x, N)[r]`) to rank r; return the parts received, joined."""
    rows = even_sizes(len(x), group.size)
    blocks = room_for(x, rows[:1] * group.size)
    group.native.all_to_all(as_bytes(blocks.whole), as_bytes(_padded(Chunks(x, rows))))
    return _trimmed(blocks, [rows[group.rank]] * group.size)


@algorithm("barrier", "native", requires=native_library)
def native_barrier(group: Group) -> None:
    """Return when all ranks of the group have called it."""
    group.native.barrier()


def _padded(parts: Chunks, length: int | None = None) -> Tensor:
    """The parts one after the other, each with rows of zeros up to `length` (or to the longest)."""
    length = len(parts[0]) if length is None else length
    if all(len(part) == length for part in parts):
        return parts.whole
    slots = room_for(parts.whole, [length] * len(parts))
    slots.whole.zero_()
    for slot, part in zip(slots, parts, strict=True):
        slot[: len(part)] = part
    return slots.whole


def _trimmed(blocks: Chunks, rows: Sequence[int]) -> Tensor:
    """The first rows[i] rows of each block i, joined."""
    if all(len(block) == kept for block, kept in zip(blocks, rows, strict=True)):
        return blocks.whole
    return torch.cat([block[:kept] for block, kept in zip(blocks, rows, strict=True)])
