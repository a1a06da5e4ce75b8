"""Which axis belongs on which link: what tensor parallelism costs over a wire, next to the layers' own work.

Bandwidths and latencies are those of `labkit.cost.links.wires`; computing speeds are the caller's. Times in seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from labkit.cost.collectives.ring import ring_all_reduce
from labkit.cost.links.wires import Wire
from labkit.cost.parallel.layers import layer_flops
from labkit.cost.parallel.tensor import tensor_parallel_payload_bytes
from labkit.cost.refuse import not_negative, positive, whole

__all__ = ["TensorParallelLayer", "all_reduces_that_fit", "least_hidden_size", "tensor_parallel_layer"]


def all_reduces_that_fit(seconds: float, nbytes: float, size: int, wire: Wire) -> int:
    """How many ring all-reduces of `nbytes` over `size` ranks fit into `seconds` on a wire, one after the other.

    175B, b = 4 (201.33 MB), t = 8: in one second 1204 over NVLink and 138 over InfiniBand; a microbatch needs 384.
    """
    not_negative(seconds=seconds, nbytes=nbytes)
    whole(size=size)
    if size == 1:
        raise ValueError("size must be at least 2: one rank has nothing to reduce")
    return math.floor(seconds / ring_all_reduce.time(nbytes, size, wire.alpha, wire.beta))


@dataclass(frozen=True)
class TensorParallelLayer:
    """One layer, forward and backward, for one microbatch on one of t ranks. In seconds.

    overlappable: the weight gradients of the two column-parallel maps, behind which their two backward all-reduces can
    go on. (Those of the forward pass are needed at once.)
    """

    compute: float
    communication: float
    overlappable: float

    @property
    def exposed(self) -> float:
        """Communication that is left when the backward all-reduces are overlapped as far as they can be."""
        return self.communication - min(self.communication / 2, self.overlappable)

    @property
    def share(self) -> float:
        """Communication over all, with nothing overlapped."""
        return self.communication / (self.compute + self.communication)

    @property
    def efficiency(self) -> float:
        """Compute over all, with the overlap: what is left of the speed that a rank computes with."""
        return self.compute / (self.compute + self.exposed)


def tensor_parallel_layer(
    batch: int, sequence: int, hidden: int, size: int, flops_per_second: float, wire: Wire, *, itemsize: int = 2
) -> TensorParallelLayer:
    """The four all-reduces of a layer on `wire`, next to a `size`-th of its floating-point operations.

    flops_per_second: what a rank reaches in such products, not its peak. The column-parallel maps have 7 of the 12 h^2
    weights (3 of attention, 4 of feed-forward), so 7/12 of the weight gradients' operations.
    """
    positive(flops_per_second=flops_per_second)
    whole(size=size)
    flops = layer_flops(batch, sequence, hidden)
    payload = tensor_parallel_payload_bytes(batch, sequence, hidden, itemsize)
    rate = size * flops_per_second
    communication = 4 * ring_all_reduce.time(payload, size, wire.alpha, wire.beta)
    return TensorParallelLayer(flops.total / rate, communication, flops.weight_gradient * 7 / 12 / rate)


def least_hidden_size(size: int, flops_per_second: float, wire: Wire, share: float = 0.5, itemsize: int = 2) -> float:
    """The hidden size above which a layer's four all-reduces take less than `share` of its time, without latencies.

    Communication over computing is itemsize (t-1) flops_per_second / (9 h bandwidth), for sequences far below 6 h: the
    batch and the sequence cancel, so no batch makes a slow wire fast enough.
    """
    whole(size=size, itemsize=itemsize)
    positive(flops_per_second=flops_per_second, share=share)
    if share >= 1:
        raise ValueError(f"share must be a part below 1, not {share!r}")
    return itemsize * (size - 1) * flops_per_second / (9 * wire.bandwidth) * (1 - share) / share
