"""What a plan takes: memory by part, bytes by axis, a step by part, and what follows: MFU, tokens, dollars, joules.

    step = computing + uneven + recomputed + tensor + context + expert + messages + bubble + data + optimizer

Each part is what the step would be shorter by without it, computed in this order, and they add up exactly. All GPUs of
one kind are taken to be equally fast, and axes that share a link are taken not to disturb each other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from labkit.cost.parallel.pipeline import pipeline_exposed_hops, pipeline_step_seconds
from labkit.cost.planner.cluster import Cluster
from labkit.cost.planner.costs import Costs
from labkit.cost.planner.exchange import Exchange
from labkit.cost.planner.held import Held
from labkit.cost.planner.model import Model
from labkit.cost.planner.pace import Pace
from labkit.cost.planner.plan import Plan
from labkit.cost.planner.traffic import layer_traffic
from labkit.cost.planner.wires import AXES
from labkit.cost.refuse import positive
from labkit.cost.training.energy import price
from labkit.cost.units import HOUR

__all__ = ["Estimate", "PARTS", "estimate", "memory_of", "step_parts"]

PARTS = ("computing", "uneven", "recomputed", "tensor", "context", "expert", "messages", "bubble", "data", "optimizer")


@dataclass(frozen=True)
class Estimate:
    """A plan for a model on a cluster, and what it takes.

    held: bytes on the fullest GPU. sent: bytes that a GPU sends in a step, by axis; link: the level that each axis
    needs, "" for none. parts: seconds of a step, by part.
    """

    model: Model
    cluster: Cluster
    plan: Plan
    held: Held
    sent: dict[str, float]
    link: dict[str, str]
    parts: dict[str, float]

    @property
    def seconds(self) -> float:
        """One step."""
        return sum(self.parts.values())

    @property
    def fits(self) -> bool:
        """Whether the fullest GPU holds it."""
        return self.held.total <= self.cluster.gpu.memory

    @property
    def tokens(self) -> int:
        """Of one step."""
        return self.plan.batch * self.model.sequence

    @property
    def tokens_per_second(self) -> float:
        """Of the whole cluster."""
        return self.tokens / self.seconds

    @property
    def mfu(self) -> float:
        """Operations of the model over those of the peak (Chowdhery et al. 2022): attention in full, nothing twice."""
        return self.model.step_flops(self.tokens) / (self.seconds * self.plan.gpus * self.cluster.peak)

    @property
    def hfu(self) -> float:
        """The same with what is computed again: another forward pass with "full", the scores of attention if they are
        not kept. What hardly takes operations (norms, activation functions) counts for neither."""
        again = 0.0
        if self.plan.recompute == "full":
            again = self.model.forward_flops(self.tokens) - 2 * self.tokens * self.model.embedding_params
        elif self.plan.recompute == "selective" and not self.cluster.efficiency.fused_attention:
            again = 4 * self.tokens * self.model.sequence * self.model.queries * self.model.layers
        done = self.model.step_flops(self.tokens) + again
        return done / (self.seconds * self.plan.gpus * self.cluster.peak)

    @property
    def bubble(self) -> float:
        """The part of a step in which the pipeline's ranks are idle."""
        return self.parts["bubble"] / self.seconds

    @property
    def dollars_per_million_tokens(self) -> float:
        """At the cluster's price; NaN where none is known."""
        return 1e6 * self._price(1) / self.tokens_per_second

    def _price(self, seconds: float) -> float:
        dollars = self.cluster.price
        return math.nan if dollars is None else price(seconds, self.plan.gpus, dollars)

    @property
    def gpu_hours_per_billion_tokens(self) -> float:
        """What a price is multiplied with."""
        return 1e9 * self.plan.gpus / self.tokens_per_second / HOUR

    @property
    def joules_per_token(self) -> float:
        """With every GPU at its full power, and nothing else in the building."""
        return self.plan.gpus * self.cluster.gpu.watts / self.tokens_per_second

    def run(self, tokens: float) -> dict[str, float]:
        """A whole run of `tokens` tokens without a failure: steps, hours, dollars, and megawatt-hours of the GPUs."""
        positive(tokens=tokens)
        seconds = tokens / self.tokens_per_second
        return {
            "steps": tokens / self.tokens, "hours": seconds / HOUR,
            "dollars": self._price(seconds),
            "megawatt-hours": tokens * self.joules_per_token / HOUR / 1e6,
        }  # fmt: skip

    def __str__(self) -> str:
        return (
            f"{self.plan}: {self.seconds:.2f} s a step, MFU {100 * self.mfu:.1f} %, "
            f"{self.held.total / 1e9:.1f} GB of {self.cluster.gpu.memory / 1e9:.0f}"
        )


def estimate(model: Model, cluster: Cluster, plan: Plan, *, costs: Costs | None = None) -> Estimate:
    """What `plan` takes; it need not fit into memory (`Estimate.fits`). costs: parts that were computed before.

    Raises ValueError for a plan that no machine could run with this model, or that does not fill the cluster.
    """
    plan.refuse(model, cluster.gpus)
    known = Costs(model, cluster) if costs is None else costs
    wires = known.wires(plan.cut)
    exchange = _exchange(known, plan)
    sent = {**layer_traffic(model, plan), "data": exchange.nbytes(plan.microbatches)}
    link = {axis: wires.link("holders" if axis == "data" else axis) for axis in AXES}
    return Estimate(model, cluster, plan, memory_of(known, plan), sent, link, step_parts(known, plan))


def memory_of(costs: Costs, plan: Plan) -> Held:
    """Bytes on the fullest GPU, by part."""
    states = costs.state(plan.cut, plan.sharding, plan.shard, plan.gradient_bytes, plan.chunks)
    loads = costs.activations(
        plan.cut, plan.microbatch, plan.microbatches, plan.schedule, plan.chunks, plan.sequence_parallel,
        plan.recompute,
    )  # fmt: skip
    ends = [
        Held(**{part: state.parts()[part] + load.parts()[part] for part in state.parts()})
        for state, load in zip(states, loads, strict=True)
    ]
    return max(ends, key=lambda one: one.total)


_exposed_hops = lru_cache(pipeline_exposed_hops)  # plans of one pipeline are many


@dataclass(frozen=True)
class StepSeconds:
    """A step, as it is added up. Seconds.

    pipeline: all microbatches through all stages. filling: messages that no computing hides. once: what
    data parallelism exchanges once a step, and is not hidden. waits: of each microbatch's forward and backward pass for
    parameters and gradients, which `pipeline` has already; busy: of a microbatch on the rank that sets the pace.
    """

    pipeline: float
    filling: float
    once: float
    optimizer: float
    waits: float
    busy: float

    @property
    def total(self) -> float:
        """The whole step."""
        return self.pipeline + self.filling + self.once + self.optimizer


def step_seconds(
    costs: Costs, pace: Pace, exchange: Exchange, schedule: str, p: int, m: int, chunks: int, layers: int,
    optimizer: float,
) -> StepSeconds:  # fmt: skip
    """The step of `m` microbatches at this pace, with `layers` layers on each of `p` ranks."""
    overlaps = costs.cluster.efficiency.overlaps
    hides = "data" in overlaps or ("shards" in overlaps and exchange.gather > 0)
    waits = exchange.in_forward(pace.forward, hides), exchange.in_backward(pace.backward, hides)
    forward, inputs = pace.forward + waits[0], pace.input_gradient + waits[1]
    busy = forward + inputs + pace.weight_gradient
    idle = pipeline_step_seconds(schedule, p, m, forward, inputs, pace.weight_gradient, chunks) - m * busy
    return StepSeconds(
        m * busy + idle * pace.others,  # while a pipeline fills and empties, a rank waits for what the others take
        _exposed_hops(schedule, p, m, chunks) * pace.hop if "pipeline" in overlaps else 0.0,
        exchange.once(pace.forward, pace.backward, layers, hides), optimizer, sum(waits), busy,
    )  # fmt: skip


def step_parts(costs: Costs, plan: Plan) -> dict[str, float]:
    """Seconds of one step, by part."""
    pace = costs.pace(plan.cut, plan.microbatch, plan.chunks, plan.sequence_parallel, plan.recompute)
    exchange, m = _exchange(costs, plan), plan.microbatches
    optimizer = costs.optimizer(plan.cut, plan.sharding, plan.shard, plan.gradient_bytes, plan.chunks)
    step = step_seconds(
        costs, pace, exchange, plan.schedule, plan.pipeline, m, plan.chunks, plan.layers_on_a_rank(costs.model),
        optimizer,
    )  # fmt: skip
    return {
        "computing": m * pace.ideal,
        "uneven": m * (pace.computing - pace.ideal),
        "recomputed": m * pace.again,
        **{axis: m * seconds for axis, seconds in pace.waits.items()},
        "messages": m * pace.hops + step.filling,
        "bubble": step.pipeline - m * step.busy,
        "data": m * step.waits + step.once,
        "optimizer": step.optimizer,
    }


def _exchange(costs: Costs, plan: Plan) -> Exchange:
    params = costs.exchanged(plan.tensor, plan.pipeline, plan.expert, plan.chunks)
    return costs.exchange(plan.cut, plan.sharding, plan.shard, plan.gradient_bytes, params)
