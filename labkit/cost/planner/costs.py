"""The parts of which every estimate is made, each computed once.

A step is a sum of parts, and so is what a GPU holds, and each part depends on few of a plan's choices: a layer's
seconds do not ask for the schedule, nor what is in flight for the width of the model. `Costs` keeps every part that it
has computed, so a search over a hundred thousand plans computes some thousand parts and adds.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from labkit.cost.parallel.pipeline_memory import in_flight_by_rank
from labkit.cost.planner import held, kernels
from labkit.cost.planner.cluster import Cluster
from labkit.cost.planner.exchange import Exchange, exchange_of, together
from labkit.cost.planner.held import Held, StageParams, stage_params
from labkit.cost.planner.kernels import Passes
from labkit.cost.planner.model import Model
from labkit.cost.planner.pace import Pace, Waits, layer_waits, pace_of, vocabulary_waits
from labkit.cost.planner.plan import DATA_KINDS
from labkit.cost.planner.wires import Wires, lay, shard_axes

__all__ = ["Costs"]

Cut = tuple[int, int, int, int, int]
Method = TypeVar("Method", bound=Callable[..., Any])
_ADAM_MOVED = 2 * 12 + 2  # bytes for each parameter: its state of 12 read and written, its 16-bit copy written


def _once(method: Method) -> Method:
    """Compute a part once for each of its arguments."""
    name = method.__name__

    @wraps(method)
    def kept(*args: Any) -> Any:
        memo, key = args[0].memo, (name, *args[1:])
        if key not in memo:
            memo[key] = method(*args)
        return memo[key]

    return cast(Method, kept)


class Costs:
    """Parts of the estimates for one model on one cluster. Arguments are those of a `Plan`, by position."""

    def __init__(self, model: Model, cluster: Cluster):
        self.model, self.cluster = model, cluster
        self.memo: dict[tuple[Any, ...], Any] = {}

    # -- time ------------------------------------------------------------------------------------------------------

    @_once
    def wires(self, cut: Cut) -> Wires:
        """Where the axes lie."""
        return lay(self.cluster, cut)

    @_once
    def layer(self, microbatch: int, t: int, c: int, e: int, sequence_parallel: bool, recompute: str) -> Passes:
        """Computing of one layer."""
        return kernels.layer_seconds(self.model, self.cluster, microbatch, t, c, e, sequence_parallel, recompute)

    @_once
    def logits(self, microbatch: int, t: int, c: int) -> Passes:
        """Computing of the logits and the loss."""
        return kernels.logits_seconds(self.model, self.cluster, microbatch, t, c)

    @_once
    def waits(self, t: int, c: int, e: int, microbatch: int, sequence_parallel: bool, recompute: str) -> Waits:
        """Communication that one layer waits for; its axes are the inner ones, which lie alike whatever p and d are."""
        layer = self.layer(microbatch, t, c, e, sequence_parallel, recompute)
        wires = self.wires((t, 1, c, e, self.cluster.gpus // (t * c * e)))
        return layer_waits(self.model, self.cluster, wires, layer, microbatch, sequence_parallel, recompute)

    @_once
    def ends(
        self, t: int, c: int, microbatch: int, sequence_parallel: bool
    ) -> tuple[tuple[float, float], tuple[float, float]]:
        """Communication that the first and the last stage wait for besides."""
        wires = self.wires((t, 1, c, 1, self.cluster.gpus // (t * c)))
        logits = self.logits(microbatch, t, c)
        return vocabulary_waits(self.model, self.cluster, wires, logits, microbatch, sequence_parallel)

    def layers(self, p: int, chunks: int) -> tuple[int, int]:
        """Layers of the fullest rank and of the last one, which has one less where they do not divide evenly."""
        each = -(-self.model.layers // (p * chunks))
        most = chunks * each
        return most, most - (p > 1 and p * most > self.model.layers)

    @_once
    def pace(self, cut: Cut, microbatch: int, chunks: int, sequence_parallel: bool, recompute: str) -> Pace:
        """One microbatch on the rank that sets the pace."""
        t, p, c, e, _ = cut
        return pace_of(
            self.model, self.cluster, self.wires(cut), self.layer(microbatch, t, c, e, sequence_parallel, recompute),
            self.logits(microbatch, t, c), self.waits(t, c, e, microbatch, sequence_parallel, recompute),
            self.ends(t, c, microbatch, sequence_parallel), microbatch, chunks, *self.layers(p, chunks),
        )  # fmt: skip

    @_once
    def exchange(self, cut: Cut, sharding: str, shard: int, gradient_bytes: int, params: StageParams) -> Exchange:
        """What data parallelism exchanges of `params`."""
        wires = self.wires(cut)
        shards = shard_axes(self.cluster, cut, shard) if sharding == "hsdp" else None
        dense = exchange_of(sharding, wires.holders, params.dense, gradient_bytes, shards)
        if not params.experts:
            return dense
        kind = "zero3" if sharding == "hsdp" else sharding
        return together(dense, exchange_of(kind, wires.expert_holders, params.experts, gradient_bytes))

    @_once
    def optimizer(self, cut: Cut, sharding: str, shard: int, gradient_bytes: int, chunks: int) -> float:
        """Seconds in which Adam reads and writes the state of the parameters that a rank updates."""
        t, p, c, e, d = cut
        params, apart = self.params(t, p, e, chunks)[0], DATA_KINDS[sharding] >= 1
        own = params.dense / ((shard or d * e * c) if apart else 1) + params.experts / (d * c if apart else 1)
        bandwidth = self.cluster.gpu.memory_bandwidth * self.cluster.efficiency.memory
        return own * (_ADAM_MOVED + gradient_bytes) / bandwidth

    # -- memory ----------------------------------------------------------------------------------------------------

    def exchanged(self, t: int, p: int, e: int, chunks: int) -> StageParams:
        """Parameters of the fuller of the two ends, whose exchange takes longest."""
        first, last = self.params(t, p, e, chunks)
        return last if last.dense > first.dense else first

    @_once
    def params(self, t: int, p: int, e: int, chunks: int) -> tuple[StageParams, StageParams]:
        """Parameters on a GPU of the first and of the last stage."""
        most, last = self.layers(p, chunks)
        first = stage_params(self.model, t, p, e, most, last=False)
        return first, stage_params(self.model, t, p, e, last, last=True)

    @_once
    def state(self, cut: Cut, sharding: str, shard: int, gradient_bytes: int, chunks: int) -> tuple[Held, Held]:
        """Training state on a GPU of the first and of the last stage."""
        t, p, c, e, d = cut
        first, last = (
            held.state(one, sharding, d * e * c, d * c, shard, gradient_bytes) for one in self.params(t, p, e, chunks)
        )
        return first, last

    @_once
    def in_flight(self, schedule: str, p: int, m: int, chunks: int) -> tuple[float, float, float, float]:
        """Layers of activations: held by the first rank, waiting there for weight gradients; of the last rank, both."""
        marks = in_flight_by_rank(schedule, p, m, chunks)
        most, last = self.layers(p, chunks)
        return (
            most / chunks * marks[0].activations, most / chunks * marks[0].waiting,
            last / chunks * marks[-1].activations, last / chunks * marks[-1].waiting,
        )  # fmt: skip

    @_once
    def kept(self, microbatch: int, t: int, c: int, sequence_parallel: bool, recompute: str) -> tuple[float, float]:
        """Activations of one layer; and what is there besides while one is computed again."""
        fused = self.cluster.efficiency.fused_attention
        args = (self.model, microbatch, t, c, sequence_parallel)
        kept = held.layer_bytes(*args, recompute, fused)
        again = held.layer_bytes(*args, "all", fused) - kept if recompute != "all" else 0.0
        return kept, again

    def activations(
        self, cut: Cut, microbatch: int, m: int, schedule: str, chunks: int, sequence_parallel: bool, recompute: str
    ) -> tuple[Held, Held]:  # fmt: skip
        """Activations, logits and buffers on the first and the last rank."""
        t, p, c, _, _ = cut
        kept, again = self.kept(microbatch, t, c, sequence_parallel, recompute)
        first, first_waits, last, last_waits = self.in_flight(schedule, p, m, chunks)
        waits = self.waiting(microbatch, t, c, sequence_parallel) if first_waits or last_waits else 0.0
        logits = held.logits_bytes(self.model, microbatch, t, c)
        return (
            Held(activations=first * kept + first_waits * waits, logits=logits if p == 1 else 0.0, buffers=again),
            Held(activations=last * kept + last_waits * waits, logits=logits, buffers=again),
        )

    @_once
    def full(
        self, cut: Cut, microbatch: int, m: int, schedule: str, chunks: int, sequence_parallel: bool, recompute: str
    ) -> tuple[float, float]:  # fmt: skip
        """The same, all together."""
        first, last = self.activations(cut, microbatch, m, schedule, chunks, sequence_parallel, recompute)
        return first.total, last.total

    @_once
    def lasting(self, cut: Cut, sharding: str, shard: int, gradient_bytes: int, chunks: int) -> tuple[float, float]:
        """`state`, all together."""
        first, last = self.state(cut, sharding, shard, gradient_bytes, chunks)
        return first.total, last.total

    @_once
    def waiting(self, microbatch: int, t: int, c: int, sequence_parallel: bool) -> float:
        """Bytes of one layer and microbatch that wait for the weights' gradient."""
        kept = held.layer_bytes(self.model, microbatch, t, c, sequence_parallel, "selective", False)
        return kept * held.waiting_share(self.model, t, sequence_parallel)
