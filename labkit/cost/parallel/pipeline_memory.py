"""How many microbatches each rank of a pipeline holds activations of, by schedule, and what that is in bytes.

A rank holds a microbatch from its forward pass to its backward pass. Where the backward pass comes in two (zero-bubble
schedules), it then still holds what the weights' gradient needs, which is less: M_W of Qi et al. 2023.
"""

from __future__ import annotations

from dataclasses import dataclass

from labkit.cost.parallel.tensor_memory import tensor_parallel_activation_bytes, weight_gradient_activation_bytes
from labkit.cost.refuse import divides, one_of, whole
from labkit.cost.shapes import Shape

__all__ = [
    "InFlight",
    "in_flight_by_rank",
    "in_flight_microbatches",
    "pipeline_activation_bytes_by_rank",
    "weight_versions_by_rank",
]

MEMORY_SCHEDULES = ("naive", "gpipe", "one_f_one_b", "interleaved", "zb_h1", "zb_h2", "zb_v", "v_half", "pipedream")


@dataclass(frozen=True)
class InFlight:
    """The most that a rank holds at a time, in chunks of its layers times microbatches.

    activations: forward pass done, input gradient not. waiting: input gradient done, weight gradient not. Both are
    reached together. With one chunk a rank, the unit is a microbatch.
    """

    activations: int
    waiting: int = 0

    @property
    def total(self) -> int:
        """Both together: what is held if M_W were as large as M_B."""
        return self.activations + self.waiting


def in_flight_by_rank(schedule: str, stages: int, microbatches: int, chunks: int = 1) -> list[InFlight]:
    """High-water mark of each rank r of p, exact.

    naive 1; gpipe m; one_f_one_b and pipedream p - r; interleaved (v-1) p + 2 (p-r-1) + 1 chunks; zb_h1 p - r and r
    waiting; zb_h2 2 (p-r) - 1 and 2 r waiting (Qi et al. 2023, section 2.3); zb_v 2p and v_half 2 floor(p/2) + 2
    chunks, of which they have two. Never more than there are microbatches. For 1F1B that is the warm-up of p - r - 1
    forward passes and one more.
    Interleaved goes through a chunk in rounds of p microbatches; where p does not divide m in m // p longer ones.
    """
    chunks = _chunks(schedule, stages, microbatches, chunks)
    round_length = microbatches // max(1, microbatches // stages)
    marks = []
    for rank in range(stages):
        behind = stages - rank  # ranks from this one to the end
        active = {
            "naive": 1,
            "gpipe": microbatches,
            "interleaved": (chunks - 1) * round_length + 2 * (behind - 1) + 1,
            "zb_h2": 2 * behind - 1,
            "zb_v": min(2 * stages, microbatches + 1 + rank),
            "v_half": min(2 * (stages // 2) + 2, microbatches + 1 + rank // 2),
        }.get(schedule, behind)
        active = min(active, chunks * microbatches)
        waiting = {"zb_h1": rank, "zb_h2": 2 * rank}.get(schedule, 0)
        marks.append(InFlight(active, min(waiting, chunks * microbatches - active)))
    return marks


def in_flight_microbatches(schedule: str, stages: int, microbatches: int, chunks: int = 1) -> list[float]:
    """The same in microbatches of all layers of a rank: chunks over v, and what waits counted whole.

    Interleaving holds p (1 + (p-1) / (p v)) on rank 0 where 1F1B holds p; zb_h1 and zb_v p, zb_h2 2p-1,
    and v_half floor(p/2) + 1, on every rank.
    """
    marks = in_flight_by_rank(schedule, stages, microbatches, chunks)
    return [mark.total / _chunks(schedule, stages, microbatches, chunks) for mark in marks]


def weight_versions_by_rank(stages: int, microbatches: int) -> list[int]:
    """Versions of its weights that each rank of PipeDream keeps: one a microbatch in flight, p - r (Narayanan 2019).

    Rank 0 holds p copies. The schedules that flush (all others here) hold one.
    """
    return [mark.activations for mark in in_flight_by_rank("pipedream", stages, microbatches)]


def pipeline_activation_bytes_by_rank(
    shape: Shape,
    schedule: str,
    stages: int,
    microbatches: int,
    batch: int = 1,
    *,
    chunks: int = 1,
    tensor: int = 1,
    sequence_parallel: bool = False,
    strategy: str = "all",
) -> list[float]:
    """The most bytes of activations on each rank. batch: sequences of a microbatch. 16-bit values, with dropout.

    Layers are shared out evenly (as a fraction, if they do not divide). strategy: "all", "selective" or "full"
    recomputation. With "full" one layer is computed again at a time, whose activations are not counted.
    What waits for its weight gradient is M_W of `weight_gradient_activation_bytes` a microbatch.

    Rank 0 of 1F1B holds p microbatches of L / p layers: those of all L layers of one microbatch, whatever p is.
    """
    divides(tensor=tensor, heads=shape.heads)
    layer = tensor_parallel_activation_bytes(
        batch, shape.sequence, shape.hidden, 1, shape.heads, tensor, sequence_parallel=sequence_parallel,
        strategy=strategy,
    )  # fmt: skip
    waits = weight_gradient_activation_bytes(
        batch, shape.sequence, shape.hidden, 1, tensor, sequence_parallel=sequence_parallel
    )
    marks = in_flight_by_rank(schedule, stages, microbatches, chunks)
    layers = shape.layers / (stages * _chunks(schedule, stages, microbatches, chunks))
    return [layers * (mark.activations * layer + mark.waiting * waits) for mark in marks]


def _chunks(schedule: str, stages: int, microbatches: int, chunks: int) -> int:
    """Check the arguments; the chunks on a rank."""
    one_of(MEMORY_SCHEDULES, schedule=schedule)
    whole(stages=stages, microbatches=microbatches, chunks=chunks)
    if schedule in ("zb_v", "v_half") and chunks in (1, 2):
        return 2
    if schedule == "interleaved":
        if microbatches % max(1, microbatches // stages):
            raise ValueError(
                f"microbatches must fall into rounds of equal length, each of {stages} or more, for interleaved, and "
                f"{microbatches} do not: take a multiple of {stages}"
            )
    elif chunks != 1:
        raise ValueError(f"chunks cannot be chosen for {schedule}, and is {chunks}: only interleaved has more")
    return chunks
