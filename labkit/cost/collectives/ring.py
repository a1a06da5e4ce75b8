"""Ring algorithms: every rank sends to its right neighbour only.

All-reduce is a reduce-scatter around the ring followed by an all-gather around it. Bytes per rank do not
grow with the number of ranks, and no algorithm sends fewer (Patarasuk & Yuan 2009); latencies do grow.

Time is that of the alpha-beta model (Hockney 1994): a message of n bytes takes alpha + n beta seconds, and
a rank can send one message while it receives another. `nbytes` is taken to divide evenly.
"""

from __future__ import annotations

from collections.abc import Sequence

from labkit.cost.collectives.checks import check, check_counts
from labkit.cost.collectives.forms import Form
from labkit.cost.collectives.parts import split_sizes


class RingAllReduce(Form):
    """All-reduce.

    Time: 2 (p - 1) alpha + 2 (p - 1) / p * nbytes * beta seconds.
    """

    def rounds(self, size: int) -> int:
        """2 (p - 1) steps, in each of which every rank sends one chunk."""
        check(size=size)
        return 2 * (size - 1)

    def bytes(self, nbytes: float, size: int) -> float:
        """Bytes that each rank sends, when `nbytes` divides into p equal chunks: 2 (p - 1) / p * nbytes."""
        check(nbytes=nbytes, size=size)
        return 2 * (size - 1) / size * nbytes

    def bytes_by_rank(self, numel: int, itemsize: int, size: int) -> list[int]:
        """Bytes sent by each rank, exact for any element count.

        Rank r sends every chunk in each phase but one: chunk r + 1 in the reduce-scatter, which it ends up
        owning, and chunk r + 2 in the all-gather, which its right neighbour owns.
        """
        check(numel=numel, itemsize=itemsize, size=size)
        chunk = split_sizes(numel, size)
        if size == 1:
            return [0]
        return [(2 * numel - chunk[(r + 1) % size] - chunk[(r + 2) % size]) * itemsize for r in range(size)]


ring_all_reduce = RingAllReduce("all_reduce", "ring")


class RingReduceScatter(Form):
    """Reduce-scatter: `nbytes` and `numel` are those of the whole tensor that each rank brings.

    Time: (p - 1) alpha + (p - 1) / p * nbytes * beta seconds.
    """

    def rounds(self, size: int) -> int:
        """p - 1 steps."""
        check(size=size)
        return size - 1

    def bytes(self, nbytes: float, size: int) -> float:
        """Bytes that each rank sends, when `nbytes` divides evenly: (p - 1) / p * nbytes."""
        check(nbytes=nbytes, size=size)
        return (size - 1) / size * nbytes

    def bytes_by_rank(self, numel: int, itemsize: int, size: int) -> list[int]:
        """Bytes sent by each rank: every part but its own, exact for any element count."""
        check(numel=numel, itemsize=itemsize, size=size)
        return [(numel - part) * itemsize for part in split_sizes(numel, size)]


ring_reduce_scatter = RingReduceScatter("reduce_scatter", "ring")


class RingAllGather(Form):
    """All-gather: `nbytes` and `numel` are those of the whole result, p blocks long.

    Time: (p - 1) alpha + (p - 1) / p * nbytes * beta seconds; `nbytes` is the gathered result.
    """

    def rounds(self, size: int) -> int:
        """p - 1 steps."""
        check(size=size)
        return size - 1

    def bytes(self, nbytes: float, size: int) -> float:
        """Bytes that each rank sends, when blocks are equal: (p - 1) / p * nbytes of the gathered result."""
        check(nbytes=nbytes, size=size)
        return (size - 1) / size * nbytes

    def bytes_by_rank(self, numel: int, itemsize: int, size: int, counts: Sequence[int] | None = None) -> list[int]:
        """Bytes sent by each rank: rank r passes on every block but that of its right neighbour.

        numel: elements of the gathered result, in blocks as `torch.tensor_split` makes them; `counts` gives
        the elements of each rank's block instead (`numel` is then not used).
        """
        check(numel=numel, itemsize=itemsize, size=size)
        block = split_sizes(numel, size) if counts is None else check_counts(counts, size)
        return [(sum(block) - block[(r + 1) % size]) * itemsize for r in range(size)]


ring_all_gather = RingAllGather("all_gather", "ring")
