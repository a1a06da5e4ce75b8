"""What a compressed gradient of n numbers takes on the wire, indices, norms and scales included.

A *payload* is what one rank has to say. Where payloads can be added up (`random_k_bytes`) they are all-reduced,
and a rank sends what an all-reduce of them sends. Where they cannot, every rank needs every other one's, and an
all-gather sends (N - 1) of them from each rank, which grows with N while an all-reduce stays below two.
The forms with a `size` are what ranks send in a step for one bucket, as the hooks of `labkit.optim.compression` do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from labkit.cost.collectives import ring_all_reduce_bytes_by_rank
from labkit.cost.refuse import not_negative, whole

__all__ = [
    "block8_bytes",
    "gathered_payload_bytes",
    "majority_vote_bytes_by_rank",
    "power_sgd_bytes_by_rank",
    "power_sgd_messages",
    "quantized_bytes",
    "random_k_bytes",
    "sign_bytes",
    "top_k_bytes",
]


def top_k_bytes(k: int, itemsize: int = 4) -> int:
    """k values, each with its place in 4 bytes: of float32 values, half of the payload says where."""
    whole(k=k, itemsize=itemsize)
    return k * (itemsize + 4)


def random_k_bytes(k: int, itemsize: int = 4) -> int:
    """k values. All ranks draw the same places from the same seed, so no place is sent, and values add up."""
    whole(k=k, itemsize=itemsize)
    return k * itemsize


def quantized_bytes(n: int, levels: int) -> int:
    """QSGD (Alistarh et al. 2017) with levels 0 .. s: a sign and a level in fixed width for each number, and a norm.

    The paper's Elias code is shorter where most levels are 0. TernGrad (Wen et al. 2017) is s = 1: 2 bits a number.
    """
    whole(n=n, levels=levels)
    return -(-n * (1 + math.ceil(math.log2(levels + 1))) // 8) + 4


def sign_bytes(n: int) -> int:
    """One bit a number, and one scale (Karimireddy et al. 2019)."""
    whole(n=n)
    return -(-n // 8) + 4


def block8_bytes(n: int, block: int = 256) -> int:
    """A byte a number, and a scale for each block (Dettmers 2016)."""
    whole(n=n, block=block)
    return n + 4 * -(-n // block)


def gathered_payload_bytes(payload: int, size: int) -> int:
    """What each rank sends where every rank needs the payload of every other: N - 1 of them, by any all-gather.

    payload: of all parameters of a bucket, in bytes. A parameter that its compressor would not shrink goes whole.
    """
    whole(payload=payload, size=size)
    return (size - 1) * payload


def majority_vote_bytes_by_rank(n: int, size: int) -> list[int]:
    """signSGD with majority vote (Bernstein et al. 2018) of n numbers, a bit each: the votes, and what was decided.

    A rank counts one part. It sends its votes on all others, and what it has decided to all others.
    """
    whole(n=n, size=size)
    votes = -(-n // 8)
    parts = [votes // size + (r < votes % size) for r in range(size)]
    return [votes - mine + (size - 1) * mine for mine in parts]


def power_sgd_messages(
    shapes: Sequence[Sequence[int]], rank: int, min_compression_rate: float = 1.0
) -> tuple[int, int]:
    """How many numbers the two all-reduces of PowerSGD (Vogels et al. 2019) add up: P and what goes whole, and Q.

    shapes: of the parameters of a bucket. One of n x m is compressed if n m > rate r (n + m), with r = min(rank, n, m).
    """
    whole(rank=rank)
    not_negative(min_compression_rate=min_compression_rate)
    first = second = 0
    for shape in shapes:
        numel = math.prod(shape)
        n, m = (shape[0], math.prod(shape[1:])) if len(shape) > 1 else (numel, 1)
        r = min(rank, n, m)
        pays = len(shape) > 1 and numel > min_compression_rate * r * (n + m)
        first += r * n if pays else numel
        second += r * m if pays else 0
    return first, second


def power_sgd_bytes_by_rank(
    shapes: Sequence[Sequence[int]], rank: int, size: int, itemsize: int = 4, min_compression_rate: float = 1.0
) -> list[int]:
    """What each rank sends for a bucket, if the two all-reduces of `power_sgd_messages` are rings."""
    messages = power_sgd_messages(shapes, rank, min_compression_rate)
    first, second = (ring_all_reduce_bytes_by_rank(n, itemsize, size) for n in messages)
    return [a + b for a, b in zip(first, second, strict=True)]
