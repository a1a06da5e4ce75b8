"""What travels, and what an optimizer keeps, in a few bits a number: codes and their scales, to the byte.

A *row* of n numbers is n codes and a scale for each block of it. The scale is what a block's numbers were multiplied by
(4 bytes, or 1 if it is a power of two); per="row" is one scale for all of the row. BF16 has no scale: bits=16 and
scale_bytes=0. Functions `..._by_rank` are what `labkit.optim.precision` sends: parts as `torch.tensor_split` cuts them.
"""

from __future__ import annotations

from collections.abc import Sequence

from labkit.cost.collectives.parts import split_sizes
from labkit.cost.parallel.expert import COUNT_BYTES
from labkit.cost.refuse import divides, one_of, whole

__all__ = [
    "adam8_state_bytes",
    "coded_all_gather_bytes_by_rank",
    "coded_all_reduce_bytes_by_rank",
    "coded_bytes",
    "coded_dispatch_bytes_by_rank",
]

Per = int | str


def coded_bytes(n: int, bits: int = 8, per: Per = 128, scale_bytes: int = 4) -> int:
    """Bytes of a row of n numbers, 0 if it is empty. 1 million in FP8 with a scale for 128: 1,031,252, or 8.25 bits."""
    one_of((0, 1, 4), scale_bytes=scale_bytes)
    block = max(1, n) if per == "row" else per
    whole(n=n + 1, bits=bits, per=block)
    assert isinstance(block, int)
    return -(-n * bits // 8) + scale_bytes * -(-n // block)


def coded_all_gather_bytes_by_rank(
    numels: int | Sequence[int], size: int, bits: int = 8, per: Per = 128, scale_bytes: int = 4
) -> list[int]:
    """Bytes that each rank sends to gather flat tensors of so many numbers, each cut among the ranks, by a ring.

    FSDP's `param_wire`: a step gathers the parameters twice, and reduce-scatters the gradients as ever. In a ring a
    rank passes every part on but that of the rank after it.
    """
    whole(size=size)
    sent = [0] * size
    for numel in [numels] if isinstance(numels, int) else numels:
        parts = [coded_bytes(n, bits, per, scale_bytes) for n in split_sizes(numel, size)]
        sent = [s + sum(parts) - parts[(r + 1) % size] for r, s in enumerate(sent)]
    return sent


def coded_all_reduce_bytes_by_rank(n: int, size: int, bits: int = 8, per: Per = 128, scale_bytes: int = 4) -> list[int]:
    """Bytes that each rank sends for `QuantizedAllReduce` of n numbers: 2 (N-1)/N n bits/8, and the scales.

    An all-to-all of parts, in which a rank sends all but its own, and a ring all-gather of their sums. FP8 takes a
    quarter of FP32's ring all-reduce, and with a scale for each 128 numbers 0.258 of it.
    """
    whole(size=size)
    parts = [coded_bytes(part, bits, per, scale_bytes) for part in split_sizes(n, size)]
    gathers = coded_all_gather_bytes_by_rank(n, size, bits, per, scale_bytes)
    return [sum(parts) - mine + gather for mine, gather in zip(parts, gathers, strict=True)]


def coded_dispatch_bytes_by_rank(
    rows: Sequence[Sequence[int]], width: int, experts: int, per: Per = "row", scale_bytes: int = 4, passes: int = 1
) -> list[int]:
    """As `dispatch_bytes_by_rank`, with rows on their way to experts in FP8 and back from them in BF16.

    So DeepSeek-V3 (2024, section 3.3.3), in both passes: backward the gradients of the results go to the experts in
    FP8, and those of their inputs come back in BF16. Beside BF16 both ways that is about three quarters.
    """
    n = len(rows)
    whole(size=n, width=width, experts=experts, passes=passes)
    divides(size=n, experts=experts)
    there, back = coded_bytes(width, 8, per, scale_bytes), 2 * width
    out = [sum(rows[r]) - rows[r][r] for r in range(n)]
    into = [sum(other[r] for other in rows) - rows[r][r] for r in range(n)]
    ahead = (n - 1) * experts // n * COUNT_BYTES
    return [ahead + passes * (there * o + back * i) for o, i in zip(out, into, strict=True)]


def adam8_state_bytes(numels: int | Sequence[int], block: int = 2048, smallest: int = 4096) -> int:
    """Bytes that `AdamW8bit` keeps for tensors of so many numbers (Dettmers et al. 2022): 2 a number, and scales.

    Two moments of one byte a number and 4 bytes a block, in place of 4 bytes a number each: 2.004 bytes in place of 8
    with blocks of 2,048. A tensor of fewer than `smallest` numbers keeps its 8.
    """
    whole(block=block)
    each = [numels] if isinstance(numels, int) else numels
    return sum(2 * (coded_bytes(n, 8, block) if n >= smallest else 4 * n) for n in each)
