"""Loops over the ranks: one root serves everybody (`naive`), or everybody serves everybody (`everyone`).

They need no cleverness and use one link at a time (`naive`), or p - 1 whole copies per rank (`everyone`):
what the other families are measured against. Time is alpha-beta time (Hockney 1994); a root has one
sending and one receiving port, so its messages follow one another.
"""

from __future__ import annotations

from labkit.cost.collectives.checks import check
from labkit.cost.collectives.forms import Form


def _steps(size: int) -> int:
    check(size=size)
    return size - 1


class NaiveBroadcast(Form):
    """Broadcast: the root sends the whole tensor to each other rank in turn."""

    def rounds(self, size: int) -> int:
        """p - 1: the root's messages follow one another."""
        return _steps(size)

    def bytes(self, nbytes: float, size: int) -> float:
        """Bytes that the busiest rank, the root, sends: (p - 1) * nbytes."""
        check(nbytes=nbytes, size=size)
        return (size - 1) * nbytes

    def bytes_by_rank(self, numel: int, itemsize: int, size: int, root: int = 0) -> list[int]:
        """Bytes sent by each rank: all by the root."""
        check(numel=numel, itemsize=itemsize, size=size, root=root)
        return [(size - 1) * numel * itemsize if r == root else 0 for r in range(size)]

    def messages_by_rank(self, size: int, root: int = 0) -> list[int]:
        """p - 1 from the root."""
        check(size=size, root=root)
        return [size - 1 if r == root else 0 for r in range(size)]

    def time(self, nbytes: float, size: int, alpha: float, beta: float) -> float:
        """(p - 1) (alpha + nbytes beta) seconds."""
        check(nbytes=nbytes, alpha=alpha, beta=beta)
        return _steps(size) * (alpha + nbytes * beta)


naive_broadcast = NaiveBroadcast("broadcast", "naive")


class NaiveReduce(Form):
    """Reduce: every rank sends its whole tensor to the root, in rank order."""

    def rounds(self, size: int) -> int:
        """p - 1: the root receives one message at a time."""
        return _steps(size)

    def bytes(self, nbytes: float, size: int) -> float:
        """Bytes that each rank but the root sends: nbytes."""
        check(nbytes=nbytes, size=size)
        return nbytes if size > 1 else 0.0

    def bytes_by_rank(self, numel: int, itemsize: int, size: int, root: int = 0) -> list[int]:
        """Bytes sent by each rank: one whole tensor by everyone but the root."""
        check(numel=numel, itemsize=itemsize, size=size, root=root)
        return [0 if r == root else numel * itemsize for r in range(size)]

    def messages_by_rank(self, size: int, root: int = 0) -> list[int]:
        """One from everyone but the root."""
        check(size=size, root=root)
        return [0 if r == root else 1 for r in range(size)]

    def time(self, nbytes: float, size: int, alpha: float, beta: float) -> float:
        """(p - 1) (alpha + nbytes beta) seconds."""
        return naive_broadcast.time(nbytes, size, alpha, beta)


naive_reduce = NaiveReduce("reduce", "naive")


class NaiveAllReduce(Form):
    """All-reduce by way of rank 0: gather and add there, then send the result to each rank."""

    def rounds(self, size: int) -> int:
        """2 (p - 1), all of them at rank 0."""
        return 2 * _steps(size)

    def bytes(self, nbytes: float, size: int) -> float:
        """Bytes that the busiest rank, rank 0, sends: (p - 1) * nbytes. It receives as many."""
        check(nbytes=nbytes, size=size)
        return (size - 1) * nbytes

    def bytes_by_rank(self, numel: int, itemsize: int, size: int) -> list[int]:
        """Bytes sent by each rank: p - 1 tensors by rank 0, one by each other."""
        check(numel=numel, itemsize=itemsize, size=size)
        return [(size - 1 if r == 0 else 1) * numel * itemsize for r in range(size)]

    def messages_by_rank(self, size: int) -> list[int]:
        """p - 1 from rank 0, one from each other."""
        check(size=size)
        return [size - 1 if r == 0 else 1 for r in range(size)]

    def time(self, nbytes: float, size: int, alpha: float, beta: float) -> float:
        """2 (p - 1) (alpha + nbytes beta) seconds."""
        return 2 * naive_broadcast.time(nbytes, size, alpha, beta)


naive_all_reduce = NaiveAllReduce("all_reduce", "naive")


class EveryoneAllReduce(Form):
    """All-reduce with everyone sending everything to everyone, p - 1 exchanges a rank."""

    def rounds(self, size: int) -> int:
        """p - 1 exchanges: in round i rank r sends to r + i and receives from r - i."""
        return _steps(size)

    def bytes(self, nbytes: float, size: int) -> float:
        """Bytes that each rank sends: (p - 1) * nbytes."""
        check(nbytes=nbytes, size=size)
        return (size - 1) * nbytes

    def bytes_by_rank(self, numel: int, itemsize: int, size: int) -> list[int]:
        """Bytes sent by each rank: p - 1 whole tensors."""
        check(numel=numel, itemsize=itemsize, size=size)
        return [(size - 1) * numel * itemsize] * size

    def messages_by_rank(self, size: int) -> list[int]:
        """p - 1 from every rank."""
        return [_steps(size)] * size

    def time(self, nbytes: float, size: int, alpha: float, beta: float) -> float:
        """(p - 1) (alpha + nbytes beta) seconds, if all ranks can send at once."""
        return naive_broadcast.time(nbytes, size, alpha, beta)


everyone_all_reduce = EveryoneAllReduce("all_reduce", "everyone")
