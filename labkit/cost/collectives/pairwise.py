"""Pairwise exchange: in round i rank r sends to r + i what is meant for it, and receives from r - i.

Every byte travels once, straight to where it is wanted: p - 1 messages, no byte to spare. For
reduce-scatter a 16-bit tensor can be summed in 32 bits at its destination, with 16-bit bytes on the wire
(Thakur, Rabenseifner & Gropp 2005). Time is alpha-beta time (Hockney 1994).
"""

from __future__ import annotations

from collections.abc import Sequence

from labkit.cost.collectives.checks import check, check_matrix
from labkit.cost.collectives.forms import Form
from labkit.cost.collectives.parts import split_sizes
from labkit.cost.collectives.ring import RingReduceScatter


class PairwiseReduceScatter(RingReduceScatter):
    """Reduce-scatter: rounds, bytes and time of the ring's; each part goes straight to its owner."""


pairwise_reduce_scatter = PairwiseReduceScatter("reduce_scatter", "pairwise")


class PairwiseAllToAll(Form):
    """All-to-all: `nbytes` and `numel` are those of the tensor that each rank brings, its own part included.

    Time: (p - 1) alpha + (p - 1) / p * nbytes * beta seconds.
    """

    def rounds(self, size: int) -> int:
        """p - 1."""
        check(size=size)
        return size - 1

    def bytes(self, nbytes: float, size: int) -> float:
        """Bytes that each rank sends, when parts are equal: (p - 1) / p * nbytes."""
        check(nbytes=nbytes, size=size)
        return (size - 1) / size * nbytes

    def bytes_by_rank(
        self, numel: int, itemsize: int, size: int, counts: Sequence[Sequence[int]] | None = None
    ) -> list[int]:
        """Bytes sent by each rank: all it has for others.

        numel: elements that each rank brings, in parts as `torch.tensor_split` makes them; `counts[r][q]` gives
        the elements that rank r has for rank q instead (`numel` is then not used).
        """
        check(numel=numel, itemsize=itemsize, size=size)
        rows = [split_sizes(numel, size)] * size if counts is None else check_matrix(counts, size)
        return [(sum(row) - row[r]) * itemsize for r, row in enumerate(rows)]

    def time_of_counts(self, counts: Sequence[Sequence[int]], itemsize: int, alpha: float, beta: float) -> float:
        """Seconds for uneven `counts[r][q]` if every round waits for its largest message: an upper bound.

        One crowded rank (a popular expert) is in every round, so the bound is near the truth where it matters.
        """
        size = len(counts)
        check(size=size, itemsize=itemsize, alpha=alpha, beta=beta)
        rows = check_matrix(counts, size)
        largest = [max(rows[r][(r + i) % size] for r in range(size)) for i in range(1, size)]
        return sum(alpha + elements * itemsize * beta for elements in largest)


pairwise_all_to_all = PairwiseAllToAll("all_to_all", "pairwise")
