"""Recursive halving and doubling: the bytes of the ring in log2 N rounds (Rabenseifner 2004).

Halving is a reduce-scatter. Split the vector in two with a partner half the world away: each keeps one half
and adds the other's version of it. Repeat inside the half, with a partner at half the distance, until one
chunk is left. Doubling runs the film backwards and is an all-gather.

On N = 2^k ranks each half of the work sends M/2 + M/4 + ... = (N - 1) / N * M bytes, as the ring does, in log2 N
messages instead of N - 1. What it costs: partners are far apart, so on a real network they share links; and
a world that is not a power of two needs two more rounds, of M bytes each for an all-reduce (folding.py).
Sources: Rabenseifner 2004, "Optimization of collective reduction operations"; Thakur, Rabenseifner & Gropp
2005.
"""

from __future__ import annotations

from torch import Tensor

from labkit.collectives.chunks import split_evenly, split_rows
from labkit.collectives.folding import PowerOfTwo, fold_in, fold_out
from labkit.collectives.registry import algorithm
from labkit.wire.group import Group
from labkit.wire.ops import SUM, ReduceOp


@algorithm("all_reduce", "halving_doubling")
def halving_doubling_all_reduce(x: Tensor, group: Group, op: ReduceOp = SUM) -> Tensor:
    """Reduce `x` over all ranks, in place, and return it: 2 log2 N messages of M/2, M/4, ... and back.

    x: any shape, the same on every rank. Sent and added up in the dtype of `x`.
    Order: within a chunk a balanced tree of rank pairs, partners half the world apart first: for 4 ranks
    (x_0 + x_2) + (x_1 + x_3). Each chunk is finished on one rank and copied, so all hold the same bits.
    Bytes sent: `cost.collectives.halving_doubling_all_reduce_bytes`. Source: Rabenseifner 2004.
    """
    team = PowerOfTwo(group)
    chunks = split_evenly(x, team.size)

    fold_in(x, group, team, op)
    if not team.sits_out:
        low = 0  # my window: chunks low to low + 2 d - 1
        for d in reversed(team.distances()):  # halve it: keep one half, give the other
            partner = team.rank_of(team.index ^ d)
            keep = low + (team.index & d)  # the upper half if my bit d is set, else the lower
            give = keep ^ d
            out, into = chunks[give : give + d], chunks[keep : keep + d]
            group.exchange(out, to=partner, like=into, source=partner, op=op)
            low = keep
        for d in team.distances():  # double it: swap my window for my partner's
            partner = team.rank_of(team.index ^ d)
            other = low ^ d
            out, into = chunks[low : low + d], chunks[other : other + d]
            group.exchange(out, to=partner, like=into, source=partner)
            low = min(low, other)
    fold_out(x, group, team)
    return x


@algorithm("reduce_scatter", "halving")
def halving_reduce_scatter(x: Tensor, group: Group, op: ReduceOp = SUM) -> Tensor:
    """Return this rank's part of the reduction of `x` over all ranks: log2 N messages of M/2, M/4, ...

    x: at least one dimension, the same shape on every rank; left as it was (one working copy of `x` is made).
    Returns rows `torch.tensor_split(x, N)[rank]`, a new tensor. Sent and added up in the dtype of `x`.
    Order: the balanced tree of `halving_doubling_all_reduce`. Beyond a power of two, an active rank looks
    after its own part and that of the rank that sits out behind it.
    Bytes sent: `cost.collectives.halving_reduce_scatter_bytes`. Source: Thakur, Rabenseifner & Gropp 2005.
    """
    team = PowerOfTwo(group)
    sums = group.copy_of(x)
    parts = split_rows(sums, group.size)

    def window(low: int, d: int) -> Tensor:
        """The parts of active ranks low to low + d - 1, and of those behind them."""
        return parts[team.rank_of(low) : team.rank_of(low + d)]

    fold_in(sums, group, team, op)
    if not team.sits_out:
        low = 0
        for d in reversed(team.distances()):
            partner = team.rank_of(team.index ^ d)
            keep = low + (team.index & d)  # the upper half if my bit d is set, else the lower
            give = keep ^ d
            group.exchange(window(give, d), to=partner, like=window(keep, d), source=partner, op=op)
            low = keep
    fold_out(parts[team.folded], group, team)
    return parts[group.rank].clone()
