"""Numbers on all-reduce that the textbook chapter states, recomputed from its inputs.

Bandwidth terms only, as there: no latency. The slow gradient synchronization has its own file, `slow_sync`.
"""

from __future__ import annotations

import math
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


def expert_room(capacity_factor: float, choices: int) -> float:
    """Places at all experts together, by a capacity of C (B S) / E each, over what a router with `choices` sends.

    The textbook's capacity knows no `choices`: with its C of 1.25 and a top-2 router there is room for 62.5 percent.
    """
    check(numel=choices)
    return capacity_factor / choices


FORMATS = {"FP32": (8, 23), "FP16": (5, 10), "BF16": (8, 7), "E4M3": (4, 3), "E5M2": (5, 2)}  # exponent, mantissa bits
LARGEST = {"E4M3": 448.0}  # it has no infinity, so its highest exponent counts numbers too (Micikevicius et al. 2022)


def dynamic_range(name: str) -> float:
    """Largest over smallest normal number of a format.

    2.9e4 for E4M3, 9.4e8 for E5M2, 1.1e9 for FP16, 2.9e76 for BF16. The textbook's "10^4 to 10^5 smaller than FP16 or
    BF16" holds between E4M3 and FP16 only.
    """
    exponent, mantissa = FORMATS[name]
    bias = 2 ** (exponent - 1) - 1
    largest = LARGEST.get(name, (2 - 2.0**-mantissa) * 2.0**bias)
    return largest / 2.0 ** (1 - bias)


def decades_apart(wide: str, narrow: str) -> float:
    """Powers of ten between the dynamic ranges of two formats: 72.0 from E4M3 to BF16, 4.6 to FP16."""
    return math.log10(dynamic_range(wide) / dynamic_range(narrow))


def infinities(name: str) -> int:
    """Bit patterns of a format that mean infinity: 2, or 0 for E4M3, which spends its highest exponent on numbers."""
    exponent, mantissa = FORMATS[name]
    return 0 if LARGEST.get(name, 0) > (2 - 2.0**-mantissa) * 2.0 ** (2 ** (exponent - 1) - 1) else 2


def warmup_rate(step: int, warmup: int, factor: float) -> float:
    """Learning rate in base rates at `step` of a linear warmup from the base rate to `factor` times as much.

    The textbook's formula of section 1.3.5, which begins at 1; its self-check begins at 0.
    """
    return 1 + min(step / warmup, 1) * (factor - 1)


def best_rate(samples: int, steps: int, first_has_rate: bool = True) -> float:
    """The rate that minimizes a / (steps [rate]) + rate / samples, both constants 1, of 1,500 that were tried.

    The bound of the textbook's Theorem 1.1 has no rate in its first term (`first_has_rate=False`), so the smallest
    rate is always the best. With it the rate grows like sqrt(samples / steps), as its next sentence says.
    """
    rates = [0.001 * 1.01**k for k in range(1500)]
    return min(rates, key=lambda rate: 1 / (steps * (rate if first_has_rate else 1)) + rate / samples)


def rollout_seconds(nbytes: float, tokens: int, gpus: int, bandwidth: float) -> float:
    """Least time to generate `tokens` one after the other: each needs all weights, read by all GPUs at once.

    70B in 16 bits (140 GB), 1,024 tokens, 32 GPUs of 3.35 TB/s: 1.34 s, and longer with stages, which take turns. The
    textbook has the fleet change its mode "across tens of milliseconds".
    """
    check(numel=tokens)
    return tokens * nbytes / (gpus * bandwidth)
