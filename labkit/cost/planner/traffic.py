"""Bytes that one GPU sends in one step, axis by axis: the closed forms of each strategy, for a plan.

Of the layers alone. What the vocabulary sends under tensor parallelism is some thousandths of that and is left out.
"""

from __future__ import annotations

from labkit.cost.collectives.registry import cost_of
from labkit.cost.parallel.context import ring_attention_bytes_by_rank
from labkit.cost.parallel.expert import dispatch_payload_bytes
from labkit.cost.parallel.pipeline_traffic import pipeline_boundary_bytes, pipeline_messages_by_rank
from labkit.cost.parallel.tensor import tensor_parallel_bytes
from labkit.cost.planner.model import Model
from labkit.cost.planner.plan import Plan

__all__ = ["boundary_bytes", "context_bytes", "dispatch_bytes", "layer_traffic"]


def context_bytes(model: Model, microbatch: int, tensor: int, context: int, passes: str) -> float:
    """Of one layer and microbatch: ring attention passes keys and values on, and backward their gradients."""
    if context == 1:
        return 0.0
    lengths = [model.sequence // context] * context
    width = model.hidden // model.heads
    kv_heads = max(1, model.kv_heads // tensor)  # with more tensor ranks than heads of keys each has a copy of one
    return ring_attention_bytes_by_rank(lengths, kv_heads, width, batch=microbatch, passes=passes)[0]


def dispatch_payload(model: Model, microbatch: int, tensor: int, context: int) -> float:
    """Of one layer and microbatch: bytes of tokens on their way to experts, a `tensor`-th from each rank."""
    return dispatch_payload_bytes(microbatch * model.sequence // context, model.hidden, model.top_k) / tensor


def dispatch_bytes(model: Model, microbatch: int, tensor: int, context: int, expert: int) -> float:
    """The same that leave this rank, if tokens go to all expert ranks alike. They come back in as many."""
    if expert == 1:
        return 0.0
    return cost_of("all_to_all", "pairwise").bytes(dispatch_payload(model, microbatch, tensor, context), expert)


def boundary_bytes(model: Model, microbatch: int, tensor: int, context: int) -> float:
    """Bytes from each tensor rank of a stage to its counterpart in the next: a `tensor`-th of the activation.

    Sequence parallelism leaves no more to send; without it ranks share it out and gather it on the other side
    (Narayanan et al. 2021, section 4.1).
    """
    return pipeline_boundary_bytes(microbatch, model.sequence // context, model.hidden) / tensor


def layer_traffic(model: Model, plan: Plan) -> dict[str, float]:
    """Bytes in a step for all axes but data, of the GPU that sends most."""
    n = plan.microbatches * plan.layers_on_a_rank(model)
    again = plan.recompute == "full"
    local = model.sequence // plan.context
    tensor = tensor_parallel_bytes(
        plan.microbatch, local, model.hidden, plan.layers_on_a_rank(model), plan.tensor, microbatches=plan.microbatches,
        sequence_parallel=plan.sequence_parallel, gather_again=plan.sequence_parallel, recompute=again,
    )  # fmt: skip
    args = (model, plan.microbatch, plan.tensor, plan.context)
    context = context_bytes(*args, passes="both") + again * context_bytes(*args, passes="forward")
    messages = max(pipeline_messages_by_rank(plan.pipeline, plan.microbatches, plan.chunks))
    return {
        "tensor": tensor,
        "context": n * context,
        "expert": n * (6 if again else 4) * dispatch_bytes(*args, plan.expert),
        "pipeline": messages * boundary_bytes(*args),
    }
