"""Context parallelism: which positions a rank holds, the work of its queries, and what ring attention and Ulysses send.

b sequences of t positions, h heads of queries and g of keys and values, d numbers a head. Bytes are those that a rank
sends. Liu et al. 2023 ("Ring Attention"), Brandon et al. 2023 ("Striped Attention"), Jacobs et al. 2023 ("DeepSpeed
Ulysses"), Llama Team 2024 ("The Llama 3 Herd of Models", section 3.3.2: zigzag).
"""

from __future__ import annotations

from collections.abc import Sequence

from labkit.cost.refuse import divides, not_negative, one_of, whole

__all__ = [
    "CONTEXT_LAYOUTS",
    "causal_balance",
    "causal_pairs",
    "context_lengths",
    "context_ranges",
    "ring_attention_bytes_by_rank",
    "ring_attention_seconds",
    "ring_attention_tokens_to_hide",
    "ulysses_bytes_by_rank",
]

CONTEXT_LAYOUTS = ("contiguous", "striped", "zigzag")
PASSES = ("forward", "backward", "both")
BACKWARD_WORK = 2.5  # matrix products of the backward pass of attention, five, over the two of the forward pass


def context_ranges(rank: int, size: int, length: int, layout: str = "zigzag") -> list[range]:
    """The positions of `rank` among `size` ranks, as ranges, ascending.

    contiguous: the r-th part. striped: r, r + N, r + 2 N, ... zigzag: of 2 N chunks the r-th and the r-th from the
    end. Parts are those of `torch.tensor_split`: a length that does not divide gives parts that differ by one or two.
    Raises ValueError for a sequence that leaves a rank, or one of its two chunks, without a position.
    """
    whole(size=size, length=length)
    one_of(CONTEXT_LAYOUTS, layout=layout)
    if not 0 <= rank < size:
        raise ValueError(f"rank must be from 0 to {size - 1}, not {rank!r}")
    parts = 2 * size if layout == "zigzag" and size > 1 else size
    if length < parts:
        raise ValueError(
            f"a sequence of {length} positions cannot be shared out among {size} ranks ({layout}): it needs {parts}"
        )
    if layout == "striped":
        return [range(rank, length, size)]
    few, more = divmod(length, parts)

    def chunk(c: int) -> range:
        begin = c * few + min(c, more)
        return range(begin, begin + few + (c < more))

    return [chunk(rank)] if parts == size else [chunk(rank), chunk(parts - 1 - rank)]


def context_lengths(size: int, length: int, layout: str = "zigzag") -> list[int]:
    """How many positions each rank holds."""
    return [sum(map(len, context_ranges(rank, size, length, layout))) for rank in range(size)]


def causal_pairs(queries: Sequence[range], keys: Sequence[range]) -> int:
    """How many pairs of a query and a key that is not later there are."""
    return sum(
        len(range(k.start, min(k.stop, q + 1), k.step)) for some in queries for q in some for k in keys if k.start <= q
    )


def causal_balance(size: int, length: int, layout: str = "zigzag") -> float:
    """Pairs of the rank that has most, over the mean: position t reads t + 1 keys.

    8 ranks: 1.875 contiguous, 1 + 7 / t striped, 1 zigzag (where 16 divides t).
    """
    each = [sum(sum(part) + len(part) for part in context_ranges(r, size, length, layout)) for r in range(size)]
    return max(each) * size / sum(each)


def ring_attention_bytes_by_rank(
    lengths: Sequence[int], kv_heads: int, head_width: int, *, batch: int = 1, itemsize: int = 2,
    gradient_itemsize: int = 4, rounds: int | None = None, passes: str = "both",
) -> list[int]:  # fmt: skip
    """Bytes of one layer's attention, rank by rank. lengths: positions of each rank.

    Forward a rank passes on keys and values in all `rounds` but the last: 2 b g d numbers a position of the block's
    owner. Backward it does so again, and passes on the gradients of a block in every round, the last time home; they
    are sums, in 32 bits. rounds: blocks that a rank sees; fewer than there are ranks under a sliding window.
    """
    whole(kv_heads=kv_heads, head_width=head_width, batch=batch, itemsize=itemsize, gradient_itemsize=gradient_itemsize)
    one_of(PASSES, passes=passes)
    n = len(lengths)
    rounds = n if rounds is None else rounds
    whole(size=n, rounds=rounds)
    numbers = 2 * batch * kv_heads * head_width
    total = []
    alike = min(lengths) == max(lengths)
    for rank in range(1 if alike else n):
        seen = [lengths[(rank - i) % n] for i in range(rounds)]
        again = (passes != "backward") + (passes != "forward")
        sums = sum(seen) if passes != "forward" and rounds > 1 else 0
        total.append(numbers * (again * itemsize * sum(seen[:-1]) + gradient_itemsize * sums))
    return total * n if alike else total


def ulysses_bytes_by_rank(
    lengths: Sequence[int], heads: int, kv_heads: int, head_width: int, *, batch: int = 1, itemsize: int = 2,
    passes: str = "both",
) -> list[int]:  # fmt: skip
    """Bytes of one layer's attention, rank by rank: 4 t h d (N - 1) / N^2 numbers each way where all is even.

    A rank gives away the queries, keys and values of its own positions but for its own heads, and the results of its
    own heads but for its own positions; the backward pass sends the same. Where N does not divide the kv_heads, they
    are copied first until it does. Raises ValueError where N does not divide the heads.
    """
    n = len(lengths)
    whole(size=n, heads=heads, kv_heads=kv_heads, head_width=head_width, batch=batch, itemsize=itemsize)
    one_of(PASSES, passes=passes)
    divides(size=n, heads=heads)
    if kv_heads % n:
        kv_heads = n if n % kv_heads == 0 else heads
    each_way = itemsize * batch * head_width
    total = []
    for mine in lengths:
        to_heads = (n - 1) * mine * (heads + 2 * kv_heads) // n
        to_positions = (sum(lengths) - mine) * heads // n
        there = each_way * (to_heads + to_positions)
        # The backward pass gives the gradients of the result to the heads, and those of q, k and v to the positions.
        back = each_way * ((n - 1) * mine * heads // n + (sum(lengths) - mine) * (heads + 2 * kv_heads) // n)
        total.append(there * (passes != "backward") + back * (passes != "forward"))
    return total


def ring_attention_seconds(
    size: int, length: int, layout: str, pair_seconds: float, block_seconds: float, *, overlap: bool = True
) -> float:
    """Time of one forward pass of causal ring attention, simulated round by round. Equal to a run on the virtual clock.

    pair_seconds: of one pair of query and key. block_seconds: of one message with a rank's keys and values. A rank goes
    on to the next round when it has computed, its block has left and the next one is there.
    """
    not_negative(pair_seconds=pair_seconds, block_seconds=block_seconds)
    ranges = [context_ranges(rank, size, length, layout) for rank in range(size)]
    begin, end = [0.0] * size, 0.0
    for i in range(size):
        work = [pair_seconds * causal_pairs(ranges[r], ranges[(r - i) % size]) for r in range(size)]
        if i + 1 == size:
            end = max(b + w for b, w in zip(begin, work, strict=True))
            break
        moved = [max(begin[r], begin[r - 1]) + block_seconds for r in range(size)]
        begin = [max(b + w, m) if overlap else m + w for b, w, m in zip(begin, work, moved, strict=True)]
    return end


def ring_attention_tokens_to_hide(
    flops: float, bandwidth: float, *, heads: int = 1, kv_heads: int = 1, itemsize: int = 2, causal: bool = True
) -> float:
    """Positions that a rank must hold so that computing with a block takes as long as passing the block on.

    flops: of a rank, per second. bandwidth: of its link in one direction, bytes/s. With s positions on each rank a
    block is 4 h d s^2 operations forward, half of them under a causal mask (zigzag), and 2 g d s numbers to send. Liu
    et al. 2023, section 3: at least flops / bandwidth, for 16-bit numbers, as many heads of keys, and no mask.
    """
    whole(heads=heads, kv_heads=kv_heads, itemsize=itemsize)
    not_negative(flops=flops)
    if not bandwidth > 0:
        raise ValueError(f"bandwidth must be above 0, not {bandwidth!r}")
    return (2 if causal else 1) * kv_heads / heads * itemsize / 2 * flops / bandwidth
