"""What data parallelism exchanges, by kind: bytes, seconds, and what of them no computing can hide.

    plain          gradients are all-reduced, once a step
    zero1          gradients reduce-scattered and new parameters gathered, once a step
    zero2          gradients reduce-scattered in each microbatch, so that no rank ever keeps all; parameters once
    zero3          parameters gathered for each forward and each backward pass, gradients reduce-scattered
    hsdp           the same among `shard` neighbours; and once a step an all-reduce among those with the same part

(Rajbhandari et al. 2020, section 7; Zhao et al. 2023, section 3.2.) Gradients are final only in the last microbatch, so
what is exchanged once can lie under the backward pass of that one, and parameters under the forward pass of the first.
The last gradient is ready when nothing is left to compute, and the first parameter is needed at once: one layer's part
is never hidden.
"""

from __future__ import annotations

from dataclasses import dataclass

from labkit.cost.collectives.ring import ring_all_gather, ring_all_reduce, ring_reduce_scatter
from labkit.cost.planner.wires import seconds
from labkit.cost.topology.axes import Axis

__all__ = ["Exchange", "exchange_of"]


@dataclass(frozen=True)
class Exchange:
    """Seconds of the collectives of one rank, and the bytes that they send.

    gather, scatter: in each microbatch (the gather once forward and once backward), which then sends `each` bytes.
    gather_once, scatter_once: in each step, `once_bytes`.
    """

    each: float = 0.0
    once_bytes: float = 0.0
    gather: float = 0.0
    scatter: float = 0.0
    gather_once: float = 0.0
    scatter_once: float = 0.0

    def nbytes(self, microbatches: int) -> float:
        """That a rank sends in a step."""
        return microbatches * self.each + self.once_bytes

    def in_forward(self, forward: float, overlap: bool) -> float:
        """Seconds that each forward pass of `forward` seconds waits."""
        return max(0.0, self.gather - forward) if overlap else self.gather

    def in_backward(self, backward: float, overlap: bool) -> float:
        """Seconds that each backward pass waits."""
        sent = self.gather + self.scatter
        return max(0.0, sent - backward) if overlap else sent

    def once(self, forward: float, backward: float, layers: int, overlap: bool) -> float:
        """Seconds that a step waits besides, with `layers` layers on this rank.

        forward, backward: of one microbatch.
        """
        if not overlap:
            return self.gather_once + self.scatter_once
        first = (self.gather + self.scatter) / layers
        gather = max(self.gather_once / layers, self.gather_once - forward)
        scatter = max(self.scatter_once / layers, self.scatter_once - backward)
        return first + gather + scatter


def exchange_of(
    kind: str, axis: Axis, params: float, gradient_bytes: int, shards: tuple[Axis, Axis] | None = None,
    itemsize: int = 2,
) -> Exchange:  # fmt: skip
    """Of `params` parameters on this rank. axis: of all that hold the same. shards: of `hsdp`, from `shard_axes`."""
    n, weights, gradients = axis.size, params * itemsize, params * gradient_bytes
    if kind == "plain":
        sent = ring_all_reduce.bytes(gradients, n)
        return Exchange(once_bytes=sent, scatter_once=seconds(axis, "all_reduce", gradients))
    if kind == "hsdp":
        assert shards is not None
        (inside, copies), n = shards, shards[0].size
        once = ring_all_reduce.bytes(gradients / n, copies.size), seconds(copies, "all_reduce", gradients / n)
        axis = inside
    gather, scatter = seconds(axis, "all_gather", weights), seconds(axis, "reduce_scatter", gradients)
    gathered, scattered = ring_all_gather.bytes(weights, n), ring_reduce_scatter.bytes(gradients, n)
    if kind == "zero1":
        return Exchange(0.0, gathered + scattered, gather_once=gather, scatter_once=scatter)
    if kind == "zero2":
        return Exchange(scattered, gathered, gather_once=gather, scatter=scatter)
    if kind == "zero3":
        return Exchange(2 * gathered + scattered, 0.0, gather, scatter)
    return Exchange(2 * gathered + scattered, once[0], gather, scatter, scatter_once=once[1])


def together(one: Exchange, other: Exchange) -> Exchange:
    """Both, one after the other: of experts and of all other parameters."""
    return Exchange(*(getattr(one, f) + getattr(other, f) for f in one.__dataclass_fields__))
