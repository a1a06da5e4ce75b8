"""Embedding tables cut among ranks: what they hold, what a step sends, and what skewed ids do to it.

Every rank asks for each of its ids once. With u ids that a rank asks of another one, u ids go there, u rows come back,
and in the backward pass u gradients go there; the size of the table is in none of it. Counts are for each pair of
ranks: asked[r][s] ids that rank r asks of rank s. Bytes are those that a rank sends.

Popularity is Zipf's (1949): id k of `rows` is asked for in proportion to (k + 1)^-skew; `skew` 0 is uniform. NumPy is
loaded when it is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from labkit.cost.collectives.parts import split_sizes
from labkit.cost.collectives.ring import ring_all_reduce
from labkit.cost.refuse import not_negative, one_of, whole

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "ASKED_BYTES",
    "ID_BYTES",
    "OPTIMIZER_STATE",
    "embedding_bytes_by_rank",
    "hot_rows_bytes_by_rank",
    "moved_bytes_by_rank",
    "place_tables",
    "rebalanced_owners",
    "table_bytes",
    "zipf_hit_rate",
    "zipf_share",
    "zipf_shard_loads",
    "zipf_unique",
]

ID_BYTES = 8  # of an id, of a count, and of the word by which ranks agree that they have no complaint: int64
ASKED_BYTES = 4  # of the count that stands beside each row: how often it was asked for
OPTIMIZER_STATE = {"sgd": (0, 0), "rowwise_adagrad": (0, 1), "adagrad": (1, 0), "adam": (2, 0)}  # a column, a row


def table_bytes(rows: int, dim: int, optimizer: str = "rowwise_adagrad", itemsize: int = 4) -> int:
    """Bytes of `rows` rows that a rank holds: weights, state, and a count each.

    10 million rows of 16 numbers with row-wise Adagrad: 720 MB, and 90 MB on each of 8 ranks.
    """
    whole(rows=rows, dim=dim, itemsize=itemsize)
    one_of(OPTIMIZER_STATE, optimizer=optimizer)
    by_column, by_row = OPTIMIZER_STATE[optimizer]
    return rows * ((dim * (1 + by_column) + by_row) * itemsize + ASKED_BYTES)


def embedding_bytes_by_rank(
    asked: Sequence[Sequence[Sequence[int]]], widths: Sequence[Sequence[int]], itemsize: int = 4, passes: int = 2
) -> list[int]:
    """Bytes of a look-up in several tables, and with passes=2 of the push of its gradients too.

    asked[t]: of table t, as above. widths[t][s]: the columns of table t that rank s holds: all of them, if it is cut by
    rows. Ahead of the ids go their counts, and ahead of both passes one word a rank by which all agree to go on.
    """
    n = len(widths[0])
    whole(size=n, itemsize=itemsize, passes=passes)
    sent = [passes * (n - 1) * ID_BYTES + (n - 1) * len(asked) * ID_BYTES] * n
    for table, width in zip(asked, widths, strict=True):
        for r in range(n):
            for s in range(n):
                if r != s:
                    sent[r] += table[r][s] * (ID_BYTES + (passes - 1) * width[s] * itemsize)
                    sent[s] += table[r][s] * width[s] * itemsize
    return sent


def hot_rows_bytes_by_rank(rows: int, dim: int, size: int, itemsize: int = 4) -> list[int]:
    """Bytes of a step of rows that all ranks hold: a ring all-reduce of each gradient and of whether it was touched."""
    return ring_all_reduce.bytes_by_rank(rows * (dim + 1), itemsize, size)


def moved_bytes_by_rank(
    bucket_rows: Sequence[int], old: Sequence[int], new: Sequence[int], row_bytes: int, size: int
) -> list[int]:
    """Bytes of giving bucket b of bucket_rows[b] rows from rank old[b] to new[b]: rows with their state."""
    moves = list(zip(bucket_rows, old, new, strict=True))
    return [sum(rows * row_bytes for rows, a, b in moves if a == r != b) for r in range(size)]


# -- who gets what -------------------------------------------------------------------------------------------------


def place_tables(loads: Sequence[float], size: int) -> list[int]:
    """The rank of each table: the heaviest first, each to the rank that has least so far (LPT).

    The most loaded rank has at most 4/3 - 1/(3 size) of what it would have in the best placement (Graham 1969).
    """
    whole(size=size)
    total, owners = [0.0] * size, [0] * len(loads)
    for t in sorted(range(len(loads)), key=lambda t: -loads[t]):
        owners[t] = total.index(min(total))
        total[owners[t]] += loads[t]
    return owners


def rebalanced_owners(loads: Sequence[float], owners: Sequence[int], size: int) -> list[int]:
    """New owners of buckets with these loads, moving few: while it helps, one from the fullest to the emptiest rank.

    Of its buckets the fullest rank gives the one that leaves the two most equal. Ends when none would.
    """
    whole(size=size)
    new = list(owners)
    while True:
        total = [sum(n for n, owner in zip(loads, new, strict=True) if owner == r) for r in range(size)]
        full, empty = total.index(max(total)), total.index(min(total))
        gap = total[full] - total[empty]
        fitting = [b for b, owner in enumerate(new) if owner == full and 0 < loads[b] < gap]
        if not fitting:
            return new
        new[min(fitting, key=lambda b: abs(gap - 2 * loads[b]))] = empty


# -- skew ----------------------------------------------------------------------------------------------------------


def zipf_share(rows: int, skew: float, top: int) -> float:
    """The part of all look-ups that goes to the `top` most popular rows."""
    whole(top=top)
    return float(_popularity(rows, skew)[:top].sum())


def zipf_shard_loads(rows: int, skew: float, size: int, by: str = "range", batch: int | None = None) -> list[float]:
    """The part of all requests that goes to each shard, if rows are cut by "range" or by "modulo".

    batch: draws of which each id is asked for once; without it every look-up counts. Popular rows are then asked for by
    nearly every batch and no more, so shards are less uneven than look-ups are.
    """
    one_of(("range", "modulo"), by=by)
    asked = _popularity(rows, skew) if batch is None else _in_batch(rows, skew, batch)
    starts = [sum(split_sizes(rows, size)[:r]) for r in range(size)]
    parts = [asked[r::size] if by == "modulo" else asked[s:e]
             for r, (s, e) in enumerate(zip(starts, [*starts[1:], rows], strict=True))]  # fmt: skip
    return [float(part.sum() / asked.sum()) for part in parts]


def zipf_unique(rows: int, skew: float, batch: int) -> float:
    """How many different ids `batch` draws have, on average: the rows that a batch touches."""
    return float(_in_batch(rows, skew, batch).sum())


def zipf_hit_rate(rows: int, skew: float, capacity: int, policy: str = "lfu", batch: int = 1) -> float:
    """The part of the rows looked up that a cache of `capacity` rows has, in the long run.

    A look-up asks once for each different id of `batch` draws. "lfu": the cache has come to hold the most popular rows.
    "lru": a row is there if it was looked up in the last T look-ups, with T such that `capacity` rows are, on average
    (Che, Tung & Wang 2002: an approximation, good for many rows that are not too few for a batch).
    """
    whole(rows=rows, capacity=capacity, batch=batch)
    one_of(("lru", "lfu"), policy=policy)
    asked = _in_batch(rows, skew, batch)
    if capacity >= rows:
        return 1.0
    if policy == "lfu":
        return float(asked[:capacity].sum() / asked.sum())
    low, high = 0.0, 1.0
    while _seen(asked, high).sum() < capacity:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _seen(asked, middle).sum() < capacity else (low, middle)
    return float((asked * _seen(asked, low)).sum() / asked.sum())


def _popularity(rows: int, skew: float) -> np.ndarray[Any, Any]:
    import numpy as np

    whole(rows=rows)
    not_negative(skew=skew)
    weight = np.arange(1, rows + 1, dtype=np.float64) ** -skew
    return weight / weight.sum()


def _in_batch(rows: int, skew: float, batch: int) -> np.ndarray[Any, Any]:
    """The probability that a batch has each id."""
    import numpy as np

    whole(batch=batch)
    return -np.expm1(batch * np.log1p(-np.minimum(_popularity(rows, skew), 1 - 1e-16)))


def _seen(asked: np.ndarray[Any, Any], lookups: float) -> np.ndarray[Any, Any]:
    """The probability that each id was looked up in so many look-ups."""
    import numpy as np

    return -np.expm1(lookups * np.log1p(-np.minimum(asked, 1 - 1e-16)))
