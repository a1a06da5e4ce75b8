"""Bruck's algorithms: log2 N rounds for gathering and for exchanging, by letting others carry your data.

All-gather: what a rank holds doubles in every round, because it receives all its partner has collected so
far. The bytes are those of the ring, (N - 1) blocks, in log2 N messages instead of N - 1.

All-to-all: a block that must travel j ranks to the right goes by the binary digits of j: in round k all
blocks with bit k set move 2^k ranks on, packed into one message. Each block is sent once per set bit, so the
bytes are about log2 N / 2 times those of the direct exchange. Worth it only while latency dominates.

Both work for any N. Source: Bruck, Ho, Kipnis, Upfal & Weathersby 1997, "Efficient algorithms for all-to-all
communications in multiport message-passing systems".
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from labkit.collectives.chunks import even_sizes, room_for, split_rows
from labkit.collectives.registry import algorithm
from labkit.wire.group import Group


@algorithm("all_gather", "bruck")
def bruck_all_gather(x: Tensor, group: Group, sizes: Sequence[int] | None = None) -> Tensor:
    """Return every rank's `x`, joined along the first dimension: log2 N messages of 1, 2, 4, ... blocks.

    x: this rank's block, any dtype, sent as it is; a 0-d tensor counts as one row. `sizes`: rows of each
    rank's block, if they differ. Returns a new tensor of sum(sizes) rows; a second one of that size is alive
    while it is put in order.
    Bytes sent: `cost.collectives.bruck_all_gather_bytes`. Source: Bruck et al. 1997.
    """
    n, me = group.size, group.rank
    sizes = sizes or [len(x)] * n
    blocks = room_for(x, [*sizes[me:], *sizes[:me]])  # block j is that of rank me + j
    group.work_on(blocks.whole, first_row=sum(sizes[:me]))  # for the replay: rows are counted from mine
    blocks[0].copy_(x)

    held = 1
    while held < n:
        count = min(held, n - held)
        out, into = blocks[:count], blocks[held : held + count]
        group.exchange(out, to=(me - held) % n, like=into, source=(me + held) % n)
        held += count
    return torch.cat([blocks[n - me :], blocks[: n - me]])


@algorithm("all_to_all", "bruck")
def bruck_all_to_all(x: Tensor, group: Group) -> Tensor:
    """Send part r of `x` to rank r, and return the parts received, joined in rank order: log2 N messages.

    x: at least one dimension, the same shape on every rank, any dtype, sent as it is; part r is
    `torch.tensor_split(x, N)[r]`. Returns a new tensor. (Uneven counts need the pairwise algorithm: here a
    rank forwards blocks of others, so it would have to know everybody's counts.)
    Bytes sent: `cost.collectives.bruck_all_to_all_bytes`. Source: Bruck et al. 1997.
    """
    n, me = group.size, group.rank
    parts = split_rows(x, n)
    rows = even_sizes(len(x), n)
    blocks = [parts[(me + j) % n] for j in range(n)]  # block j still has to travel j ranks, by its binary digits

    digit = 1
    while digit < n:
        moving = [j for j in range(n) if j & digit]
        left_to_go = [j & -(2 * digit) for j in moving]  # ... after this round, of the blocks that arrive
        out = torch.cat([blocks[j] for j in moving])
        into = room_for(x, [rows[(me + far) % n] for far in left_to_go])
        group.exchange(out, to=(me + digit) % n, like=into.whole, source=(me - digit) % n)
        for j, block in zip(moving, into, strict=True):
            blocks[j] = block
        digit *= 2
    return torch.cat([blocks[(me - source) % n] for source in range(n)])  # what came j ranks came from me - j
