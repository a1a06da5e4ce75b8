"""What one microbatch takes on each rank of a pipeline: computing, and communication that it waits for.

The rank that takes longest sets the pace: the fullest one, or the last, which computes the logits too. Communication of
a kind that the software overlaps (`Efficiency.overlaps`) is hidden as far as there is something to hide it behind:

    tensor     backward only, behind the gradients of the column-parallel products
    context    a block of keys and values behind attention with the block before
    pipeline   the next microbatch's activation behind a chunk's computing; not while the pipeline fills and empties
    data       behind the forward or backward pass of one microbatch (`exchange`)

Tokens on their way to experts are waited for: nothing else can be computed meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass

from labkit.cost.parallel.tensor import PAIRS_PER_LAYER, tensor_parallel_payload_bytes
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
    hop: one message to the next stage; hops: what of its messages this rank waits for, each microbatch. others: what
    the mean of the other stages takes, as a part of this one's time.
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
    others: float

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
        forward, backward = _tensor_waits(
            wires, tensor_parallel_payload_bytes(microbatch, model.sequence // c, model.hidden), sequence_parallel,
            layer.weight_gradient * 7 / 12 if "tensor" in overlaps else 0.0,
        )  # fmt: skip
        tensor = (forward, backward + again * forward)
    if c > 1:
        forward, backward = _context_waits(
            wires, [context_bytes(model, microbatch, t, c, passes) for passes in ("forward", "backward")],
            layer.attention / c if "context" in overlaps else 0.0,
        )  # fmt: skip
        context = (forward, backward + again * forward)
    if e > 1:
        hop = seconds(wires.expert, "all_to_all", model.skew * dispatch_payload(model, microbatch, t, c))
        expert = (2 * hop, 2 * hop * (2 if again else 1))
    return Waits(tensor, context, expert)


def _tensor_waits(wires: Wires, payload: float, sequence_parallel: bool, under: float) -> tuple[float, float]:
    """Forward and backward, of the two pairs of maps in a layer. under: seconds of the two column-parallel maps' weight
    gradients, or as long of their input gradients, that communication runs under.

    Backward a sum over the ranks hides behind a weight gradient, and under sequence parallelism the input that is
    gathered again behind an input gradient; the gradient that is gathered before them is needed at once (Korthikanti et
    al. 2022, section 4.2.2).
    """
    if not sequence_parallel:
        sums = PAIRS_PER_LAYER * seconds(wires.tensor, "all_reduce", payload)
        return sums, max(0.0, sums - under)
    gathers, scatters = (
        PAIRS_PER_LAYER * seconds(wires.tensor, name, payload) for name in ("all_gather", "reduce_scatter")
    )
    return gathers + scatters, gathers + max(0.0, gathers - under) + max(0.0, scatters - under)


def _context_waits(wires: Wires, sent: list[float], under: float) -> tuple[float, float]:
    """Forward and backward, around the ring. sent: bytes of both. under: seconds of a block's attention, forward.

    A block of keys comes while the rank attends to the one before; backward the gradients of that one travel as well,
    and the last of them, on their way home, are waited for (Liu et al. 2023).
    """
    c = wires.context.size
    forward, backward = sent[0] / (c - 1), (sent[1] - sent[0]) / c
    hop, both, home = (seconds(wires.context, SEND, nbytes) for nbytes in (forward, forward + backward, backward))
    return (c - 1) * max(0.0, hop - under), (c - 1) * max(0.0, both - 2 * under) + home


def vocabulary_waits(
    model: Model, cluster: Cluster, wires: Wires, logits: Passes, microbatch: int, sequence_parallel: bool
) -> tuple[tuple[float, float], tuple[float, float]]:  # fmt: skip
    """What the first and the last stage wait for besides, forward and backward, where ranks share the vocabulary.

    Looking up is a sum over the ranks; the logits' input is one that they read, and the loss takes three numbers a
    token of each (Shoeybi et al. 2019, section 3).
    """
    t, c = wires.tensor.size, wires.context.size
    if t == 1:
        return (0.0, 0.0), (0.0, 0.0)
    payload = tensor_parallel_payload_bytes(microbatch, model.sequence // c, model.hidden)
    tokens = microbatch * model.sequence / c
    loss = sum(seconds(wires.tensor, "all_reduce", 4 * numbers * tokens) for numbers in (1, 2))
    under = logits.weight_gradient if "tensor" in cluster.efficiency.overlaps else 0.0
    if not sequence_parallel:
        total = seconds(wires.tensor, "all_reduce", payload)
        return (total, 0.0), (loss, max(0.0, total - under))
    gather, scatter = (seconds(wires.tensor, name, payload) for name in ("all_gather", "reduce_scatter"))
    return (scatter, gather), (gather + loss, max(0.0, gather - under) + max(0.0, scatter - under))


def pace_of(
    model: Model, cluster: Cluster, wires: Wires, layer: Passes, logits: Passes, waits: Waits,
    ends: tuple[tuple[float, float], tuple[float, float]], microbatch: int, chunks: int, layers: int, last_layers: int,
) -> Pace:  # fmt: skip
    """Of the rank that sets the pace. layers: of the fullest rank; last_layers: of the last one. ends: what the first
    and the last stage wait for besides (`vocabulary_waits`)."""
    p, c, t = wires.pipeline.size, wires.context.size, wires.tensor.size
    hop = seconds(wires.pipeline, SEND, boundary_bytes(model, microbatch, t, c)) if p > 1 else 0.0
    first, last = ends
    if p > 1:
        stages = [(layers, Passes(), first), (last_layers, logits, last)]
    else:
        stages = [(layers, logits, (first[0] + last[0], first[1] + last[1]))]

    def whole(stage: tuple[int, Passes, tuple[float, float]]) -> float:
        return stage[0] * (layer.total + waits.forward + waits.backward) + stage[1].total + sum(stage[2])

    n, extra, end = slowest = max(stages, key=whole)
    every = whole((model.layers, logits, (first[0] + last[0], first[1] + last[1])))
    others = min(1.0, (every - whole(slowest)) / (p - 1) / whole(slowest)) if p > 1 else 0.0
    forward = n * (layer.forward + waits.forward) + extra.forward + end[0]
    inputs = n * (layer.input_gradient + layer.again + waits.backward) + extra.input_gradient + end[1]
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
    by_axis["tensor"] += sum(end)
    return Pace(
        ideal, n * once + extra.total, n * layer.again, by_axis, forward, inputs, weights, hop, chunks * sum(waited),
        others,
    )  # fmt: skip
