"""What a compressed gradient of n numbers takes on the wire, indices, norms and scales included.

A *payload* is what one rank has to say. Where payloads can be added up (`random_k_bytes`) they are all-reduced,
and a rank sends what an all-reduce of them sends. Where they cannot, every rank needs every other one's, and an
all-gather sends (N - 1) of them from each rank, which grows with N while an all-reduce stays below two.
"""

from __future__ import annotations

import math

from labkit.cost.refuse import whole

__all__ = [
    "block8_bytes",
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
