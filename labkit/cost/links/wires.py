"""Three links that training clusters are built with, and what a message costs on each: alpha + nbytes * beta.

Bandwidths are in one direction: NVLink 450 GB/s (half of the 900 GB/s in NVIDIA's data sheet of the H100), InfiniBand
NDR 400 Gbit/s a port (NVIDIA's data sheet of the ConnectX-7), 10-gigabit Ethernet (IEEE 802.3ae). The textbook chapter
"Distributed Training" has the same numbers. It states no latencies. Those here are one hop of a ring in NCCL's own
cost model (src/graph/tuning.cc in 2024, table hwLat, ring, protocol Simple): 3.4 µs over NVLink, 14 µs over a network.
The table knows one kind of network: Ethernet through the kernel's TCP takes longer than 14 µs.
"""

from __future__ import annotations

from dataclasses import dataclass

from labkit.cost.collectives.checks import check
from labkit.cost.units import GB, US, Gb

NVLINK_ONE_DIRECTION = 450 * GB  # bytes per second
TEN_GIGABIT = 1.25 * GB

BANDWIDTH_SOURCE = "NVIDIA, data sheets of the H100 and the ConnectX-7; IEEE 802.3ae"
LATENCY_SOURCE = "NCCL, src/graph/tuning.cc"


@dataclass(frozen=True)
class Wire:
    """A link. bandwidth: bytes per second in one direction. alpha: seconds of latency a message."""

    name: str
    bandwidth: float
    alpha: float

    @property
    def beta(self) -> float:
        """Seconds a byte."""
        return 1 / self.bandwidth

    @property
    def half_size(self) -> float:
        """The message size in bytes at which half of the bandwidth is used: alpha / beta (Hockney's n_1/2)."""
        return self.alpha * self.bandwidth

    def seconds(self, nbytes: float) -> float:
        """The time of one message of `nbytes` on an idle link."""
        check(nbytes=nbytes)
        return self.alpha + nbytes * self.beta

    def share(self, nbytes: float) -> float:
        """The part of the bandwidth that messages of `nbytes`, one after the other, reach: n / (n + n_1/2)."""
        return nbytes * self.beta / self.seconds(nbytes)


NVLINK = Wire("NVLink", NVLINK_ONE_DIRECTION, 3.4 * US)
INFINIBAND = Wire("InfiniBand", 400 * Gb, 14 * US)
ETHERNET = Wire("Ethernet", TEN_GIGABIT, 14 * US)
WIRES = (NVLINK, INFINIBAND, ETHERNET)


def step_seconds(compute: float, message: float, overlapped: bool) -> float:
    """A step that computes and sends, `compute` and `message` seconds long: their sum, or overlapped the longer one."""
    check(seconds=compute)
    check(seconds=message)
    return max(compute, message) if overlapped else compute + message


def hidden_seconds(compute: float, message: float) -> float:
    """What overlap saves of such a step: the shorter of the two."""
    return step_seconds(compute, message, False) - step_seconds(compute, message, True)
