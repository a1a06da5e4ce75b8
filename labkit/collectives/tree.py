"""Binomial trees: the number of ranks that have the data doubles in every round.

Number the ranks from the root: v = (rank - root) mod N. The parent of v is v with its lowest set bit cleared:
6 is 110 in binary, its parent 100 is 4. For 8 ranks:

    0 -> 4, 2, 1     4 -> 6, 5     6 -> 7     2 -> 3

Broadcast walks down the tree, reduce walks up the same tree, and all-reduce does one after the other.

log2 N rounds of M bytes for each walk: good for small tensors. For large ones the root sends its M bytes log2 N
times, and most ranks wait while few links work; use a ring or a chain.
Source: Thakur, Rabenseifner & Gropp 2005, "Optimization of collective communication operations in MPICH".
"""

from __future__ import annotations

from torch import Tensor

from labkit.collectives.registry import algorithm
from labkit.wire.group import Group
from labkit.wire.ops import SUM, ReduceOp


def parent(v: int) -> int:
    """The parent of `v` in the binomial tree rooted at 0: `v` without its lowest set bit."""
    return v & (v - 1)


def children(v: int, size: int) -> list[int]:
    """The children of `v` among `size` ranks, nearest first, which is also smallest subtree first."""
    reach = v & -v if v else size  # a child differs in a bit below the lowest set bit of v
    distances = (1 << k for k in range(size.bit_length()))
    return [v + d for d in distances if d < reach and v + d < size]


@algorithm("broadcast", "tree")
def tree_broadcast(x: Tensor, group: Group, root: int = 0) -> Tensor:
    """Copy `x` of `root` to all ranks, in place, and return it: log2 N rounds of M bytes.

    x: same shape and dtype on every rank, any dtype, sent as it is.
    Bytes sent: M for each child; `cost.collectives.tree_broadcast_bytes`.
    """
    n, v = group.size, (group.rank - root) % group.size
    if v != 0:
        group.recv(x, source=(parent(v) + root) % n)
    for child in reversed(children(v, n)):  # the largest subtree has the longest way to go
        group.send(x, to=(child + root) % n)
    return x


@algorithm("reduce", "tree")
def tree_reduce(x: Tensor, group: Group, op: ReduceOp = SUM, root: int = 0) -> Tensor:
    """Reduce `x` over all ranks into `x` of `root`, and return `x`: log2 N rounds of M bytes.

    x: same shape on every rank. On ranks other than `root`, `x` is left holding partial sums.
    Sent and added up in the dtype of `x`. Order: counted from the root, a rank adds its children's sums
    to its own, nearest child first: for 4 ranks (x_0 + x_1) + (x_2 + x_3).
    Bytes sent: M, and none by the root; `cost.collectives.tree_reduce_bytes`.
    """
    n, v = group.size, (group.rank - root) % group.size
    for child in children(v, n):
        group.recv(x, source=(child + root) % n, op=op)
    if v != 0:
        group.send(x, to=(parent(v) + root) % n)
    return x


@algorithm("all_reduce", "tree")
def tree_all_reduce(x: Tensor, group: Group, op: ReduceOp = SUM) -> Tensor:
    """Reduce `x` over all ranks, in place, and return it: up the tree to rank 0, and down again.

    x: any shape, the same on every rank. Sent and added up in the dtype of `x`. Order: that of
    `tree_reduce`; rank 0 alone finishes it, so all ranks hold the same bits.
    Bytes sent: `cost.collectives.tree_all_reduce_bytes`.
    """
    tree_reduce(x, group, op, root=0)
    return tree_broadcast(x, group, root=0)
