"""What chapter 15 asks its reader to write: groups on a mesh, a norm that counts once, bytes, seconds, a search."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from labkit.chapters.c15_hybrid_parallelism.meshed import everybody_finds_his_groups, everything_counts_once
from labkit.chapters.c15_hybrid_parallelism.planned import (
    Fits,
    Seconds,
    ranks_hold_as_much,
    the_fastest_that_fits,
    the_step_takes_that_long,
)
from labkit.collectives import all_reduce
from labkit.grading.writing import you_write
from labkit.wire import Group


@you_write(everybody_finds_his_groups)
def my_groups(rank: int, sizes: Mapping[str, int]) -> tuple[dict[str, int], dict[str, list[int]]]:
    """My coordinate along each axis, and the ranks that differ from me in it alone."""
    at, groups, stride = {}, {}, math.prod(sizes.values())
    for axis, size in sizes.items():
        stride //= size
        at[axis] = rank // stride % size
        first = rank - at[axis] * stride
        groups[axis] = [first + i * stride for i in range(size)]
    return at, groups


@you_write(everything_counts_once)
def grad_norm(pieces: Sequence[tuple[Tensor, int]], group: Group) -> float:
    """The norm of the whole gradient. pieces: (gradient, how many ranks hold it)."""
    total = torch.zeros(1, dtype=torch.float64)
    for gradient, copies in pieces:
        total += gradient.double().square().sum() / copies
    return all_reduce(total, group).sqrt().item()


@you_write(ranks_hold_as_much)
def state_bytes(params: float, t: int, p: int, d: int, weight: float, gradient: float, optimizer: float) -> float:
    """Bytes of state on a GPU with ZeRO-1. The last three are bytes of a parameter."""
    return params / (t * p) * (weight + gradient + optimizer / d)


@you_write(the_step_takes_that_long)
def step_seconds(t: int, p: int, m: int, layers: int, layer: float, sums: float, gradients: float) -> float:
    """Seconds of a step: m microbatches through p stages, each layer on t ranks."""
    stage = layers / p * (layer / t + sums)  # of one microbatch
    return (m + p - 1) * stage + gradients


@you_write(the_fastest_that_fits)
def best_cut(gpus: int, heads: int, layers: int, fits: Fits, seconds: Seconds) -> tuple[int, int, int] | None:
    """The fastest (t, p, d) that fits, or None. Ask `seconds` of cuts that fit only."""
    fitting = []
    for t in range(1, heads + 1):
        for p in range(1, layers + 1):
            if heads % t == 0 and gpus % (t * p) == 0:
                cut = t, p, gpus // (t * p)
                if fits(*cut):
                    fitting.append(cut)
    return min(fitting, key=lambda cut: seconds(*cut), default=None)
