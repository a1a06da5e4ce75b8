"""Generating and training in turn: how long a step takes and how well a fleet is used, by where the models are.

A step has to do G of generating and T of training (which here includes the scoring by frozen models), both in
GPU-seconds: the seconds that one GPU would take, if N took 1/N of it.

    colocated        all N GPUs generate, then all train; between them weights and caches change places
    separate         g GPUs generate, then N - g train: each pool waits for the other
    separate, async  both at once, on rollouts that are a version old (`labkit.align.off_policy`)
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from labkit.cost.refuse import not_negative, positive, probability, whole

__all__ = [
    "best_generators",
    "colocated_seconds",
    "fleet_utilization",
    "separate_seconds",
    "separate_utilization_limit",
    "swap_seconds",
    "time_weighted_mfu",
]


def time_weighted_mfu(phases: Sequence[tuple[float, float]]) -> float:
    """The model FLOPs utilization of a step, from (share of its time, MFU in it) of each phase.

    Training at 40 percent in 40 percent of the step, and 60 percent of it that does not train: 16 percent; at 55
    percent in the same time 22. It is not the 40 percent of the time in which anything is trained: that is
    `time_weighted_mfu([(0.6, 0), (0.4, 1)])`, where training uses a GPU fully. Raises ValueError unless the shares add
    up to 1.
    """
    for share, mfu in phases:
        probability(share=share, mfu=mfu)
    if not math.isclose(sum(share for share, _ in phases), 1):
        raise ValueError(f"the phases' shares of the time add up to {sum(share for share, _ in phases):g}, not to 1")
    return sum(share * mfu for share, mfu in phases)


def swap_seconds(nbytes: float, bandwidth: float) -> float:
    """Seconds to move `nbytes` of a GPU's state out to the host and back in, at `bandwidth` bytes/s each way.

    35 GB over PCIe 5 at 64 GB/s: 1.09 s, so a step with phases of minutes hardly notices it.
    """
    not_negative(nbytes=nbytes)
    positive(bandwidth=bandwidth)
    return 2 * nbytes / bandwidth


def colocated_seconds(generating: float, training: float, gpus: int, swap: float = 0.0) -> float:
    """Seconds of a step where all GPUs do the one, then the other: (G + T) / N + swap.

    generating, training: in GPU-seconds. swap: seconds in which GPUs change from one to the other and back.
    """
    not_negative(generating=generating, training=training, swap=swap)
    whole(gpus=gpus)
    return (generating + training) / gpus + swap


def separate_seconds(generating: float, training: float, generators: int, trainers: int, overlap: bool) -> float:
    """Seconds of a step with a pool for each: G / g + T / t one after the other, the longer one if they overlap.

    overlap: the trainer learns from the rollouts of the step before, while the next ones are written.
    """
    not_negative(generating=generating, training=training)
    whole(generators=generators, trainers=trainers)
    both = (generating / generators, training / trainers)
    return max(both) if overlap else sum(both)


def best_generators(generating: float, training: float, gpus: int, overlap: bool) -> int:
    """GPUs of N to generate with, at least 1 and at most N - 1, so that `separate_seconds` is least.

    With overlap both pools are done together at g / t = G / T, without it the best is g / t = sqrt(G / T). The whole
    numbers on both sides of it are tried.
    """
    positive(generating=generating, training=training)
    whole(gpus=gpus)
    if gpus < 2:
        raise ValueError(f"gpus must be at least 2 for two pools, not {gpus}")
    ratio = generating / training if overlap else math.sqrt(generating / training)
    near = math.floor(gpus * ratio / (1 + ratio))
    tried = sorted({min(max(g, 1), gpus - 1) for g in (near, near + 1)})
    return min(tried, key=lambda g: separate_seconds(generating, training, g, gpus - g, overlap))


def fleet_utilization(generating: float, training: float, gpus: int, seconds: float) -> float:
    """The part of its GPU-seconds that a fleet works in a step of `seconds`: (G + T) / (N seconds)."""
    not_negative(generating=generating, training=training)
    whole(gpus=gpus)
    positive(seconds=seconds)
    return (generating + training) / (gpus * seconds)


def separate_utilization_limit(generating_share: float) -> float:
    """What two pools that wait for each other reach at most: (G + T) / (sqrt G + sqrt T)^2, G the share of both.

    A half for equal phases, 50.5 percent for 60 and 40, and near 1 only where one phase is hardly there. Overlap
    reaches 1, with a split by G / T, at the price of rollouts that are a version old.
    """
    probability(generating_share=generating_share)
    return 1 / (math.sqrt(generating_share) + math.sqrt(1 - generating_share)) ** 2
