"""Dissemination barrier: in round k rank r tells r + 2^k that it has come, and waits for r - 2^k.

After ceil(log2 p) rounds everyone has heard of everyone, for any p and with no root (Hensgen, Finkel &
Manber 1988). Messages carry no payload. Time is alpha-beta time (Hockney 1994): latencies only.
"""

from __future__ import annotations

from labkit.cost.collectives.checks import check
from labkit.cost.collectives.forms import Form
from labkit.cost.collectives.parts import ceil_log2


class DisseminationBarrier(Form):
    """Everyone has heard of everyone. Time: ceil(log2 p) alpha seconds."""

    def rounds(self, size: int) -> int:
        """ceil(log2 p)."""
        check(size=size)
        return ceil_log2(size)

    def bytes(self, nbytes: float, size: int) -> float:
        """0 payload bytes, whatever `nbytes` is."""
        check(nbytes=nbytes, size=size)
        return 0.0

    def bytes_by_rank(self, numel: int, itemsize: int, size: int) -> list[int]:
        """0 payload bytes from every rank."""
        check(numel=numel, itemsize=itemsize, size=size)
        return [0] * size

    def time(self, nbytes: float, size: int, alpha: float, beta: float) -> float:
        """ceil(log2 p) alpha seconds."""
        check(nbytes=nbytes, alpha=alpha, beta=beta)
        return self.rounds(size) * alpha


dissemination_barrier = DisseminationBarrier("barrier", "dissemination")
