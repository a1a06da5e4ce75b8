"""How n elements fall into parts, and the powers of two that the logarithmic algorithms need.

Parts are those of `torch.tensor_split`: the first `numel % parts` of them are one element larger.
"""

from __future__ import annotations

from labkit.cost.collectives.checks import check


def split_sizes(numel: int, parts: int) -> list[int]:
    """Elements in each of `parts` parts of `numel` elements; the larger ones come first."""
    check(numel=numel, parts=parts)
    base, extra = divmod(numel, parts)
    return [base + 1] * extra + [base] * (parts - extra)


def split_offset(numel: int, parts: int, index: int) -> int:
    """Where part `index` begins; `index == parts` gives `numel`."""
    base, extra = divmod(numel, parts)
    return index * base + min(index, extra)


def ceil_log2(n: int) -> int:
    """The rounds in which one rank can reach n ranks by doubling."""
    return (n - 1).bit_length()


def fold(size: int) -> tuple[int, int]:
    """`(p2, rem)`: the largest power of two not above `size`, and the ranks left over.

    The standard way to run a power-of-two algorithm on any number of ranks (Thakur, Rabenseifner & Gropp
    2005): of the first `2 * rem` ranks each odd one hands its vector to the even one before it and sits
    out, so that p2 ranks stay active; afterwards the even one hands it the result.
    """
    p2 = 1 << (size.bit_length() - 1)
    return p2, size - p2


def active_index(rank: int, size: int) -> int | None:
    """The number of `rank` among the p2 active ranks, or None for one that sits out."""
    _, rem = fold(size)
    if rank >= 2 * rem:
        return rank - rem
    return None if rank % 2 else rank // 2
