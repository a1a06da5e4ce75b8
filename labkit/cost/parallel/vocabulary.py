"""A vocabulary cut among ranks: what its loss sends, and what gathering the scores would send.

Each rank has the scores (logits) of its part of the vocabulary. The loss of a position needs of all of them only the
largest, the sum of exponentials, and the score of the target: three numbers a position and rank (Shoeybi et al. 2019,
section 3). Bytes are those that a rank sends, by ring all-reduce.
"""

from __future__ import annotations

from labkit.cost.collectives.ring import ring_all_gather, ring_all_reduce
from labkit.cost.refuse import whole

__all__ = [
    "gathered_logits_bytes",
    "vocabulary_parallel_embedding_bytes",
    "vocabulary_parallel_loss_bytes",
    "vocabulary_parallel_loss_bytes_by_rank",
]

NUMBERS_PER_POSITION = 3  # the largest score, the sum of exponentials, the target's score


def vocabulary_parallel_loss_bytes(
    batch: int, sequence: int, size: int, itemsize: int = 4, smoothed: bool = False
) -> float:
    """Bytes of the loss: three all-reduces of b s numbers, whatever the vocabulary is; 0 in the backward pass.

    itemsize: 4, since the loss is reckoned in 32 bits. smoothed: with label smoothing, for which the sum of the scores
    travels too, a fourth. b = 4, s = 2048, t = 8: 172 kB.
    """
    whole(batch=batch, sequence=sequence, size=size, itemsize=itemsize)
    return (NUMBERS_PER_POSITION + smoothed) * ring_all_reduce.bytes(batch * sequence * itemsize, size)


def vocabulary_parallel_loss_bytes_by_rank(
    batch: int, sequence: int, size: int, itemsize: int = 4, *, messages: tuple[int, ...] = (1, 1, 1)
) -> list[int]:
    """The same by rank, exact. messages: how many of the numbers travel in each all-reduce; (1, 2), smoothed (1, 3)."""
    whole(batch=batch, sequence=sequence, size=size, itemsize=itemsize)
    if sum(messages) - NUMBERS_PER_POSITION not in (0, 1) or min(messages) < 1:
        raise ValueError(
            f"messages must share out {NUMBERS_PER_POSITION} numbers a position (4 with label smoothing), "
            f"not {messages!r}"
        )
    parts = [ring_all_reduce.bytes_by_rank(n * batch * sequence, itemsize, size) for n in messages]
    return [sum(column) for column in zip(*parts, strict=True)]


def gathered_logits_bytes(batch: int, sequence: int, vocabulary: int, size: int, itemsize: int = 2) -> float:
    """Bytes that an all-gather of all scores sends instead: (t-1)/t b s v values.

    b = 4, s = 2048, v = 51200, t = 8: 734 MB in 16 bits, thousands of times the loss. And every rank holds all scores.
    """
    whole(batch=batch, sequence=sequence, vocabulary=vocabulary, size=size, itemsize=itemsize)
    return ring_all_gather.bytes(batch * sequence * vocabulary * itemsize, size)


def vocabulary_parallel_embedding_bytes(batch: int, sequence: int, hidden: int, size: int, itemsize: int = 2) -> float:
    """Bytes of looking tokens up: one all-reduce of s b h values, most of them zeros (with masked ids), forward only.

    Computing scores from the last activation has its counterpart: one all-reduce of s b h in the backward pass only.
    """
    whole(batch=batch, sequence=sequence, hidden=hidden, size=size, itemsize=itemsize)
    return ring_all_reduce.bytes(batch * sequence * hidden * itemsize, size)
