"""Pairwise exchange: N - 1 rounds, in round i send to rank + i and receive from rank - i.

Every block goes straight to the rank that wants it, exactly once: the fewest bytes possible, (N - 1) / N * M,
in N - 1 messages, and each round keeps every rank busy with one partner in each direction.

For reduce-scatter it has a second virtue. In a ring a 16-bit partial sum is rounded at every hop; here each
contribution arrives as its rank wrote it, so the owner can add in 32 bits, at the same bytes on the wire.
Source: Thakur, Rabenseifner & Gropp 2005, "Optimization of collective communication operations in MPICH".
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from labkit.collectives.chunks import Chunks, even_sizes, room_for, split_rows, wide
from labkit.collectives.registry import algorithm
from labkit.wire.group import Group
from labkit.wire.ops import SUM, ReduceOp


@algorithm("all_to_all", "pairwise")
def pairwise_all_to_all(
    x: Tensor,
    group: Group,
    send_counts: Sequence[int] | None = None,
    recv_counts: Sequence[int] | None = None,
) -> Tensor:
    """Send part r of `x` to rank r, and return the parts received, joined in rank order: N - 1 messages.

    x: at least one dimension, any dtype, sent as it is. Without counts, `x` has the same shape everywhere and
    part r is `torch.tensor_split(x, N)[r]`. With them, part r is the next `send_counts[r]` rows, and
    `recv_counts[r]` rows come from rank r; both must be given, and agree between ranks. Returns a new tensor
    of sum(recv_counts) rows.
    Bytes sent: `cost.collectives.pairwise_all_to_all_bytes`: all of `x` but the rank's own part.
    """
    n, me = group.size, group.rank
    rows = even_sizes(len(x), n)
    out = Chunks(x, send_counts or rows)
    into = room_for(x, recv_counts or [rows[me]] * n)
    into[me].copy_(out[me])

    for i in range(1, n):
        to, source = (me + i) % n, (me - i) % n
        group.exchange(out[to], to=to, like=into[source], source=source)
    return into.whole


@algorithm("reduce_scatter", "pairwise")
def pairwise_reduce_scatter(x: Tensor, group: Group, op: ReduceOp = SUM) -> Tensor:
    """Return this rank's part of the reduction of `x` over all ranks: N - 1 messages of about M / N bytes.

    x: at least one dimension, the same shape on every rank; left as it was. Returns rows
    `torch.tensor_split(x, N)[rank]`, a new tensor of the dtype of `x`.
    Sent in the dtype of `x`. Added up in float32 for float16 and bfloat16, rounded once at the end (after
    the division, for an average); else the dtype of `x`. Order: on rank r, ((x_r + x_{r-1}) + x_{r-2}) + ...
    Bytes sent: `cost.collectives.pairwise_reduce_scatter_bytes`, the ring's.
    """
    n, me = group.size, group.rank
    parts = split_rows(x, n)
    total = wide(parts[me])
    theirs = torch.empty_like(parts[me])

    for i in range(1, n):
        group.exchange(parts[(me + i) % n], to=(me + i) % n, like=theirs, source=(me - i) % n)
        op.combine_(total, theirs)
    return total
