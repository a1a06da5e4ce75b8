"""One configuration of a training job on a cluster of NVLink domains: what a step takes, and what it is spent on.

The model behind `domain_size`. It adds up closed forms of this package and says what it takes for granted:

    compute     the layers' operations (Narayanan et al. 2021) at a speed that does not depend on the cut; no embeddings
    uneven      where layers or sequences do not divide evenly, the fullest rank sets the pace
    tensor      four all-reduces a layer and microbatch, what of them is not hidden (`Assumptions.tensor_overlap`)
    bubble      interleaved 1F1B; with v chunks on each of p ranks a step is m + (p-1)/v microbatches long, for m below
                p microbatches p + (m-1)/v
    pipeline    messages between stages, if they are not hidden
    data        gradients reduce-scattered and parameters gathered once a step (ZeRO-1), what of it is not hidden

A microbatch is one sequence. Collectives are done level by level, so that a domain sends as little as it can.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from labkit.cost.parallel.layers import layer_flops
from labkit.cost.parallel.pipeline_memory import pipeline_activation_bytes_by_rank
from labkit.cost.parallel.placement import TensorParallelLayer
from labkit.cost.parallel.tensor import tensor_parallel_payload_bytes
from labkit.cost.parallel.zero import STAGES, zero_state_bytes
from labkit.cost.refuse import divides, one_of, positive, whole
from labkit.cost.shapes import Shape
from labkit.cost.topology.axes import Axis, place
from labkit.cost.topology.levels import Topology
from labkit.cost.topology.times import SEND, collective_seconds
from labkit.cost.units import GB

# The article's model (section 6.2: hidden 20,480, 128 heads, 100 layers, feed-forward 4 times as wide). It calls it
# "480B"; by this shape its layers have 12 * 100 * 20480^2 = 503.3e9 weights, and those are what is computed with here.
ARTICLE_SHAPE = Shape(480e9, 100, 20480, 128, sequence=8192)
# "16 million tokens a batch", in sequences of 8K (section 3.5.4) or of 16K (6.2). Here they are 2,000 of 8,192, or
# 1,000 of 16,384, so that the 32,000 GPUs of 6.2 can share them evenly. 2^24 tokens on 32,768 GPUs are as many on each.
ARTICLE_TOKENS = 2000 * 8192
B200_MEMORY = 189 * GB  # section 6.2
B200_PEAK = 2.25e15  # operations a second, 16 bits, dense: NVIDIA's data sheet of the DGX B200; the article names none
TENSOR_OVERLAPS = ("none", "backward", "all")


@dataclass(frozen=True)
class Assumptions:
    """What the article does not say of its simulator. Every default is a choice of this book, none is fitted.

    flops_per_second: what a GPU reaches in a layer, 60 percent of a B200's peak. memory: bytes of a GPU (the
    article's). itemsize: of activations and parameters on the wire; gradient_itemsize: of gradients. stage: of ZeRO.
    recompute: which activations are computed again ("selective": the scores of attention, as FlashAttention does).
    tensor_overlap: "none"; "backward" hides the all-reduces of the backward pass behind weight gradients
    (`TensorParallelLayer.exposed`); "all" hides them behind all computing, as far as it is long enough. data_overlap:
    the reduce-scatter goes on behind one microbatch's backward pass, the all-gather behind one's forward pass.
    pipeline_overlap: messages between stages take no time (the article, section 5.1: "a very small part"). interleave:
    as many chunks a rank as help; else 1F1B.
    """

    flops_per_second: float = 0.6 * B200_PEAK
    memory: float = B200_MEMORY
    itemsize: int = 2
    gradient_itemsize: int = 2
    stage: int = 1
    recompute: str = "selective"
    tensor_overlap: str = "backward"
    data_overlap: bool = True
    pipeline_overlap: bool = True
    interleave: bool = True

    def __post_init__(self) -> None:
        positive(flops_per_second=self.flops_per_second, memory=self.memory)
        whole(itemsize=self.itemsize, gradient_itemsize=self.gradient_itemsize)
        one_of(STAGES[:3], stage=self.stage)
        one_of(("all", "selective"), recompute=self.recompute)
        one_of(TENSOR_OVERLAPS, tensor_overlap=self.tensor_overlap)


@dataclass(frozen=True)
class Configuration:
    """A cut of the model and what a step of it takes. All but `ideal` and the counts in seconds; memory in bytes.

    axes: the order of the mesh on the machine, outermost first. ideal: the step if GPUs only computed, all of them.
    """

    tensor: int
    pipeline: int
    data: int
    chunks: int
    microbatches: int
    axes: tuple[str, ...]
    memory: float
    ideal: float
    by_cause: dict[str, float]

    @property
    def seconds(self) -> float:
        """One step."""
        return self.ideal + sum(self.by_cause.values())

    @property
    def utilisation(self) -> float:
        """The part of a step in which a GPU computes: its throughput over what computing alone would allow."""
        return self.ideal / self.seconds

    @property
    def lost(self) -> dict[str, float]:
        """The part of a step that each cause takes."""
        return {cause: seconds / self.seconds for cause, seconds in self.by_cause.items()}

    def __str__(self) -> str:
        return f"TP{self.tensor} PP{self.pipeline} DP{self.data} v{self.chunks} m{self.microbatches}"


def pipeline_rounds(stages: int, microbatches: int, chunks: int = 1) -> float:
    """Length of a step of (interleaved) 1F1B in microbatches' worth of work of one rank, for any m.

    m + (p-1) / v; with fewer microbatches than stages p + (m-1) / v: then a rank waits in each chunk until the first
    microbatch has gone around. So no schedule of this kind keeps a rank busy for more than m / p of the time.
    """
    whole(stages=stages, microbatches=microbatches, chunks=chunks)
    return max(microbatches, stages) + (min(microbatches, stages) - 1) / chunks


def configuration(
    topology: Topology,
    tensor: int,
    pipeline: int,
    chunks: int,
    sequences: int,
    *,
    shape: Shape = ARTICLE_SHAPE,
    data_outermost: bool = True,
    assumptions: Assumptions | None = None,
) -> Configuration:
    """What a step takes with these sizes; all GPUs that are left are data-parallel. It need not fit into memory.

    sequences: of one batch. chunks: of the model on each rank of a pipeline. data_outermost: whether replicas are
    further apart than the stages of one, or the other way round.
    Raises ValueError where tensor does not divide the heads or tensor * pipeline the GPUs, and for more replicas than
    sequences or more chunks than layers.
    """
    assume = Assumptions() if assumptions is None else assumptions
    whole(tensor=tensor, pipeline=pipeline, chunks=chunks, sequences=sequences)
    gpus, cut = topology.gpus, tensor * pipeline
    divides(**{"tensor": tensor, "heads": shape.heads})
    divides(**{"tensor * pipeline": cut, "GPUs": gpus})
    if pipeline * chunks > shape.layers:
        raise ValueError(f"pipeline * chunks must be at most the {shape.layers} layers, not {pipeline * chunks}")
    data = gpus // cut
    if data > sequences:
        raise ValueError(
            f"{gpus} GPUs in {data} replicas of {cut} leave some without one of {sequences} sequences: make tensor or "
            "pipeline larger"
        )
    sizes = {"dp": data, "pp": pipeline} if data_outermost else {"pp": pipeline, "dp": data}
    axes = place(topology, {**sizes, "tp": tensor})
    microbatches = math.ceil(sequences / data)
    layers = chunks * math.ceil(shape.layers / (pipeline * chunks))  # of the fullest rank

    flops = layer_flops(1, shape.sequence, shape.hidden)
    speed = tensor * assume.flops_per_second
    ideal = sequences * shape.layers * flops.total / (gpus * assume.flops_per_second)
    computing = microbatches * layers * flops.total / speed
    exposed = _exposed_tensor(axes["tp"], shape, assume)
    sending = _between_stages(axes["pp"], shape, tensor, chunks, assume)
    of_one = layers * (flops.total / speed + exposed) + sending  # seconds of one microbatch on one rank
    weights = shape.matrix_params * layers / shape.layers / tensor
    causes = {
        "uneven": computing - ideal,
        "tensor": microbatches * layers * exposed,
        "bubble": (pipeline_rounds(pipeline, microbatches, chunks) - microbatches) * of_one,
        "pipeline": microbatches * sending,
        "data": _exposed_data(axes["dp"], weights, layers * flops.forward / speed, layers * flops.backward / speed,
                              assume),
    }  # fmt: skip
    memory = zero_state_bytes(weights, data, assume.stage) + _activations(
        shape, tensor, pipeline, microbatches, chunks, layers, assume.recompute
    )
    return Configuration(tensor, pipeline, data, chunks, microbatches, tuple(axes), memory, ideal, causes)


def _exposed_tensor(axis: Axis, shape: Shape, assume: Assumptions) -> float:
    """Seconds of a layer's four all-reduces that a microbatch waits for."""
    payload = tensor_parallel_payload_bytes(1, shape.sequence, shape.hidden, assume.itemsize)
    sending = 4 * _fastest(axis, "all_reduce", payload)
    flops = layer_flops(1, shape.sequence, shape.hidden)
    computing = flops.total / (axis.size * assume.flops_per_second)
    if assume.tensor_overlap == "none":
        return sending
    if assume.tensor_overlap == "all":
        return max(0.0, sending - computing)
    hidden = flops.weight_gradient * 7 / 12 / (axis.size * assume.flops_per_second)  # as in `tensor_parallel_layer`
    return TensorParallelLayer(computing, sending, hidden).exposed


def _between_stages(axis: Axis, shape: Shape, tensor: int, chunks: int, assume: Assumptions) -> float:
    """Seconds a microbatch for activations and their gradients, a `tensor`-th by each rank; each chunk sends both."""
    if assume.pipeline_overlap or axis.size == 1:
        return 0.0
    payload = tensor_parallel_payload_bytes(1, shape.sequence, shape.hidden, assume.itemsize) / tensor
    return 2 * chunks * collective_seconds(axis, SEND, payload)


def _exposed_data(axis: Axis, weights: float, forward: float, backward: float, assume: Assumptions) -> float:
    """Seconds of the reduce-scatter and the all-gather that a step waits for. forward, backward: of a microbatch."""
    scatter = _fastest(axis, "reduce_scatter", weights * assume.gradient_itemsize)
    gather = _fastest(axis, "all_gather", weights * assume.itemsize)
    if not assume.data_overlap:
        return scatter + gather
    return max(0.0, scatter - backward) + max(0.0, gather - forward)


def _fastest(axis: Axis, collective: str, nbytes: float) -> float:
    """By rings, level by level; one flat ring where a group lies irregularly."""
    return collective_seconds(axis, collective, nbytes, "hierarchical" if axis.regular else "ring")


def _activations(
    shape: Shape, tensor: int, pipeline: int, microbatches: int, chunks: int, layers: int, recompute: str
) -> float:
    """Bytes on the rank that holds most, under sequence parallelism."""
    held = pipeline_activation_bytes_by_rank(
        shape, "interleaved" if chunks > 1 else "one_f_one_b", pipeline, microbatches, chunks=chunks, tensor=tensor,
        sequence_parallel=True, strategy=recompute,
    )[0]  # fmt: skip
    return held * layers * pipeline / shape.layers
