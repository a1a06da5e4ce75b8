"""Butterflies: log2 p rounds with partners at distances that halve or double.

Any p, by folding (see `parts.fold`). Recursive doubling exchanges the whole tensor in every round.
Halving-doubling (Rabenseifner 2004) exchanges halves, quarters, ... and back: the bytes of the ring with the
rounds of a tree. Its first half, on its own, is the reduce-scatter. All as in Thakur, Rabenseifner & Gropp
(2005). Time is alpha-beta time (Hockney 1994); both directions of an exchange run at once.
"""

from __future__ import annotations

from labkit.cost.collectives.checks import check
from labkit.cost.collectives.forms import Form
from labkit.cost.collectives.parts import active_index, fold, split_offset, split_sizes


def _rounds(size: int) -> int:
    check(size=size)
    return fold(size)[0].bit_length() - 1


def _folded(size: int) -> int:
    """1 if some ranks sit out (p is not a power of two), else 0."""
    return 1 if fold(size)[1] else 0


class RecursiveDoublingAllReduce(Form):
    """All-reduce by recursive doubling."""

    def rounds(self, size: int) -> int:
        """log2 p; for p that is not a power of two, log2 p2 and two more for the ranks that sit out."""
        return _rounds(size) + 2 * _folded(size)

    def bytes(self, nbytes: float, size: int) -> float:
        """Bytes that the busiest rank sends: log2 p * nbytes.

        For p that is not a power of two, (log2 p2 + 1) * nbytes by an active rank whose partner sits out.
        """
        check(nbytes=nbytes)
        return (_rounds(size) + _folded(size)) * nbytes

    def bytes_by_rank(self, numel: int, itemsize: int, size: int) -> list[int]:
        """Bytes sent by each rank: one whole tensor for each of its messages."""
        check(numel=numel, itemsize=itemsize)
        return [m * numel * itemsize for m in self.messages_by_rank(size)]

    def messages_by_rank(self, size: int) -> list[int]:
        """log2 p2 from an active rank, one more if it has a partner that sits out; one from that partner."""
        rounds, (_, rem) = _rounds(size), fold(size)
        return [rounds if r >= 2 * rem else 1 if r % 2 else rounds + 1 for r in range(size)]

    def time(self, nbytes: float, size: int, alpha: float, beta: float) -> float:
        """log2 p (alpha + nbytes beta) seconds; two such terms more when p is not a power of two."""
        check(nbytes=nbytes, alpha=alpha, beta=beta)
        return self.rounds(size) * (alpha + nbytes * beta)


recursive_doubling_all_reduce = RecursiveDoublingAllReduce("all_reduce", "recursive_doubling")


class HalvingDoublingAllReduce(Form):
    """All-reduce by recursive halving, then doubling."""

    def rounds(self, size: int) -> int:
        """2 log2 p; for p that is not a power of two, 2 log2 p2 and two more for the ranks that sit out."""
        return 2 * _rounds(size) + 2 * _folded(size)

    def bytes(self, nbytes: float, size: int) -> float:
        """Bytes that the busiest rank sends, when `nbytes` divides evenly: 2 (p2 - 1) / p2 * nbytes.

        For p that is not a power of two, `nbytes` more by an active rank whose partner sits out.
        """
        check(nbytes=nbytes, size=size)
        p2, _ = fold(size)
        return 2 * (p2 - 1) / p2 * nbytes + _folded(size) * nbytes

    def bytes_by_rank(self, numel: int, itemsize: int, size: int) -> list[int]:
        """Bytes sent by each rank, exact for any element count.

        The tensor is cut into p2 chunks. While halving, active rank a sends every chunk but chunk a, each once;
        while doubling it sends the aligned window of 1, 2, 4, ... p2 / 2 chunks that it has finished.
        """
        check(numel=numel, itemsize=itemsize, size=size)
        p2, rem = fold(size)

        def window(active: int, width: int) -> int:
            start = active // width * width
            return split_offset(numel, p2, start + width) - split_offset(numel, p2, start)

        def elements(rank: int) -> int:
            active = active_index(rank, size)
            if active is None:
                return numel
            halving = numel - window(active, 1)
            doubling = sum(window(active, 1 << k) for k in range(_rounds(size)))
            return halving + doubling + (numel if rank < 2 * rem else 0)

        return [elements(rank) * itemsize for rank in range(size)]

    def messages_by_rank(self, size: int) -> list[int]:
        """2 log2 p2 from an active rank, one more if it has a partner that sits out; one from that partner."""
        rounds, (_, rem) = 2 * _rounds(size), fold(size)
        return [rounds if r >= 2 * rem else 1 if r % 2 else rounds + 1 for r in range(size)]

    def time(self, nbytes: float, size: int, alpha: float, beta: float) -> float:
        """2 log2 p alpha + 2 (p - 1) / p * nbytes * beta seconds.

        For p that is not a power of two: the same for p2, and 2 (alpha + nbytes beta) for the ranks that sit out.
        """
        check(nbytes=nbytes, size=size, alpha=alpha, beta=beta)
        p2, _ = fold(size)
        critical = 2 * (p2 - 1) / p2 * nbytes + 2 * _folded(size) * nbytes
        return self.rounds(size) * alpha + critical * beta


halving_doubling_all_reduce = HalvingDoublingAllReduce("all_reduce", "halving_doubling")


class HalvingReduceScatter(Form):
    """Reduce-scatter by recursive halving: `nbytes` and `numel` are those of the tensor that each rank brings."""

    def rounds(self, size: int) -> int:
        """log2 p; for p that is not a power of two, log2 p2 and two more for the ranks that sit out."""
        return _rounds(size) + 2 * _folded(size)

    def bytes(self, nbytes: float, size: int) -> float:
        """Bytes that the busiest rank sends, when `nbytes` divides evenly: (p - 1) / p * nbytes.

        For p that is not a power of two it is `nbytes`, by a rank that sits out.
        """
        check(nbytes=nbytes, size=size)
        return nbytes if _folded(size) else (size - 1) / size * nbytes

    def bytes_by_rank(self, numel: int, itemsize: int, size: int) -> list[int]:
        """Bytes sent by each rank: everything but its own part, or everything by a rank that sits out.

        An active rank that stands for two keeps both parts while halving, and sends its partner's at the end.
        """
        check(numel=numel, itemsize=itemsize, size=size)
        part = split_sizes(numel, size)
        own = [0 if active_index(r, size) is None else part[r] for r in range(size)]
        return [(numel - kept) * itemsize for kept in own]

    def messages_by_rank(self, size: int) -> list[int]:
        """As in recursive doubling: log2 p2, one more with a partner that sits out, one from that partner."""
        return recursive_doubling_all_reduce.messages_by_rank(size)

    def time(self, nbytes: float, size: int, alpha: float, beta: float) -> float:
        """log2 p alpha + (p - 1) / p * nbytes * beta seconds.

        For p that is not a power of two the first rem active ranks stand for two parts each. At distance d the
        heaviest exchange is that of the first window, d + min(d, rem) parts; before the rounds comes a whole
        tensor, after them one part.
        """
        check(nbytes=nbytes, size=size, alpha=alpha, beta=beta)
        _, rem = fold(size)
        parts = sum((1 << k) + min(1 << k, rem) for k in range(_rounds(size)))
        critical = (parts + _folded(size)) / size * nbytes + _folded(size) * nbytes
        return self.rounds(size) * alpha + critical * beta


halving_reduce_scatter = HalvingReduceScatter("reduce_scatter", "halving")
