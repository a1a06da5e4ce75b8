"""What one microbatch takes on each rank of a pipeline: computing, and communication that it waits for.

The rank that takes longest sets the pace: the fullest one, or the last, which computes the logits too. Communication of
a kind that the software overlaps (`Efficiency.overlaps`) is hidden as far as there is something to hide it behind:

    tensor     backward only, behind the weights' gradients of the column-parallel products (`TensorParallelLayer`)
    context    a block of keys and values behind attention with the block before
    pipeline   the next microbatch's activation behind a chunk's computing; not while the pipeline fills and empties
    data       behind the forward or backward pass of one microbatch (`exchange`)

Tokens on their way to experts are waited for: nothing else can be computed meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass

from labkit.cost.parallel.placement import TensorParallelLayer
from labkit.cost.parallel.tensor import tensor_parallel_calls, tensor_parallel_payload_bytes
from labkit.cost.planner.cluster import Cluster
from labkit.cost.planner.kernels import Passes
from labkit.cost.planner.model import Model
from labkit.cost.planner.traffic import boundary_bytes, context_bytes, dispatch_payload
from labkit.cost.planner.wires import Wires, seconds
from labkit.cost.topology.times import SEND

__all__ = ["Pace", "Waits", "layer_waits", "pace_of"]


@dataclass(frozen=True)
class Waits:
    """Seconds that the forward and the backward pass of one layer wait for communication, by axis."""

    tensor: tuple[float, float] = (0.0, 0.0)
    context: tuple[float, float] = (0.0, 0.0)
    expert: tuple[float, float] = (0.0, 0.0)

    @property
    def forward(self) -> float:
        """All axes."""
        return self.tensor[0] + self.context[0] + self.expert[0]

    @property
    def backward(self) -> float:
        """All axes."""
        return self.tensor[1] + self.context[1] + self.expert[1]


@dataclass(frozen=True)
class Pace:
    """One microbatch on the rank that sets the pace. Seconds.

    ideal: computing of the mean rank, nothing twice; computing: of this one. again: what is computed again. waits: for
    communication in its layers, by axis. forward, input_gradient, weight_gradient: the three passes with all of that.
    hop: one message to the next stage; hops: what of its messages this rank waits for, each microbatch.
    """

    ideal: float
    computing: float
    again: float
    waits: dict[str, float]
    forward: float
    input_gradient: float
    weight_gradient: float
    hop: float
    hops: float

    @property
    def backward(self) -> float:
        """Seconds of a backward pass, with what is computed again."""
        return self.input_gradient + self.weight_gradient

    @property
    def total(self) -> float:
        """All of one microbatch."""
        return self.forward + self.backward


def layer_waits(
    model: Model, cluster: Cluster, wires: Wires, layer: Passes, microbatch: int, sequence_parallel: bool,
    recompute: str,
) -> Waits:  # fmt: skip
    """What one layer waits for."""
    overlaps = cluster.efficiency.overlaps
    t, c, e = wires.tensor.size, wires.context.size, wires.expert.size
    again = recompute == "full"
    tensor = context = expert = (0.0, 0.0)
    if t > 1:
        payload = tensor_parallel_payload_bytes(microbatch, model.sequence // c, model.hidden)
        forward, backward = (
            _calls_seconds(wires, payload, passes, sequence_parallel, again and passes == "backward")
            for passes in ("forward", "backward")
        )
        if "tensor" in overlaps:
            hidden = TensorParallelLayer(layer.total, 2 * backward, layer.weight_gradient * 7 / 12)
            backward -= hidden.communication - hidden.exposed
        tensor = (forward, backward)
    if c > 1:
        sent = [context_bytes(model, microbatch, t, c, passes) for passes in ("forward", "backward")]
        rounds = [seconds(wires.context, SEND, nbytes / (c - 1)) * (c - 1) for nbytes in sent]
        if "context" in overlaps:
            work = (layer.attention, 2 * layer.attention)
            rounds = [max(x / c, x - w * (c - 1) / c) for x, w in zip(rounds, work, strict=True)]
        context = (rounds[0], rounds[1] + again * rounds[0])
    if e > 1:
        hop = seconds(wires.expert, "all_to_all", dispatch_payload(model, microbatch, t, c))
        expert = (2 * hop, 2 * hop * (2 if again else 1))
    return Waits(tensor, context, expert)


def _calls_seconds(wires: Wires, payload: float, passes: str, sequence_parallel: bool, again: bool) -> float:
    calls = tensor_parallel_calls(
        1, passes=passes, sequence_parallel=sequence_parallel, gather_again=sequence_parallel, recompute=again
    )
    named = {"all_reduce": calls.all_reduce, "all_gather": calls.all_gather, "reduce_scatter": calls.reduce_scatter}
    return sum(n * seconds(wires.tensor, name, payload) for name, n in named.items() if n)


def pace_of(
    model: Model, cluster: Cluster, wires: Wires, layer: Passes, logits: Passes, waits: Waits, microbatch: int,
    chunks: int, layers: int, last_layers: int,
) -> Pace:  # fmt: skip
    """Of the rank that sets the pace. layers: of the fullest rank; last_layers: of the last one."""
    p, c, t = wires.pipeline.size, wires.context.size, wires.tensor.size
    hop = seconds(wires.pipeline, SEND, boundary_bytes(model, microbatch, t, c)) if p > 1 else 0.0
    stages = [(layers, Passes()), (last_layers, logits)] if p > 1 else [(layers, logits)]

    def whole(stage: tuple[int, Passes]) -> float:
        return stage[0] * (layer.total + waits.forward + waits.backward) + stage[1].total

    n, extra = max(stages, key=whole)
    forward = n * (layer.forward + waits.forward) + extra.forward
    inputs = n * (layer.input_gradient + layer.again + waits.backward) + extra.input_gradient
    weights = n * layer.weight_gradient + extra.weight_gradient
    each = hop if p > 1 else 0.0
    if "pipeline" in cluster.efficiency.overlaps:
        waited = [max(0.0, each - forward / chunks), max(0.0, each - (inputs + weights) / chunks)]
    else:
        waited = [each, each]
    forward, inputs = forward + chunks * waited[0], inputs + chunks * waited[1]
    once = layer.total - layer.again
    ideal = (model.layers * once + logits.total) / p
    by_axis = {axis: n * sum(getattr(waits, axis)) for axis in ("tensor", "context", "expert")}
    return Pace(
        ideal, n * once + extra.total, n * layer.again, by_axis, forward, inputs, weights, hop, chunks * sum(waited)
    )
