"""Bruck's algorithms: ceil(log2 p) rounds for any p, powers of two or not (Bruck et al. 1997).

All-gather: in rounds d = 1, 2, 4, ... rank r sends its first min(d, p - d) blocks to r - d; no byte is sent
twice. All-to-all: in round k, every block whose index has bit k goes 2^k ranks on, so a block makes as many
hops as its distance has ones: fewer latencies than pairwise exchange, more bytes. Time is alpha-beta time
(Hockney 1994).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from labkit.cost.collectives.checks import check, check_counts, check_matrix
from labkit.cost.collectives.forms import Form
from labkit.cost.collectives.parts import ceil_log2, split_sizes


def _distances(size: int) -> Iterator[int]:
    return (1 << k for k in range(ceil_log2(size)))


class BruckAllGather(Form):
    """All-gather: `nbytes` and `numel` are those of the whole result, p blocks long.

    Time: ceil(log2 p) alpha + (p - 1) / p * nbytes * beta seconds.
    """

    def rounds(self, size: int) -> int:
        """ceil(log2 p)."""
        check(size=size)
        return ceil_log2(size)

    def bytes(self, nbytes: float, size: int) -> float:
        """Bytes that each rank sends, when blocks are equal: (p - 1) / p * nbytes of the gathered result."""
        check(nbytes=nbytes, size=size)
        return (size - 1) / size * nbytes

    def bytes_by_rank(self, numel: int, itemsize: int, size: int, counts: Sequence[int] | None = None) -> list[int]:
        """Bytes sent by each rank, exact for any element count.

        Before distance d rank r holds blocks r, r + 1, ... r + d - 1 (mod p), and sends the first min(d, p - d).
        numel: elements of the gathered result, in blocks as `torch.tensor_split` makes them; `counts` gives the
        elements of each rank's block instead (`numel` is then not used).
        """
        check(numel=numel, itemsize=itemsize, size=size)
        block = split_sizes(numel, size) if counts is None else check_counts(counts, size)
        before = [0]  # before[i]: elements in the blocks before block i, twice around the circle
        for elements in block + block:
            before.append(before[-1] + elements)
        return [sum(before[r + min(d, size - d)] - before[r] for d in _distances(size)) * itemsize for r in range(size)]


bruck_all_gather = BruckAllGather("all_gather", "bruck")


class BruckAllToAll(Form):
    """All-to-all: `nbytes` and `numel` are those of the tensor that each rank brings, its own part included.

    Time: ceil(log2 p) alpha + (ones in 0 ... p - 1) / p * nbytes * beta seconds.
    """

    def rounds(self, size: int) -> int:
        """ceil(log2 p)."""
        check(size=size)
        return ceil_log2(size)

    def bytes(self, nbytes: float, size: int) -> float:
        """Bytes that each rank sends, when parts are equal: nbytes / p for each one-bit of 0 ... p - 1.

        For p a power of two that is log2 p / 2 * nbytes.
        """
        check(nbytes=nbytes, size=size)
        return sum(index.bit_count() for index in range(size)) / size * nbytes

    def bytes_by_rank(
        self, numel: int, itemsize: int, size: int, counts: Sequence[Sequence[int]] | None = None
    ) -> list[int]:
        """Bytes sent by each rank, exact for any element count.

        Block j of a rank is the one for the rank j places on. In round k rank r holds the blocks j that set out
        j mod 2^k places behind it, and sends those that have bit k. Time is of order p^2 log p.

        numel: elements that each rank brings, in parts as `torch.tensor_split` makes them; `counts[r][q]` gives
        the elements that rank r has for rank q instead (`numel` is then not used).
        """
        check(numel=numel, itemsize=itemsize, size=size)
        rows = [split_sizes(numel, size)] * size if counts is None else check_matrix(counts, size)
        sent = [0] * size
        for step in _distances(size):
            for j in range(size):
                if j & step:
                    for r in range(size):
                        start = (r - j % step) % size
                        sent[r] += rows[start][(start + j) % size]
        return [elements * itemsize for elements in sent]


bruck_all_to_all = BruckAllToAll("all_to_all", "bruck")
