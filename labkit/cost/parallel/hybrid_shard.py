"""Sharding inside nodes and replicating across them (HSDP), and sharding over all ranks: bytes, and where they go.

k ranks a node shard the state among themselves; m nodes hold the same. Parameters are gathered over the fast links
inside a node only; between nodes each rank all-reduces the gradient of its own stretch (Zhao et al. 2023, "PyTorch
FSDP", section 3.2.2). M is the bytes of all parameters.
"""

from __future__ import annotations

from dataclasses import dataclass

from labkit.cost.collectives.ring import ring_all_gather, ring_all_reduce, ring_reduce_scatter
from labkit.cost.parallel.zero import zero_bytes_per_step, zero_state_bytes
from labkit.cost.refuse import not_negative, one_of, whole

__all__ = ["Sent", "hybrid_bytes_per_step", "hybrid_state_bytes", "node_egress_bytes"]

STRATEGIES = ("full_shard", "shard_grad_op", "no_shard", "hybrid")
_STAGE = {"full_shard": 3, "shard_grad_op": 2, "no_shard": 0}


@dataclass(frozen=True)
class Sent:
    """Bytes that one rank sends in a step: to ranks of its own node in groups inside it, and in groups across nodes."""

    inside: float
    across: float

    @property
    def total(self) -> float:
        """Both together."""
        return self.inside + self.across


def hybrid_state_bytes(params: float, ranks_per_node: int, precision: str = "mixed") -> float:
    """Bytes of state a rank under hybrid sharding: 16/k a parameter, however many nodes there are."""
    return zero_state_bytes(params, ranks_per_node, 3, precision)


def hybrid_bytes_per_step(params: float, ranks_per_node: int, nodes: int, itemsize: int = 2) -> Sent:
    """Bytes that each rank sends: 3 (k-1)/k M inside its node, and 2 (m-1)/m M/k to its peers in other nodes.

    7B, 8 nodes of 8 ranks: 36.75 GB inside, 3.06 GB across. Sharded over all 64 each rank sends 41.3 GB, in one ring in
    which an eighth of the ranks sends its share across nodes.
    """
    not_negative(params=params)
    whole(ranks_per_node=ranks_per_node, nodes=nodes, itemsize=itemsize)
    nbytes = params * itemsize
    inside = 2 * ring_all_gather.bytes(nbytes, ranks_per_node) + ring_reduce_scatter.bytes(nbytes, ranks_per_node)
    return Sent(inside, ring_all_reduce.bytes(nbytes / ranks_per_node, nodes))


def node_egress_bytes(params: float, ranks_per_node: int, nodes: int, strategy: str, itemsize: int = 2) -> float:
    """Bytes that leave each node in a step, all its ranks together: what the slow links carry.

    With rings over all ranks, node after node, only the last rank of a node sends across: 3 (N-1)/N M for full_shard,
    2 (N-1)/N M for shard_grad_op and no_shard. Under hybrid, k ranks send 2 (m-1)/m M/k each: 2 (m-1)/m M together.
    """
    one_of(STRATEGIES, strategy=strategy)
    sent = hybrid_bytes_per_step(params, ranks_per_node, nodes, itemsize)
    if strategy == "hybrid":
        return ranks_per_node * sent.across
    return zero_bytes_per_step(params, ranks_per_node * nodes, _STAGE[strategy], itemsize) if nodes > 1 else 0.0
