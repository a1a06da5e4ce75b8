"""Hierarchical all-reduce: stay inside the node as long as possible.

Links inside a node are often ten times as fast as those between nodes. In a flat ring every link carries
2 (N - 1) / N * M bytes, slow ones included, and the slowest sets the pace of all. Here the k ranks of a node
first reduce-scatter among themselves; then rank l of every node reduces part l with its namesakes on the
other nodes; then the node gathers the parts. On m nodes a rank sends only 2 (m - 1) / m * M / k bytes to
another node: the traffic of a node is spread over k links instead of one, and 2 (m - 1) messages in a row are
slow ones instead of 2 (N - 1).
Source: Mikami et al. 2018, "Massively distributed SGD" (arXiv 1811.05233, 2D-torus all-reduce).
"""

from __future__ import annotations

from torch import Tensor

from labkit.collectives.checks import whole_nodes
from labkit.collectives.chunks import even_sizes
from labkit.collectives.registry import algorithm
from labkit.collectives.ring import ring_all_gather, ring_all_reduce, ring_reduce_scatter
from labkit.wire.group import Group
from labkit.wire.ops import SUM, ReduceOp


@algorithm("all_reduce", "hierarchical", requires=whole_nodes)
def hierarchical_all_reduce(x: Tensor, group: Group, op: ReduceOp = SUM) -> Tensor:
    """Reduce `x` over all ranks, in place, and return it: rings inside nodes, and rings across them.

    x: any shape, the same on every rank. Sent and added up in the dtype of `x`; about two copies of `x`
    beside it are alive at the end. Rank = node * k + local, with k = `group.ranks_per_node`, which must
    divide the group's size.
    Order: the ring's order inside each node, then the ring's order over the nodes; each part is finished on
    one rank of each node from the same numbers, so all ranks hold the same bits.
    Bytes sent: `cost.collectives.hierarchical_all_reduce_bytes`. Source: Mikami et al. 2018.
    """
    k = group.ranks_per_node
    node, local = divmod(group.rank, k)
    inside = group.subgroup(range(node * k, (node + 1) * k))
    across = group.subgroup(range(local, group.size, k))
    flat = x.view(-1)

    part = ring_reduce_scatter(flat, inside, op)  # my part, summed over my node
    ring_all_reduce(part, across, op)  # ... and over all nodes
    flat.copy_(ring_all_gather(part, inside, sizes=even_sizes(len(flat), k)))
    return x
