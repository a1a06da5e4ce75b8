"""Dissemination barrier: in round k rank r tells r + 2^k that it has come, and waits for r - 2^k.

After ceil(log2 p) rounds everyone has heard of everyone, for any p and with no root (Hensgen, Finkel &
Manber 1988). Messages carry no payload. Time is alpha-beta time (Hockney 1994): latencies only.
"""

from __future__ import annotations

from labkit.cost.collectives.checks import check
from labkit.cost.collectives.parts import ceil_log2


def dissemination_barrier_rounds(size: int) -> int:
    """ceil(log2 p)."""
    check(size=size)
    return ceil_log2(size)


def dissemination_barrier_bytes(nbytes: float, size: int) -> float:
    """0 payload bytes, whatever `nbytes` is."""
    check(nbytes=nbytes, size=size)
    return 0.0


def dissemination_barrier_bytes_by_rank(numel: int, itemsize: int, size: int) -> list[int]:
    """0 payload bytes from every rank."""
    check(numel=numel, itemsize=itemsize, size=size)
    return [0] * size


def dissemination_barrier_messages_by_rank(size: int) -> list[int]:
    """ceil(log2 p) from every rank."""
    return [dissemination_barrier_rounds(size)] * size


def dissemination_barrier_time(nbytes: float, size: int, alpha: float, beta: float) -> float:
    """ceil(log2 p) alpha seconds."""
    check(nbytes=nbytes, alpha=alpha, beta=beta)
    return dissemination_barrier_rounds(size) * alpha
