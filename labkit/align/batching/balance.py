"""Which rank gets which sequences, so that all ranks are done at about the same time.

A number of sequences each is no balance where lengths differ tenfold: all ranks then wait for the longest sum. What a
sequence of n tokens costs is a n + b n^2, since its attention grows with the square: `cost.sequence_flops`.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence


def largest_differencing(costs: Sequence[float], parts: int) -> list[list[int]]:
    """Indices into `costs`, in `parts` lists with sums as equal as can be had quickly (Karmarkar and Karp 1982).

    It begins with one partial solution for each cost, (cost, 0, ..., 0). Two solutions are joined by adding the largest
    sum of one to the smallest of the other, and so on; always those two that are most unequal in themselves,
    because they can even out most. n log n steps with `parts` numbers each. Lists are ascending; with fewer costs than
    parts, some are empty. Raises ValueError for a cost below 0.
    """
    if parts < 1:
        raise ValueError(f"parts={parts}: the number of ranks, at least 1")
    for i, cost in enumerate(costs):
        if not cost >= 0:
            raise ValueError(f"sequence {i} has the cost {cost!r}: a number of at least 0")
    # A solution: (-spread, number, sums, members); sums descending. The number decides between equals.
    heap = [(-float(c), i, [float(c)] + [0.0] * (parts - 1), [[i], *([] for _ in range(parts - 1))])
            for i, c in enumerate(costs)]  # fmt: skip
    heapq.heapify(heap)
    if parts == 1 or not heap:
        return [list(range(len(costs))), *([] for _ in range(parts - 1))]
    while len(heap) > 1:
        _, number, sums, members = heapq.heappop(heap)
        _, _, others, more = heapq.heappop(heap)
        joined = [(a + b, [*x, *y]) for a, b, x, y in zip(sums, others[::-1], members, more[::-1], strict=True)]
        joined.sort(key=lambda part: -part[0])
        sums, members = [a for a, _ in joined], [x for _, x in joined]
        heapq.heappush(heap, (sums[-1] - sums[0], number, sums, members))
    return [sorted(part) for part in heap[0][3]]


def imbalance(costs: Sequence[float], parts: Sequence[Sequence[int]]) -> float:
    """The largest sum over the mean sum: 1 when all are done together, N when one of N ranks does everything."""
    sums = [sum(costs[i] for i in part) for part in parts]
    if not sum(sums) > 0:
        raise ValueError("these parts cost nothing, so none is larger than the mean")
    return max(sums) * len(sums) / sum(sums)
