"""Chunked chain broadcast: the tensor runs down a line of ranks in pieces, so that all links work at once.

With v = (rank - root) mod p, rank v passes each chunk on to v + 1 while it receives the next one from v - 1.
For a long tensor the time tends to nbytes * beta, whatever p is; a binomial tree needs log2 p times that
(Chan, Heimlich, Purkayastha & van de Geijn 2007). Time is alpha-beta time (Hockney 1994).
"""

from __future__ import annotations

import math

from labkit.cost.collectives.checks import check
from labkit.cost.collectives.forms import Form


class ChainBroadcast(Form):
    """The tensor in chunks, down a line of ranks. The number of chunks makes a difference to the time only."""

    def rounds(self, size: int, chunks: int) -> int:
        """p - 2 + chunks: the first chunk needs p - 1 hops, the others follow one step apart."""
        check(size=size, chunks=chunks)
        return size - 2 + chunks if size > 1 else 0

    def bytes(self, nbytes: float, size: int) -> float:
        """Bytes that each rank but the last of the chain sends: nbytes."""
        check(nbytes=nbytes, size=size)
        return nbytes if size > 1 else 0.0

    def bytes_by_rank(self, numel: int, itemsize: int, size: int, root: int = 0) -> list[int]:
        """Bytes sent by each rank: one whole tensor, nothing by the rank before the root (the last of the chain).

        The number of chunks makes no difference.
        """
        check(numel=numel, itemsize=itemsize, size=size, root=root)
        last = (root - 1) % size
        return [0 if r == last else numel * itemsize for r in range(size)]

    def messages_by_rank(self, size: int, chunks: int, root: int = 0) -> list[int]:  # type: ignore[override]
        """One for each chunk (`torch.tensor_split`; empty chunks too), none from the last of the chain."""
        check(size=size, root=root, chunks=chunks)
        last = (root - 1) % size
        return [0 if r == last else chunks for r in range(size)]

    def time(self, nbytes: float, size: int, alpha: float, beta: float, chunks: int | None = None) -> float:
        """(p - 2 + chunks) (alpha + nbytes / chunks * beta) seconds.

        chunks: the best number if none is given. Without latency and without a number of chunks it is the limit
        of ever smaller ones, nbytes * beta.
        """
        check(nbytes=nbytes, size=size, alpha=alpha, beta=beta, chunks=chunks)
        if chunks is None:
            if alpha == 0:
                return nbytes * beta if size > 1 else 0.0
            chunks = self.best_chunks(nbytes, size, alpha, beta)
        return self.rounds(size, chunks) * (alpha + nbytes / chunks * beta)

    def best_chunks(self, nbytes: float, size: int, alpha: float, beta: float, limit: int | None = None) -> int:
        """The number of chunks that is fastest: sqrt((p - 2) nbytes beta / alpha), rounded the better way.

        limit: the most chunks that make sense, such as the number of elements. Raises ValueError if alpha is 0
        and there is no limit, for then smaller chunks are always better.
        """
        check(nbytes=nbytes, size=size, alpha=alpha, beta=beta, chunks=limit)
        gain = (size - 2) * nbytes * beta
        if gain <= 0:
            return 1
        if alpha == 0:
            if limit is None:
                raise ValueError("with alpha (latency in seconds) 0 there is no best number of chunks: give a limit")
            return limit
        ideal = math.sqrt(gain / alpha)
        low = max(1, math.floor(ideal))
        # The time is convex in the chunk count, so the best whole number is next to the ideal one.
        best = min((low, low + 1), key=lambda chunks: self.time(nbytes, size, alpha, beta, chunks))
        return best if limit is None else min(best, limit)


chain_broadcast = ChainBroadcast("broadcast", "chain")
