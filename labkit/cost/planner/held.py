"""Bytes that one GPU holds, part by part: state by ZeRO's stage, activations by what a schedule has in flight.

Two ranks of a pipeline can be the fullest: the first, which has most microbatches in flight and the input embedding,
and the last, which has the output embedding and the logits. Both are counted, and the fuller one is reported.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from labkit.cost.parallel.layer_activations import layer_activation_bytes
from labkit.cost.parallel.tensor_memory import tensor_parallel_activation_bytes, weight_gradient_activation_bytes
from labkit.cost.parallel.zero import zero_state_parts
from labkit.cost.planner.model import Model
from labkit.cost.planner.plan import DATA_KINDS

__all__ = ["Held", "StageParams", "stage_params"]

LOGIT_BYTES = 6  # one logit: 2 bytes, and 4 of its probability, in whose place the gradient is computed


@dataclass(frozen=True)
class Held:
    """Bytes on the GPU that holds most.

    buffers: what is there for a moment, a layer that is computed again or parameters that are gathered.
    """

    parameters: float = 0.0
    gradients: float = 0.0
    optimizer: float = 0.0
    activations: float = 0.0
    logits: float = 0.0
    buffers: float = 0.0

    @property
    def state(self) -> float:
        """What lasts from step to step."""
        return self.parameters + self.gradients + self.optimizer

    @property
    def total(self) -> float:
        """All of it."""
        return self.state + self.activations + self.logits + self.buffers

    def parts(self) -> dict[str, float]:
        """By name."""
        return {one.name: getattr(self, one.name) for one in fields(self)}


@dataclass(frozen=True)
class StageParams:
    """Parameters on one GPU of a stage. dense: all but experts. one_layer: of a layer of it, both kinds."""

    dense: float
    experts: float
    one_layer: float


def stage_params(model: Model, tensor: int, pipeline: int, expert: int, layers: int, last: bool) -> StageParams:
    """Of the first stage (with the input embedding) or the last (with the output embedding), and `layers` layers."""
    dense = model.dense_layer_params / tensor + model.replicated_layer_params
    routed = model.expert_layer_params / (tensor * expert)
    matrices = 1 if pipeline > 1 or model.tied else 2  # a tied matrix that two stages need is on both
    whole = model.positions * model.hidden if not last or pipeline == 1 else 0
    return StageParams(
        layers * dense + matrices * model.embedding_params / tensor + whole, layers * routed, dense + routed
    )


def state(
    params: StageParams, sharding: str, holders: int, expert_holders: int, shard: int, gradient_bytes: int
) -> Held:  # fmt: skip
    """Parameters, gradients and Adam's state, cut by the stage of ZeRO; gathered layers under `buffers`."""
    stage = DATA_KINDS[sharding]
    parts = [
        zero_state_parts(count, min(shard, ranks) if sharding == "hsdp" else ranks, stage)
        for count, ranks in ((params.dense, holders), (params.experts, expert_holders))
    ]
    gathered = params.one_layer * (2 * 2 + gradient_bytes) if stage == 3 else 0.0  # two layers, one whole gradient
    return Held(
        sum(x.parameters for x in parts), sum(x.gradients for x in parts) * gradient_bytes / 2,
        sum(x.optimizer for x in parts), buffers=gathered,
    )  # fmt: skip


def layer_bytes(
    model: Model, microbatch: int, tensor: int, context: int, sequence_parallel: bool, recompute: str, fused: bool
) -> float:
    """Activations that one layer keeps of one microbatch. fused: attention that does not write its scores."""
    scores = 0 if fused else microbatch * model.heads * model.sequence * model.sequence // context
    routed = model.top_k * model.hidden * 2 * 2 * microbatch * model.sequence / context / tensor  # sent and come back
    return (0.0 if recompute == "full" else routed) + layer_activation_bytes(
        microbatch * model.sequence // context, model.hidden, model.queries, model.keys_values, model.active_inside,
        tensor, gated=model.gated, scores=scores, sequence_parallel=sequence_parallel, strategy=recompute,
        elementwise_again=fused, dropout=model.dropout,
    )  # fmt: skip


def waiting_share(model: Model, tensor: int, sequence_parallel: bool) -> float:
    """Of what a layer keeps without scores, the part that waits for the weights' gradient.

    M_W over M_B of Qi et al. 2023, table 1: 32/34 with dropout.
    """
    shape = (1, model.sequence, model.hidden, 1)
    kept = tensor_parallel_activation_bytes(
        *shape, model.heads, tensor, sequence_parallel=sequence_parallel, strategy="selective"
    )
    return weight_gradient_activation_bytes(*shape, tensor, sequence_parallel=sequence_parallel) / kept


def logits_bytes(model: Model, microbatch: int, tensor: int, context: int) -> float:
    """Of one microbatch on the last stage, for a `tensor`-th of the vocabulary."""
    return LOGIT_BYTES * microbatch * model.sequence / context * model.vocabulary / tensor
