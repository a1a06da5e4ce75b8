"""Root loops: what one writes first. One rank talks to all the others, one after the other.

They are the fewest lines and the yardstick for everything else: the root moves (N - 1) M bytes over its own
link while the others wait, so the time grows with the number of ranks, whatever the network.
"""

from __future__ import annotations

from torch import Tensor

from labkit.collectives.registry import algorithm
from labkit.wire.group import Group
from labkit.wire.ops import SUM, ReduceOp


@algorithm("broadcast", "naive")
def naive_broadcast(x: Tensor, group: Group, root: int = 0) -> Tensor:
    """Copy `x` of `root` to all ranks, in place, and return it: the root sends N - 1 times M bytes.

    x: same shape and dtype on every rank, any dtype, sent as it is.
    Bytes sent: `cost.collectives.naive_broadcast_bytes`.
    """
    if group.rank != root:
        return group.recv(x, source=root)
    for rank in range(group.size):
        if rank != root:
            group.send(x, to=rank)
    return x


@algorithm("reduce", "naive")
def naive_reduce(x: Tensor, group: Group, op: ReduceOp = SUM, root: int = 0) -> Tensor:
    """Reduce `x` over all ranks into `x` of `root`, and return `x`: each other rank sends M bytes to it.

    x: same shape on every rank; unchanged on ranks other than `root`. Sent and added up in the dtype of
    `x`.
    Order: the root's own first, then rank 0, 1, 2, ... Bytes sent: `cost.collectives.naive_reduce_bytes`.
    """
    if group.rank != root:
        group.send(x, to=root)
        return x
    for rank in range(group.size):
        if rank != root:
            group.recv(x, source=rank, op=op)
    return x


@algorithm("all_reduce", "naive")
def naive_all_reduce(x: Tensor, group: Group, op: ReduceOp = SUM) -> Tensor:
    """Reduce `x` over all ranks, in place, and return it: everyone sends to rank 0, rank 0 sends to everyone.

    x: any shape, the same on every rank. Sent and added up in the dtype of `x`. Order: ((x_0 + x_1) +
    x_2) + ... on rank 0 alone, so all ranks hold the same bits.
    Bytes sent: (N - 1) M by rank 0, M by the others; `cost.collectives.naive_all_reduce_bytes`.
    """
    naive_reduce(x, group, op, root=0)
    return naive_broadcast(x, group, root=0)
