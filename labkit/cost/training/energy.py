"""The energy of moving bytes, and the price of a run."""

from __future__ import annotations

from labkit.cost.refuse import not_negative, positive, whole
from labkit.cost.units import HOUR

__all__ = [
    "INFINIBAND_PICOJOULES",
    "NVLINK_PICOJOULES",
    "movement_joules",
    "movement_watts",
    "price",
    "price_per_gpu_hour",
]

# Energy of a bit over a link, in picojoules, as the textbook chapter "Distributed Training" has it (section 1.3.2).
NVLINK_PICOJOULES, INFINIBAND_PICOJOULES = 7.5, 35.0


def movement_joules(nbytes: float, picojoules_per_bit: float) -> float:
    """Joules to move `nbytes` over a link: 8 bits a byte.

    The 5.25 GB that each rank sends for GPT-2's gradient: 0.315 J over NVLink, 1.47 J over InfiniBand.
    """
    not_negative(nbytes=nbytes)
    positive(picojoules_per_bit=picojoules_per_bit)
    return nbytes * 8 * picojoules_per_bit * 1e-12


def movement_watts(bytes_per_second: float, picojoules_per_bit: float, size: int = 1) -> float:
    """Watts that `size` devices take to move bytes at this rate each, all of the time.

    10,000 GPUs: 540 kW at 900 GB/s and 7.5 pJ a bit (NVLink), 140 kW at 50 GB/s and 35 pJ (InfiniBand). The textbook
    chapter counts NVLink in both directions there and InfiniBand in one: a bit that is sent and received once is in 900
    GB/s twice. One direction of both is 270 and 140 kW.
    """
    whole(size=size)
    not_negative(bytes_per_second=bytes_per_second)
    return size * movement_joules(bytes_per_second, picojoules_per_bit)


def price(seconds: float, nodes: int, per_node_hour: float) -> float:
    """What `nodes` nodes cost for `seconds`: seconds / 3600 * nodes * per_node_hour.

    One node of $128 an hour for 3.125 h: $400.
    """
    not_negative(seconds=seconds, per_node_hour=per_node_hour)
    whole(nodes=nodes)
    return seconds / HOUR * nodes * per_node_hour


def price_per_gpu_hour(total: float, seconds: float, size: int) -> float:
    """What one of `size` GPUs cost an hour, if the run of `seconds` cost `total`."""
    not_negative(total=total)
    positive(seconds=seconds)
    whole(size=size)
    return total / (size * seconds / HOUR)
