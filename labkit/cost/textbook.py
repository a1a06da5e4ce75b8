"""Numbers on all-reduce that the textbook chapter states, recomputed from its inputs.

Bandwidth terms only, as there: no latency. The slow gradient synchronization has its own file, `slow_sync`.
"""

from __future__ import annotations

from dataclasses import dataclass

from labkit.cost.collectives.checks import check
from labkit.cost.collectives.ring import ring_all_reduce
from labkit.cost.links.wires import NVLINK_ONE_DIRECTION as NVLINK_ONE_DIRECTION, TEN_GIGABIT as TEN_GIGABIT
from labkit.cost.parallel.tensor import (
    tensor_parallel_payload_bytes as tensor_parallel_payload_bytes,  # chapter 3 knows it from here
)
from labkit.cost.units import GB

GPT2_GRADIENT = 3 * GB  # 1.5e9 parameters of 2 bytes


@dataclass(frozen=True)
class Stated:
    """Bytes that one rank sends, and the seconds they take at a given bandwidth."""

    nbytes: float
    seconds: float


def ring_at(nbytes: float, size: int, bandwidth: float) -> Stated:
    """A ring all-reduce of `nbytes` over `size` ranks at `bandwidth` bytes per second, without latency.

    GPT-2 on 8 GPUs, NVLink at 450 GB/s: 5.25 GB, 11.67 ms. On 32 GPUs over 1.25 GB/s: 5.8125 GB, 4650 ms;
    one ring over all 32 at the pace of the Ethernet, to which the chapter adds the 11.67 ms inside the node,
    though such a ring has them already. 175B by tensor parallelism of 8 and data parallelism of 128, 43.75
    GB over 50 GB/s: 1736 ms and, with 2.1 s of compute, 54.7 percent. The chapter has "approximately 1.75
    seconds" and 54.5 percent: a factor of 2, or that of all 1,024 ranks (1748 ms), but only 128 take part.
    """
    if not bandwidth > 0:
        raise ValueError(f"bandwidth (bytes per second) must be above 0, not {bandwidth!r}")
    return Stated(ring_all_reduce.bytes(nbytes, size), ring_all_reduce.time(nbytes, size, 0, 1 / bandwidth))


def tensor_parallel_traffic_bytes(payload: float, size: int, layers: int, all_reduces_per_layer: int = 2) -> float:
    """Bytes that each rank sends for `layers` layers: 2 (t - 1) / t * payload for each all-reduce.

    175B at t = 8: 4.228 GB forward for 6 layers, 8.456 GB with the backward pass (4 a layer), 67.65 GB
    forward for 96. The chapter's 134 MB for a payload of 67.1 MB takes the factor as 2; at t = 8 it is 7/4,
    and 117.4 MB.
    """
    check(numel=layers)
    check(numel=all_reduces_per_layer)
    return layers * all_reduces_per_layer * ring_all_reduce.bytes(payload, size)
