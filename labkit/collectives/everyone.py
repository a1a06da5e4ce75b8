"""Everyone to everyone: each rank sends all it has to each other rank, and each adds up for itself.

One round of talk and no special rank, at (N - 1) M bytes from every rank: N / 2 times the bytes of a ring,
and N copies of the tensor in memory. It is a fair choice for two ranks and for a few bytes; it shows that "no
bottleneck" and "few bytes" are different things.
"""

from __future__ import annotations

from torch import Tensor

from labkit.collectives.registry import algorithm
from labkit.wire.group import Group
from labkit.wire.ops import SUM, ReduceOp


@algorithm("all_reduce", "everyone")
def everyone_all_reduce(x: Tensor, group: Group, op: ReduceOp = SUM) -> Tensor:
    """Reduce `x` over all ranks, in place, and return it: N - 1 messages of M bytes from every rank.

    x: any shape, the same on every rank. Sent and added up in the dtype of `x`; N copies of `x` in
    memory.
    Order: ((x_0 + x_1) + x_2) + ..., on every rank, so all hold the same bits.
    Bytes sent: `cost.collectives.everyone_all_reduce_bytes`.
    """
    n, me = group.size, group.rank
    vectors = x.new_empty((n, *x.shape))
    vectors[me] = x
    for i in range(1, n):  # a different partner for everyone in every round
        source = (me - i) % n
        group.exchange(x, to=(me + i) % n, like=vectors[source], source=source)

    x.copy_(vectors[0])
    for vector in vectors[1:]:  # in rank order, not in order of arrival: floating-point sums depend on it
        op.combine_(x, vector)
    return x
