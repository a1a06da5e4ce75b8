"""How deep a pipeline should be: more stages hold less on each GPU, and wait longer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from labkit.cost.parallel.layers import layer_flops
from labkit.cost.parallel.pipeline import pipeline_step_seconds
from labkit.cost.parallel.pipeline_memory import pipeline_activation_bytes_by_rank
from labkit.cost.parallel.tensor_memory import model_parallel_state_bytes
from labkit.cost.refuse import positive, whole
from labkit.cost.shapes import Shape
from labkit.cost.training.memory import GPU_MEMORY

__all__ = ["Depth", "depth_tradeoff"]


@dataclass(frozen=True)
class Depth:
    """A pipeline of `stages` stages, and what it costs. Bytes are of the rank that holds most; seconds of a step."""

    stages: int
    tensor: int
    microbatches: int
    pipelines: int
    state: float
    activations: float
    bubble: float
    seconds: float

    @property
    def total(self) -> float:
        """State and activations on one GPU, in bytes."""
        return self.state + self.activations

    @property
    def gpus(self) -> int:
        """All GPUs of all pipelines."""
        return self.stages * self.tensor * self.pipelines

    @property
    def gpu_seconds(self) -> float:
        """What a step costs: seconds times GPUs."""
        return self.seconds * self.gpus

    def fits(self, memory: float = GPU_MEMORY) -> bool:
        """Whether a GPU of `memory` bytes holds it."""
        return self.total <= memory


def depth_tradeoff(
    shape: Shape,
    depths: Sequence[int],
    sequences: int,
    flops_per_second: float,
    *,
    gpus: int | None = None,
    schedule: str = "one_f_one_b",
    chunks: int = 1,
    tensor: int = 1,
    batch: int = 1,
    sequence_parallel: bool = False,
    strategy: str = "selective",
    bytes_per_parameter: float = 16,
) -> list[Depth]:
    """One `Depth` for each of `depths`, with a batch of `sequences` sequences a step, `batch` of them a microbatch.

    gpus: None gives each pipeline p t GPUs of its own and all sequences, so that a deeper one has more GPUs. A number
    is shared out: gpus / (p t) pipelines side by side, each with its part of the sequences. Then a deeper pipeline gets
    proportionally more microbatches, and its bubble hardly grows. (The exchange of gradients between the pipelines is
    not counted.) flops_per_second: what a GPU reaches. "full" recomputation adds a forward pass to every backward pass;
    what "selective" computes again is not counted. Embeddings are not counted in the work.
    """
    whole(sequences=sequences, tensor=tensor, batch=batch, chunks=chunks)
    positive(flops_per_second=flops_per_second)
    flops = layer_flops(batch, shape.sequence, shape.hidden)
    rows = []
    for stages in depths:
        whole(stages=stages)
        if stages * chunks > shape.layers:
            raise ValueError(f"stages must be at most the {shape.layers} layers in {chunks} chunks, not {stages}")
        pipelines = 1 if gpus is None else _share("gpus", gpus, stages * tensor)
        microbatches = _share("sequences", sequences, pipelines * batch)
        unit = shape.layers / stages / (tensor * flops_per_second)
        backward = flops.input_gradient + (flops.forward if strategy == "full" else 0)
        seconds = pipeline_step_seconds(
            schedule, stages, microbatches, unit * flops.forward, unit * backward, unit * flops.weight_gradient, chunks
        )
        held = pipeline_activation_bytes_by_rank(
            shape, schedule, stages, microbatches, batch, chunks=chunks, tensor=tensor,
            sequence_parallel=sequence_parallel, strategy=strategy,
        )  # fmt: skip
        work = microbatches * unit * (flops.forward + backward + flops.weight_gradient)
        bubble = 1 - work / seconds
        state = model_parallel_state_bytes(shape.params, tensor, stages, bytes_per_parameter=bytes_per_parameter)
        rows.append(Depth(stages, tensor, microbatches, pipelines, state, max(held), bubble, seconds))
    return rows


def _share(name: str, total: int, parts: int) -> int:
    whole(**{name: total})
    if total % parts:
        near = [n * parts for n in (total // parts, total // parts + 1) if n]
        raise ValueError(f"{name} must be a multiple of {parts} here, and {total} is not: {near} are")
    return total // parts
