"""Binomial trees: the number of ranks that hold the data doubles in every round.

With v = (rank - root) mod p, rank v receives from v with its lowest set bit cleared, and sends to v + m for
the powers of two m below that bit, the farthest first (the root: below the first power of two that is not
less than p). Reduce runs the same tree backwards. Few latencies, but whole tensors: the tree wins for small
messages (Thakur, Rabenseifner & Gropp 2005). Time is alpha-beta time (Hockney 1994).
"""

from __future__ import annotations

from labkit.cost.collectives.checks import check
from labkit.cost.collectives.forms import Form
from labkit.cost.collectives.parts import ceil_log2


def tree_children(virtual_rank: int, size: int) -> int:
    """How many ranks `virtual_rank` sends to in the binomial broadcast over `size` ranks."""
    check(size=size, root=virtual_rank)
    # Powers of two that stay inside the group, and (not for the root) below the lowest set bit.
    inside = (size - 1 - virtual_rank).bit_length()
    lowest = (virtual_rank & -virtual_rank).bit_length() - 1
    return inside if virtual_rank == 0 else min(inside, lowest)


class TreeBroadcast(Form):
    """Broadcast."""

    def rounds(self, size: int) -> int:
        """ceil(log2 p)."""
        check(size=size)
        return ceil_log2(size)

    def bytes(self, nbytes: float, size: int) -> float:
        """Bytes that the busiest rank, the root, sends: ceil(log2 p) * nbytes."""
        check(nbytes=nbytes)
        return self.rounds(size) * nbytes

    def bytes_by_rank(self, numel: int, itemsize: int, size: int, root: int = 0) -> list[int]:
        """Bytes sent by each rank: one whole tensor to each of its children."""
        check(numel=numel, itemsize=itemsize)
        return [messages * numel * itemsize for messages in self.messages_by_rank(size, root)]

    def messages_by_rank(self, size: int, root: int = 0) -> list[int]:
        """One to each child; p - 1 in all."""
        check(size=size, root=root)
        return [tree_children((r - root) % size, size) for r in range(size)]

    def time(self, nbytes: float, size: int, alpha: float, beta: float) -> float:
        """ceil(log2 p) (alpha + nbytes beta) seconds."""
        check(nbytes=nbytes, alpha=alpha, beta=beta)
        return self.rounds(size) * (alpha + nbytes * beta)


tree_broadcast = TreeBroadcast("broadcast", "tree")


class TreeReduce(Form):
    """Reduce."""

    def rounds(self, size: int) -> int:
        """ceil(log2 p)."""
        return tree_broadcast.rounds(size)

    def bytes(self, nbytes: float, size: int) -> float:
        """Bytes that each rank but the root sends: nbytes."""
        check(nbytes=nbytes, size=size)
        return nbytes if size > 1 else 0.0

    def bytes_by_rank(self, numel: int, itemsize: int, size: int, root: int = 0) -> list[int]:
        """Bytes sent by each rank: one whole tensor, to its parent; nothing by the root."""
        check(numel=numel, itemsize=itemsize, size=size, root=root)
        return [0 if r == root else numel * itemsize for r in range(size)]

    def messages_by_rank(self, size: int, root: int = 0) -> list[int]:
        """One from everyone but the root."""
        check(size=size, root=root)
        return [0 if r == root else 1 for r in range(size)]

    def time(self, nbytes: float, size: int, alpha: float, beta: float) -> float:
        """ceil(log2 p) (alpha + nbytes beta) seconds."""
        return tree_broadcast.time(nbytes, size, alpha, beta)


tree_reduce = TreeReduce("reduce", "tree")


class TreeAllReduce(Form):
    """All-reduce: reduce to rank 0, then broadcast from it."""

    def rounds(self, size: int) -> int:
        """2 ceil(log2 p)."""
        return 2 * tree_broadcast.rounds(size)

    def bytes(self, nbytes: float, size: int) -> float:
        """Bytes that the busiest rank, rank 0, sends: ceil(log2 p) * nbytes."""
        return tree_broadcast.bytes(nbytes, size)

    def bytes_by_rank(self, numel: int, itemsize: int, size: int) -> list[int]:
        """Bytes sent by each rank: one tensor up (not by rank 0), one down to each child."""
        check(numel=numel, itemsize=itemsize)
        return [messages * numel * itemsize for messages in self.messages_by_rank(size)]

    def messages_by_rank(self, size: int) -> list[int]:
        """One up, one down to each child; 2 (p - 1) in all."""
        up, down = tree_reduce.messages_by_rank(size), tree_broadcast.messages_by_rank(size)
        return [u + d for u, d in zip(up, down, strict=True)]

    def time(self, nbytes: float, size: int, alpha: float, beta: float) -> float:
        """2 ceil(log2 p) (alpha + nbytes beta) seconds."""
        return 2 * tree_broadcast.time(nbytes, size, alpha, beta)


tree_all_reduce = TreeAllReduce("all_reduce", "tree")
