"""Scatter and gather: one rank deals out a tensor, or collects one.

The root sends or receives every byte itself: (N - 1) / N * M over one link. No algorithm can do with fewer,
since all of it starts or ends there; trees save messages and pay for it by forwarding.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from labkit.collectives.chunks import room_for, split_rows
from labkit.collectives.registry import algorithm
from labkit.wire.group import Group


@algorithm("scatter", "naive")
def naive_scatter(x: Tensor | None, group: Group, root: int = 0, like: Tensor | None = None) -> Tensor:
    """Give each rank its part of the `x` of `root`: the root sends N - 1 messages, in rank order.

    x: on the root, at least one dimension, any dtype, sent as it is; rank r gets the rows
    `torch.tensor_split(x, N)[r]`. Elsewhere None; it is not looked at.
    like: a tensor of the shape and dtype of this rank's part. The part is written into it, and it is
    returned. It is needed on every rank but the root, which without it returns a new tensor.
    Bytes sent: `cost.collectives.naive_scatter_bytes`.
    """
    if group.rank != root:
        return group.recv(like, source=root)  # type: ignore[arg-type]
    parts = split_rows(x, group.size)  # type: ignore[arg-type]
    for rank in range(group.size):
        if rank != root:
            group.send(parts[rank], to=rank)
    return parts[root].clone()


@algorithm("gather", "naive")
def naive_gather(x: Tensor, group: Group, root: int = 0, sizes: Sequence[int] | None = None) -> Tensor | None:
    """Return, on `root`, every rank's `x` joined along the first dimension in rank order; on the others None.

    x: this rank's block, any dtype, sent as it is; a 0-d tensor counts as one row. `sizes`: rows of each
    rank's block, if they differ. Every rank but the root sends one message, and the root takes them in rank
    order.
    Bytes sent: `cost.collectives.naive_gather_bytes`.
    """
    if group.rank != root:
        group.send(x, to=root)
        return None
    blocks = room_for(x, sizes or [len(x)] * group.size)
    group.work_on(blocks.whole)
    blocks[root].copy_(x)
    for rank in range(group.size):
        if rank != root:
            group.recv(blocks[rank], source=rank)
    return blocks.whole
