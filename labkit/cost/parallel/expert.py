"""Mixtures of experts: capacity, balance, and what tokens send on their way to experts and back. Bytes by rank.

Lepikhin et al. 2020 ("GShard"), Fedus et al. 2021 ("Switch Transformer"), Rajbhandari et al. 2022 ("DeepSpeed-MoE").
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from labkit.cost.refuse import divides, positive, whole

__all__ = [
    "COUNT_BYTES",
    "balance_loss",
    "dispatch_bytes_by_rank",
    "dispatch_payload_bytes",
    "expert_capacity",
    "expert_imbalance",
    "routing_bytes",
]

COUNT_BYTES = 8  # of one number that says how many tokens go somewhere: int64


def expert_capacity(tokens: int, experts: int, factor: float = 1.0, choices: int = 1) -> int:
    """Choices that one expert takes: ceil(factor tokens choices / experts), and at least one (Switch, equation 3)."""
    whole(tokens=tokens, experts=experts, choices=choices)
    positive(factor=factor)
    return max(1, math.ceil(round(factor * tokens * choices / experts, 9)))


def balance_loss(load: Sequence[float], probabilities: Sequence[float]) -> float:
    """e sum_i f_i P_i: 1 where everything is even, e where one expert gets all (Switch, equation 4).

    load: choices of each expert. probabilities: the mean over the tokens of what the router gives each.
    """
    total = sum(load)
    positive(load=total)
    return len(load) * sum(n / total * p for n, p in zip(load, probabilities, strict=True))


def expert_imbalance(load: Sequence[float]) -> float:
    """The most loaded expert over the mean: a layer takes that many times as long as a balanced one."""
    positive(load=sum(load))
    return max(load) * len(load) / sum(load)


def dispatch_payload_bytes(tokens: int, width: int, choices: int = 1, itemsize: int = 2) -> int:
    """Bytes of all tokens on their way to their experts. They come back in as many.

    64 experts, 4 sequences of 2,048 tokens, a width of 4,096, 16 bits: 67.1 MB there, and 134.2 MB there and back.
    """
    whole(tokens=tokens, width=width, choices=choices, itemsize=itemsize)
    return tokens * choices * width * itemsize


def routing_bytes(size: int, experts: int, choices: int) -> int:
    """Bytes of counts that a rank sends so that all know everybody's choices: an all-gather of k e numbers."""
    whole(size=size, experts=experts, choices=choices)
    return (size - 1) * choices * experts * COUNT_BYTES


def dispatch_bytes_by_rank(
    rows: Sequence[Sequence[int]], width: int, experts: int, itemsize: int = 2, passes: int = 1
) -> list[int]:
    """Bytes of one hop, there and back. rows[r][s]: rows of rank r for experts of rank s.

    passes: 1 is the forward pass, with the counts that go ahead of the rows; 2 has the backward pass too, whose
    gradients take the same way and need no counts.
    """
    n = len(rows)
    whole(size=n, width=width, experts=experts, itemsize=itemsize, passes=passes)
    divides(size=n, experts=experts)
    ahead = (n - 1) * experts // n * COUNT_BYTES
    moved = [sum(rows[r]) + sum(other[r] for other in rows) - 2 * rows[r][r] for r in range(n)]
    return [ahead + passes * width * itemsize * m for m in moved]
