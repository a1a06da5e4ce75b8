"""Scaling efficiency, from measured times; and what two measured sizes say about a third, with an error.

Strong scaling: the same work on more ranks. Weak scaling: the same work on each rank, so that all of them do more.
Times in seconds. The fleet law and its terms are in `fleet`.
"""

from __future__ import annotations

from collections.abc import Callable

from labkit.cost.refuse import not_negative, positive, whole

__all__ = [
    "amdahl_speedup",
    "equivalent_ranks",
    "fastest_size",
    "goodput",
    "mfu",
    "strong_efficiency",
    "weak_efficiency",
]


def strong_efficiency(one: float, many: float, size: int) -> float:
    """one / (size * many): times of the same work on 1 rank and on `size` ranks. 1 is linear scaling."""
    positive(one=one, many=many)
    whole(size=size)
    return one / (size * many)


def weak_efficiency(one: float, many: float) -> float:
    """one / many: times of a step of 1 rank with a batch b, and of N ranks with a batch N b (Gustafson 1988).

    GPT-2, 1.8 s alone and 6.4617 s among 32 GPUs: 27.86 percent.
    """
    positive(one=one, many=many)
    return one / many


def equivalent_ranks(efficiency: float, size: int) -> float:
    """How many perfectly scaling ranks would do as much: efficiency * size. 10,000 at one half do the work of 5,000."""
    positive(efficiency=efficiency)
    whole(size=size)
    return efficiency * size


def mfu(params: float, tokens: float, seconds: float, size: int, peak_flops: float) -> float:
    """Model FLOP utilization: 6 params tokens / (seconds * size * peak_flops), measured on `size` devices.

    tokens: in one step; seconds: of that step. Only the model's own work counts, not what is computed again
    (Chowdhery et al. 2022, section 4.1). peak_flops: of one device, from its data sheet.
    """
    positive(params=params, tokens=tokens, seconds=seconds, peak_flops=peak_flops)
    whole(size=size)
    return 6 * params * tokens / (seconds * size * peak_flops)


def goodput(single_mfu: float, efficiency: float) -> float:
    """The useful part of a fleet's peak: the MFU of ONE device (or node) times the scaling efficiency from there.

    0.5 * 0.5 = 0.25: 1,024 GPUs do what 256 would at their peak. An MFU measured on the whole fleet is this product
    already, and multiplying it again counts the loss twice.
    """
    positive(single_mfu=single_mfu, efficiency=efficiency)
    return single_mfu * efficiency


def amdahl_speedup(size: int, serial_fraction: float, communication: Callable[[int], float] | float = 0.0) -> float:
    """Speedup on `size` ranks: 1 / (s + (1 - s) / N + c(N)) (Amdahl 1967, with communication added).

    serial_fraction s: the part of ONE rank's time that cannot be divided. communication c: in units of one rank's
    time, a number or a function of N; what overlap hides is not in it. Where c grows with N the speedup has a maximum.
    """
    whole(size=size)
    not_negative(serial_fraction=serial_fraction)
    if serial_fraction > 1:
        raise ValueError(f"serial_fraction must be a part, from 0 to 1, not {serial_fraction!r}")
    extra = communication(size) if callable(communication) else communication
    not_negative(communication=extra)
    return 1 / (serial_fraction + (1 - serial_fraction) / size + extra)


def fastest_size(speedup: Callable[[int], float], limit: int = 2**20) -> int:
    """The number of ranks, from 1 to `limit`, with the highest `speedup`, if that rises to one peak and then falls."""
    whole(limit=limit)
    low, high = 1, limit
    while low < high:
        middle = (low + high) // 2
        if speedup(middle + 1) > speedup(middle):
            low = middle + 1
        else:
            high = middle
    return low
