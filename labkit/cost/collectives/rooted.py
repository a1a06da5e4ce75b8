"""Scatter and gather by a loop at the root: one message to, or from, each other rank.

`nbytes` and `numel` are those of the whole tensor at the root; part r is rank r's, as `torch.tensor_split`
cuts. All of it has to pass through the root's one port, so no algorithm moves fewer bytes there. Time is
alpha-beta time (Hockney 1994).
"""

from __future__ import annotations

from collections.abc import Sequence

from labkit.cost.collectives.checks import check, check_counts
from labkit.cost.collectives.forms import Form
from labkit.cost.collectives.linear import naive_broadcast, naive_reduce
from labkit.cost.collectives.parts import split_sizes


class NaiveScatter(Form):
    """Scatter: the root sends each rank its part.

    Time: (p - 1) (alpha + nbytes / p * beta) seconds.
    """

    def rounds(self, size: int) -> int:
        """p - 1."""
        return naive_broadcast.rounds(size)

    def bytes(self, nbytes: float, size: int) -> float:
        """Bytes that the busiest rank, the root, sends, when parts are equal: (p - 1) / p * nbytes."""
        check(nbytes=nbytes, size=size)
        return (size - 1) / size * nbytes

    def bytes_by_rank(
        self, numel: int, itemsize: int, size: int, root: int = 0, counts: Sequence[int] | None = None
    ) -> list[int]:
        """Bytes sent by each rank: every part but its own, by the root.

        `counts` gives the elements of each part where they are not those of `torch.tensor_split`.
        """
        check(numel=numel, itemsize=itemsize, size=size, root=root)
        part = split_sizes(numel, size) if counts is None else check_counts(counts, size)
        return [(sum(part) - part[root]) * itemsize if r == root else 0 for r in range(size)]

    def messages_by_rank(self, size: int, root: int = 0) -> list[int]:
        """p - 1 from the root."""
        return naive_broadcast.messages_by_rank(size, root)


naive_scatter = NaiveScatter("scatter", "naive")


class NaiveGather(Form):
    """Gather: the root receives the parts, one after the other."""

    def rounds(self, size: int) -> int:
        """p - 1: the root receives one message at a time."""
        return naive_broadcast.rounds(size)

    def bytes(self, nbytes: float, size: int) -> float:
        """Bytes that each rank but the root sends, when parts are equal: nbytes / p."""
        check(nbytes=nbytes, size=size)
        return nbytes / size if size > 1 else 0.0

    def bytes_by_rank(
        self, numel: int, itemsize: int, size: int, root: int = 0, counts: Sequence[int] | None = None
    ) -> list[int]:
        """Bytes sent by each rank: its own part, nothing by the root. `counts` as for scatter."""
        check(numel=numel, itemsize=itemsize, size=size, root=root)
        part = split_sizes(numel, size) if counts is None else check_counts(counts, size)
        return [0 if r == root else part[r] * itemsize for r in range(size)]

    def messages_by_rank(self, size: int, root: int = 0) -> list[int]:
        """One from everyone but the root."""
        return naive_reduce.messages_by_rank(size, root)

    def time(self, nbytes: float, size: int, alpha: float, beta: float) -> float:
        """(p - 1) (alpha + nbytes / p * beta) seconds."""
        return naive_scatter.time(nbytes, size, alpha, beta)


naive_gather = NaiveGather("gather", "naive")
