"""The fleet law: what a training step takes on N devices, and what of that is useful. Times in seconds.

    step(N) = compute / N + communication + synchronization - overlap

compute: the step's work on one device. communication: moving bytes, on N devices. synchronization: barriers and
waiting for the slowest. overlap: the communication that goes on while a device computes. From the textbook chapter
"Distributed Training"; it extends Amdahl's law (1967) by a cost that depends on N.
"""

from __future__ import annotations

import math

from labkit.cost.refuse import not_negative, positive, whole

__all__ = [
    "amdahl_ceiling",
    "communication_ceiling",
    "communication_ratio",
    "devices_for",
    "regime",
    "scaling_efficiency",
    "speedup",
    "step_seconds",
    "training_flops",
    "training_seconds",
]

COMPUTE, COMMUNICATION, COORDINATION = "compute-bound", "communication-bound", "coordination-bound"


def step_seconds(
    compute: float, size: int, communication: float = 0.0, synchronization: float = 0.0, overlap: float = 0.0
) -> float:
    """Seconds of one step on `size` devices by the fleet law.

    compute: on ONE device, for the whole batch of the step. For weak scaling that is the work of a rank times
    `size`. Raises ValueError where more is overlapped than can be: not more than the communication, and not
    more than the device computes. (The textbook chapter's own example hides 10.5 s behind 2.1 s.)
    """
    positive(compute=compute)
    whole(size=size)
    not_negative(communication=communication, synchronization=synchronization, overlap=overlap)
    room = min(communication, compute / size)
    if overlap > room * (1 + 1e-12):
        raise ValueError(
            f"overlap={overlap:g} s: at most {room:g} s can be hidden here, since a device communicates for "
            f"{communication:g} s and computes for {compute / size:g} s"
        )
    return compute / size + communication + synchronization - overlap


def scaling_efficiency(
    compute: float, size: int, communication: float = 0.0, synchronization: float = 0.0, overlap: float = 0.0
) -> float:
    """Useful part of the devices' time, compute / (size * step): 1 is linear scaling. Arguments of `step_seconds`.

    GPT-2 on 8 GPUs, 1.8 s of compute each and 11.67 ms of communication: 0.9936. With 4661.7 ms on 32: 0.2786.
    """
    return compute / (size * step_seconds(compute, size, communication, synchronization, overlap))


def speedup(
    compute: float, size: int, communication: float = 0.0, synchronization: float = 0.0, overlap: float = 0.0
) -> float:
    """How many times faster than one device: compute / step. Arguments of `step_seconds`."""
    return compute / step_seconds(compute, size, communication, synchronization, overlap)


def communication_ratio(compute: float, size: int, communication: float) -> float:
    """rho = communication / (compute / size): far below 1 the devices compute, from about 1 on they communicate."""
    positive(compute=compute)
    whole(size=size)
    not_negative(communication=communication)
    return communication / (compute / size)


def regime(computing: float, communication: float, synchronization: float = 0.0) -> str:
    """The largest of one device's three times: "compute-bound", "communication-bound" or "coordination-bound".

    computing: seconds that this device computes (compute / N). communication, synchronization: what is not hidden
    behind it. The textbook chapter names the regimes and gives no threshold; "the largest term" is this book's rule.
    Ties go to the first named.
    """
    not_negative(computing=computing, communication=communication, synchronization=synchronization)
    terms = {COMPUTE: computing, COMMUNICATION: communication, COORDINATION: synchronization}
    return max(terms, key=lambda name: terms[name])


def amdahl_ceiling(serial_fraction: float) -> float:
    """The most that devices without number can speed up a program: 1 / serial_fraction (Amdahl 1967).

    serial_fraction: the part of ONE device's time that cannot be divided.
    """
    _fraction(serial_fraction=serial_fraction)
    return 1 / serial_fraction


def communication_ceiling(fraction: float, size: int) -> float:
    """The most that more devices can bring over one device, if a step's undivided part stays as long as it is.

    fraction: the part of a step on `size` devices that is communication or synchronization, of which one device
    has none. One device computes size (1 - fraction) of such steps, so the ceiling is size (1 - fraction) / fraction.
    30 percent on 8 devices: 5.6 times as fast already, and 18.7 at most. The textbook chapter's "1 / 0.30 = 3x
    regardless of how many" takes a part of the divided step for Amdahl's part of the undivided one.
    """
    whole(size=size)
    _fraction(fraction=fraction)
    return size * (1 - fraction) / fraction


def _fraction(**values: float) -> None:
    for name, value in values.items():
        if isinstance(value, bool) or not 0 < value <= 1:
            raise ValueError(f"{name} must be a part, above 0 and at most 1, not {value!r}")


def training_flops(params: float, tokens: float) -> float:
    """Floating-point operations to train on `tokens` tokens: 6 params tokens (Kaplan et al. 2020, section 2.1)."""
    not_negative(params=params, tokens=tokens)
    return 6 * params * tokens


def training_seconds(params: float, tokens: float, flops_per_second: float, size: int = 1) -> float:
    """Seconds to train on `size` devices that each reach `flops_per_second` of useful work, all of the time.

    175B, 2e6 tokens, on 1,024 devices at half of 1979e12: 2.07 s, the step of the textbook's Napkin Math 1.5.
    """
    positive(flops_per_second=flops_per_second)
    whole(size=size)
    return training_flops(params, tokens) / (flops_per_second * size)


def devices_for(compute: float, deadline: float) -> int:
    """The fewest devices that do `compute` seconds of one device's work in `deadline` seconds, if none waits."""
    not_negative(compute=compute)
    positive(deadline=deadline)
    return max(1, math.ceil(compute / deadline))
