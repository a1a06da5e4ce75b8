"""Gradient accumulation: K microbatches for one exchange of gradients. What it saves, and what it costs.

It saves K - 1 of K exchanges. It costs updates: each sample of a longer step sees the same weights (the batch grows, as
with more ranks). And it costs memory where gradients are cut among ranks: a gradient that was not exchanged yet is
whole on every rank. Times in seconds; N ranks, M bytes of parameters.
"""

from __future__ import annotations

from labkit.cost.collectives.ring import ring_all_gather, ring_all_reduce, ring_reduce_scatter
from labkit.cost.parallel.zero import STAGES
from labkit.cost.refuse import not_negative, one_of, positive, whole

__all__ = [
    "accumulated_step_seconds",
    "accumulation_bytes_per_step",
    "accumulation_gradient_bytes",
    "accumulation_overhead",
    "exchanges_saved",
]


def accumulated_step_seconds(
    compute: float, communication: float, microbatches: int, *, exchange_each: bool = False
) -> float:
    """One update of `microbatches` microbatches, without overlap: K compute + communication.

    compute: of one microbatch. exchange_each: gradients are exchanged after every microbatch (no `no_sync`).
    """
    _check(compute, communication, microbatches)
    return microbatches * compute + communication * (microbatches if exchange_each else 1)


def accumulation_overhead(compute: float, communication: float, microbatches: int) -> float:
    """Communication over computing, communication / (K compute).

    GPT-2 on 8 GPUs, 1.8 s and 11.67 ms, K = 4: 0.162 percent. (The textbook chapter has 0.081: it divides the bytes by
    both directions of the link there, and by one direction two pages before.)
    """
    _check(compute, communication, microbatches)
    return communication / (microbatches * compute)


def exchanges_saved(microbatches: int) -> float:
    """The part of the exchanges that accumulation saves: (K - 1) / K, 75 percent for 4 microbatches."""
    whole(microbatches=microbatches)
    return (microbatches - 1) / microbatches


def accumulation_bytes_per_step(
    params: float, size: int, stage: int, microbatches: int, *, exchange_each: bool = False, itemsize: int = 2
) -> float:
    """Bytes that each rank sends for one update of `microbatches` microbatches.

    stage: of ZeRO. At stage 3 the parameters are gathered twice in every microbatch, whatever happens to gradients.
    Stages 1 and 2 gather them once, after the update.
    """
    not_negative(params=params)
    whole(size=size, microbatches=microbatches, itemsize=itemsize)
    one_of(STAGES, stage=stage)
    nbytes, exchanges = params * itemsize, microbatches if exchange_each else 1
    if stage == 0:
        return exchanges * ring_all_reduce.bytes(nbytes, size)
    gathers = 2 * microbatches if stage == 3 else 1
    return exchanges * ring_reduce_scatter.bytes(nbytes, size) + gathers * ring_all_gather.bytes(nbytes, size)


def accumulation_gradient_bytes(
    params: float, size: int, stage: int, *, exchange_each: bool = False, itemsize: int = 2
) -> float:
    """Bytes of gradients that each rank keeps from one microbatch to the next.

    All of them, unless they are cut (stages 2 and 3) and exchanged each time: then a part of N. 7B in 16 bits: 14 GB,
    or 0.22 GB on 64 ranks. It is one buffer, however many microbatches there are.
    """
    not_negative(params=params)
    whole(size=size, itemsize=itemsize)
    one_of(STAGES, stage=stage)
    return params * itemsize / (size if stage >= 2 and exchange_each else 1)


def _check(compute: float, communication: float, microbatches: int) -> None:
    positive(compute=compute)
    not_negative(communication=communication)
    whole(microbatches=microbatches)
