"""Recursive doubling: swap the whole vector with a partner 1, 2, 4, ... ranks away, and add.

After k rounds a rank holds the sum over the 2^k ranks around it; after log2 N rounds, of all. Nothing can
finish in fewer rounds, so this is the algorithm for small tensors, where latency is everything. Each round
sends all M bytes: log2 N * M on every rank, so it is a poor one for large tensors. (Thakur, Rabenseifner &
Gropp 2005.)
"""

from __future__ import annotations

import torch
from torch import Tensor

from labkit.collectives.folding import PowerOfTwo, fold_in, fold_out
from labkit.collectives.registry import algorithm
from labkit.wire.group import Group
from labkit.wire.ops import SUM, ReduceOp


@algorithm("all_reduce", "recursive_doubling")
def recursive_doubling_all_reduce(x: Tensor, group: Group, op: ReduceOp = SUM) -> Tensor:
    """Reduce `x` over all ranks, in place, and return it: log2 N messages of M bytes.

    x: any shape, the same on every rank. Sent and added up in the dtype of `x`; one copy of `x` beside
    it.
    Order: a balanced tree, ((x_0 + x_1) + (x_2 + x_3)) + ... Both partners add the same two numbers, one as a
    + b and the other as b + a. IEEE addition and multiplication commute, so all ranks hold the same bits.
    (Not promised for the product of complex numbers, and min and max may disagree on the sign of a zero.)
    Ranks beyond a power of two: see folding.py. Bytes sent:
    `cost.collectives.recursive_doubling_all_reduce_bytes`.
    """
    team = PowerOfTwo(group)
    fold_in(x, group, team, op)
    if not team.sits_out:
        theirs = torch.empty_like(x)
        for d in team.distances():  # 1, 2, 4, ...
            partner = team.rank_of(team.index ^ d)  # my number with one bit flipped
            group.exchange(x, to=partner, like=theirs, source=partner)
            op.combine_(x, theirs)
    fold_out(x, group, team)
    return x
