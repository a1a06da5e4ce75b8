"""Tensor parallelism: what the ranks of a group send, by layer, stage and step, with and without sequence parallelism.

A layer has two column-then-row pairs, attention and feed-forward. Each ends in one all-reduce in the forward pass and
begins with one in the backward pass: 2 + 2 a layer and microbatch, of s b h values each (Shoeybi et al. 2019, section
3). With sequence parallelism (Korthikanti et al. 2022, section 4.2) each all-reduce is a reduce-scatter and an
all-gather, which a ring all-reduce is made of: as many bytes. Everything is by ring. Bytes are those that a rank sends.
"""

from __future__ import annotations

from dataclasses import dataclass

from labkit.cost.collectives.links import Links
from labkit.cost.collectives.registry import cost_of
from labkit.cost.collectives.ring import ring_all_gather, ring_all_reduce, ring_reduce_scatter
from labkit.cost.refuse import one_of, whole

__all__ = [
    "TensorParallelCalls",
    "tensor_parallel_bytes",
    "tensor_parallel_bytes_by_rank",
    "tensor_parallel_calls",
    "tensor_parallel_payload_bytes",
    "tensor_parallel_seconds",
]

PASSES = ("forward", "backward", "both")
PAIRS_PER_LAYER = 2  # attention and feed-forward


def tensor_parallel_payload_bytes(batch: int, sequence: int, hidden: int, itemsize: int = 2) -> int:
    """Bytes of the activation that one all-reduce sums: s b h values. 201.33 MB for 175B at b = 4, s = 2048."""
    whole(batch=batch, sequence=sequence, hidden=hidden, itemsize=itemsize)
    return batch * sequence * hidden * itemsize


@dataclass(frozen=True)
class TensorParallelCalls:
    """How often a rank calls each collective."""

    all_reduce: int = 0
    all_gather: int = 0
    reduce_scatter: int = 0


def tensor_parallel_calls(
    layers: int,
    microbatches: int = 1,
    *,
    passes: str = "both",
    sequence_parallel: bool = False,
    gather_again: bool = False,
    recompute: bool = False,
) -> TensorParallelCalls:
    """Collectives of `layers` layers in one step. Two all-reduces a layer in each pass.

    passes: "forward", "backward" or "both". recompute: every layer is computed again before its backward pass ("full"
    recomputation), so the backward pass has the collectives of a forward pass too. sequence_parallel: an all-gather
    and a reduce-scatter in place of each all-reduce. gather_again: with it, a rank keeps its own part of what a
    column-parallel map read and gathers it anew for the weights' gradient: two more all-gathers a layer. (Korthikanti
    et al. do that: their activations are 34 s b h / t only so.) Without, what was gathered is kept.
    """
    whole(layers=layers, microbatches=microbatches)
    one_of(PASSES, passes=passes)
    if gather_again and not sequence_parallel:
        raise ValueError("gather_again=True needs sequence_parallel=True: without it nothing was gathered")
    forward = passes != "backward"
    backward = passes != "forward"
    pairs = PAIRS_PER_LAYER * layers * microbatches
    rounds = pairs * (forward + backward * (2 if recompute else 1))
    if not sequence_parallel:
        return TensorParallelCalls(all_reduce=rounds)
    again = pairs if gather_again and backward else 0
    return TensorParallelCalls(all_gather=rounds + again, reduce_scatter=rounds)


def tensor_parallel_bytes(
    batch: int,
    sequence: int,
    hidden: int,
    layers: int,
    size: int,
    *,
    microbatches: int = 1,
    passes: str = "both",
    sequence_parallel: bool = False,
    gather_again: bool = False,
    recompute: bool = False,
    itemsize: int = 2,
) -> float:
    """Bytes that each of `size` ranks sends for `layers` layers, if they divide evenly; options as above.

    batch: of one microbatch. A layer: layers=1. A stage: its layers. A step: its microbatches too. Each all-reduce is
    2 (t-1)/t s b h values; an all-gather or a reduce-scatter half of that. 175B, b = 4, t = 8: 1.409 GB a layer; 8.456
    GB a stage of 6 layers, half of it in the forward pass; 270.6 GB a step of 32 microbatches.
    """
    payload = tensor_parallel_payload_bytes(batch, sequence, hidden, itemsize)
    calls = tensor_parallel_calls(
        layers, microbatches, passes=passes, sequence_parallel=sequence_parallel, gather_again=gather_again,
        recompute=recompute,
    )  # fmt: skip
    halves = calls.all_gather + calls.reduce_scatter
    return calls.all_reduce * ring_all_reduce.bytes(payload, size) + halves * ring_all_gather.bytes(payload, size)


def tensor_parallel_bytes_by_rank(
    batch: int,
    sequence: int,
    hidden: int,
    layers: int,
    size: int,
    *,
    microbatches: int = 1,
    passes: str = "both",
    sequence_parallel: bool = False,
    gather_again: bool = False,
    recompute: bool = False,
    itemsize: int = 2,
) -> list[int]:
    """Bytes that each rank sends, exact for any sizes.

    An all-reduce is cut into parts of its s b h values; under sequence parallelism parts are whole positions of the
    sequence, so that the two differ from each other where `size` does not divide the sequence.
    """
    whole(batch=batch, sequence=sequence, hidden=hidden, itemsize=itemsize, size=size)
    calls = tensor_parallel_calls(
        layers, microbatches, passes=passes, sequence_parallel=sequence_parallel, gather_again=gather_again,
        recompute=recompute,
    )  # fmt: skip
    position = batch * hidden * itemsize
    reduced = ring_all_reduce.bytes_by_rank(batch * sequence * hidden, itemsize, size)
    gathered = ring_all_gather.bytes_by_rank(sequence, position, size)
    scattered = ring_reduce_scatter.bytes_by_rank(sequence, position, size)
    return [
        calls.all_reduce * reduced[r] + calls.all_gather * gathered[r] + calls.reduce_scatter * scattered[r]
        for r in range(size)
    ]


def tensor_parallel_seconds(
    batch: int,
    sequence: int,
    hidden: int,
    layers: int,
    size: int,
    links: Links,
    *,
    microbatches: int = 1,
    passes: str = "both",
    recompute: bool = False,
    itemsize: int = 2,
) -> float:
    """Seconds of all all-reduces of `layers` layers, one after the other, with nothing hidden behind computing.

    links: alpha and beta of the wires; where the group crosses nodes the ring goes at the pace of the slower ones.
    """
    payload = tensor_parallel_payload_bytes(batch, sequence, hidden, itemsize)
    calls = tensor_parallel_calls(layers, microbatches, passes=passes, recompute=recompute)
    return calls.all_reduce * cost_of("all_reduce", "ring").seconds_on(payload, size, links)
