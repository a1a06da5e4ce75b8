"""Seconds that one GPU computes: each product by the roofline, and what only moves numbers by the memory's bandwidth.

A product of (rows, inner) and (inner, columns) takes its operations over the part of the peak that its intensity
allows (`roofline_share`), so narrow ones wait for memory. Backward it is computed twice, for the input's gradient and
for the weights' (Qi et al. 2023: B and W). What works on each number by itself takes the bytes that it moves.
"""

from __future__ import annotations

from dataclasses import dataclass

from labkit.cost.planner.cluster import Cluster
from labkit.cost.planner.model import Model
from labkit.cost.training.roofline import product_intensity, roofline_share

__all__ = ["Passes", "layer_seconds", "logits_seconds", "product_seconds"]

# Numbers moved for each token, read and written, forward; twice that backward. Norms read and write h (twice a layer);
# dropout and the residual sum read two and write one, and a mask: 5 h each time. An activation function reads and
# writes its width, a gated one reads two of them; a rotation of queries and keys reads and writes both.
_WHOLE_MOVED = 10
# A token's copy for each of its experts is put in order six times (by expert, by rank, by expert on arrival, and back)
# and once written to be sent, which reads and writes h; it is weighted (2 h) and added up (3 h).
_DISPATCHED_MOVED = 19
_SCORES_MOVED = 6  # scores written; masked and normalised; dropped out; read: each once in and once out


@dataclass(frozen=True)
class Passes:
    """Seconds of a forward pass, of its input gradients, and of its weight gradients; alone what attention takes of F.

    again: seconds to compute again what was not kept, before the backward pass.
    """

    forward: float = 0.0
    input_gradient: float = 0.0
    weight_gradient: float = 0.0
    again: float = 0.0
    attention: float = 0.0

    @property
    def backward(self) -> float:
        """B + W, without what is computed again."""
        return self.input_gradient + self.weight_gradient

    @property
    def total(self) -> float:
        """All of it."""
        return self.forward + self.backward + self.again


def product_seconds(cluster: Cluster, rows: float, inner: float, columns: float) -> float:
    """One matrix product on one GPU."""
    share = roofline_share(
        product_intensity(rows, inner, columns),  # type: ignore[arg-type]
        cluster.peak * cluster.efficiency.products, cluster.gpu.memory_bandwidth * cluster.efficiency.memory,
    )  # fmt: skip
    return 2 * rows * inner * columns / (cluster.peak * cluster.efficiency.products * share)


def layer_seconds(
    model: Model, cluster: Cluster, microbatch: int, tensor: int, context: int, expert: int,
    sequence_parallel: bool, recompute: str,
) -> Passes:  # fmt: skip
    """One layer and one microbatch, on one GPU of `tensor * context` that share it."""
    tokens = microbatch * model.sequence / context
    h, t = model.hidden, tensor
    products = [
        (h, (model.queries + model.keys_values) / t), (model.queries / t, h),
        *_feed_forward(model, model.dense_inside / t),
    ]  # fmt: skip
    matrix = sum(product_seconds(cluster, tokens, inner, columns) for inner, columns in products)
    if model.experts:  # each GPU has experts / expert of them, and in the mean as many tokens come as go
        own = max(1, model.experts // expert)
        rows = tokens * model.top_k * model.skew / own
        each = _feed_forward(model, model.expert_inside / t)
        matrix += own * sum(product_seconds(cluster, rows, inner, columns) for inner, columns in each)

    core_flops = 4 * tokens * model.sequence * model.queries / t
    bandwidth = cluster.gpu.memory_bandwidth * cluster.efficiency.memory
    spread = t if sequence_parallel else 1
    moved = _WHOLE_MOVED * h / spread + ((model.products * model.active_inside) + 2 * model.keys_values) / t
    moved += _DISPATCHED_MOVED * model.top_k * h
    elementwise = tokens * moved * 2 / bandwidth
    if cluster.efficiency.fused_attention:
        attention = core_flops / 2 / (cluster.peak * cluster.efficiency.attention)
        back = 2.5 * attention  # five products for two (Dao 2023, section 3.1)
        again = elementwise if recompute == "selective" else 0.0
    else:
        scores = microbatch * model.heads / t * model.sequence * model.sequence / context
        attention = core_flops / (cluster.peak * cluster.efficiency.products)
        attention += _SCORES_MOVED * scores * 2 / bandwidth
        back = 2 * attention
        again = attention if recompute == "selective" else 0.0
    forward = matrix + attention + elementwise
    if recompute == "full":
        again = forward
    return Passes(forward, matrix + back + 2 * elementwise, matrix, again, attention)


def logits_seconds(model: Model, cluster: Cluster, microbatch: int, tensor: int, context: int) -> Passes:
    """The last product, over the vocabulary, and its loss, which reads and writes numbers of 4 bytes."""
    tokens = microbatch * model.sequence / context
    matrix = product_seconds(cluster, tokens, model.hidden, model.vocabulary / tensor)
    bandwidth = cluster.gpu.memory_bandwidth * cluster.efficiency.memory
    loss = 3 * 4 * tokens * model.vocabulary / tensor / bandwidth
    return Passes(matrix + loss, matrix + loss, matrix)


def _feed_forward(model: Model, inside: float) -> list[tuple[float, float]]:
    if not inside:
        return []
    return [(model.hidden, (model.products - 1) * inside), (inside, model.hidden)]
