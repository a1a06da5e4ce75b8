"""How FTAR cuts a tensor, and in which order its chunks travel.

The tensor has N parts, as for the ring all-reduce, and part p sets out from rank p. Each part is cut into chunks of at
most S bytes. C chunks of every part make one partition of at most S x C x N bytes: one round of the ring, 2 N - 2
steps. So every element is added up in the order in which the ring adds it, and the results are the same bits.

In step t of a partition rank r sends part r - t and receives part r - t - 1 (modulo N), chunk by chunk. What it sends
in step t > 0 is what it received in step t - 1: it goes on as soon as that chunk is complete.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from labkit.collectives.chunks import even_sizes
from labkit.wire.ops import SUM
from labkit.wire.relay import Into, Out


@dataclass(frozen=True)
class RingPlan:
    """What one rank sends to the right and receives from the left, in order. Positions are elements of the tensor."""

    outs: list[Out]
    intos: list[Into]
    chunks: int  # of each part
    partitions: int


def make_plan(numel: int, itemsize: int, size: int, rank: int, chunk_bytes: int, chunks: int) -> RingPlan:
    """The plan of `rank` in a ring of `size` for `numel` elements of `itemsize` bytes; the same cuts on all ranks."""
    longest = -(-numel // size)
    count = max(1, -(-longest // max(1, chunk_bytes // itemsize)))
    parts, edge = list[list[int]](), 0  # of each part the edges of its chunks
    for length in even_sizes(numel, size):
        parts.append(list(accumulate(even_sizes(length, count), initial=edge)))
        edge += length
    rounds = even_sizes(count, -(-count // chunks))
    outs: list[Out] = []
    intos: list[Into] = []
    first = 0
    for width in rounds:
        for step in range(2 * size - 2):
            away, here = parts[(rank - step) % size], parts[(rank - step - 1) % size]
            op = SUM if step < size - 1 else None
            for chunk in range(first, first + width):
                # what was received `width` messages ago is this chunk, from the step before
                outs.append((away[chunk], away[chunk + 1], len(intos) - width + 1 if step else 0))
                intos.append((here[chunk], here[chunk + 1], op))
        first += width
    return RingPlan(outs, intos, count, len(rounds))
