"""Rings: every rank talks to its right and left neighbour only, and all links carry data all the time.

Reduce-scatter sends partial sums around the ring until each rank holds one finished chunk. All-gather sends
finished chunks around it until each rank holds all. All-reduce is the one, then the other.

With M bytes on N ranks, every rank sends (N - 1) / N * M bytes for each half. In no algorithm does the busiest
rank send less (Patarasuk & Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations").
The price is N - 1 messages, one after the other, for each half. So: large tensors, few ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from labkit.collectives.chunks import room_for, split_evenly, split_rows
from labkit.collectives.registry import algorithm
from labkit.wire.group import Group
from labkit.wire.ops import SUM, ReduceOp


@algorithm("all_reduce", "ring")
def ring_all_reduce(x: Tensor, group: Group, op: ReduceOp = SUM) -> Tensor:
    """Reduce `x` over all ranks, in place, and return it: 2 (N - 1) messages of about M / N bytes.

    x: any shape, the same on every rank. Sent and added up in the dtype of `x`.
    Order: chunk c is ((x_c + x_{c+1}) + x_{c+2}) + ..., around the ring from rank c, on one rank at a time;
    the other ranks receive the finished chunk, so all hold the same bits.
    Bytes sent: `cost.collectives.ring_all_reduce_bytes`. Source: Patarasuk & Yuan 2009.
    """
    n, me = group.size, group.rank
    right, left = (me + 1) % n, (me - 1) % n
    chunks = split_evenly(x, n)

    for step in range(n - 1):  # reduce-scatter: partial sums travel right
        out, into = chunks[(me - step) % n], chunks[(me - step - 1) % n]
        group.exchange(out, to=right, like=into, source=left, op=op)
    for step in range(n - 1):  # all-gather: finished chunks travel right, I begin with chunk me + 1
        out, into = chunks[(me - step + 1) % n], chunks[(me - step) % n]
        group.exchange(out, to=right, like=into, source=left)
    return x


@algorithm("reduce_scatter", "ring")
def ring_reduce_scatter(x: Tensor, group: Group, op: ReduceOp = SUM) -> Tensor:
    """Return this rank's part of the reduction of `x` over all ranks: N - 1 messages of about M / N bytes.

    x: at least one dimension, the same shape on every rank; left as it was. Returns rows
    `torch.tensor_split(x, N)[rank]`, a new tensor. Beside `x` there are never more than two parts in memory.
    Sent and added up in the dtype of `x`. Order: part r is ((x_{r+1} + x_{r+2}) + ...) + x_r: it sets out
    on the right of its owner and comes home last.
    Bytes sent: `cost.collectives.ring_reduce_scatter_bytes`. Source: Patarasuk & Yuan 2009.
    """
    n, me = group.size, group.rank
    right, left = (me + 1) % n, (me - 1) % n
    parts = split_rows(x, n)
    partial = group.copy_of(parts[(me - 1) % n])  # a clone, and the replay knows which part it is

    for step in range(n - 1):  # pass my partial sum on, and add the one that arrives to my own part
        into = group.copy_of(parts[(me - step - 2) % n])
        group.exchange(partial, to=right, like=into, source=left, op=op)
        partial = into
    return partial


@algorithm("all_gather", "ring")
def ring_all_gather(x: Tensor, group: Group, sizes: Sequence[int] | None = None) -> Tensor:
    """Return every rank's `x`, joined along the first dimension in rank order: N - 1 messages of one block.

    x: this rank's block, any dtype; a 0-d tensor counts as one row. `sizes`: rows of each rank's block, if
    they differ. Returns a new tensor of sum(sizes) rows. Sent in the dtype of `x`; nothing is added.
    Bytes sent: `cost.collectives.ring_all_gather_bytes`: all blocks but that of the right neighbour.
    """
    n, me = group.size, group.rank
    right, left = (me + 1) % n, (me - 1) % n
    blocks = room_for(x, sizes or [len(x)] * n)
    group.work_on(blocks.whole)  # for the replay: this is the joined tensor
    blocks[me].copy_(x)

    for step in range(n - 1):  # my own block goes first, then whatever came last
        out, into = blocks[(me - step) % n], blocks[(me - step - 1) % n]
        group.exchange(out, to=right, like=into, source=left)
    return blocks.whole
