"""Hierarchical all-reduce: shrink the tensor on fast links before it crosses slow ones.

Ranks sit on nodes of k (rank = node * k + local). Three phases: a ring reduce-scatter inside each node, after
which rank `local` holds part `local`; a ring all-reduce of that part among the ranks of the same `local` on
all nodes; a ring all-gather inside each node. Across the slow links goes 1 / k of what a flat ring sends
(Mikami et al. 2018). Time is alpha-beta time (Hockney 1994), with one port a rank for each kind of
link: (alpha, beta) inside a node, (inter_alpha, inter_beta) between nodes.
"""

from __future__ import annotations

from labkit.cost.collectives.checks import check
from labkit.cost.collectives.forms import Form
from labkit.cost.collectives.links import Links
from labkit.cost.collectives.parts import split_sizes
from labkit.cost.collectives.ring import ring_all_gather, ring_all_reduce, ring_reduce_scatter


def _nodes(size: int, ranks_per_node: int | None) -> tuple[int, int]:
    """(number of nodes, ranks on each); all ranks are on one node unless told otherwise."""
    return Links(0, 0, ranks_per_node).nodes(size)


class HierarchicalAllReduce(Form):
    """Reduce-scatter inside the nodes, all-reduce between them, all-gather inside."""

    def rounds(self, size: int, ranks_per_node: int | None = None) -> int:
        """2 (k - 1) inside the nodes and 2 (nodes - 1) between them."""
        nodes, k = _nodes(size, ranks_per_node)
        return ring_all_reduce.rounds(k) + ring_all_reduce.rounds(nodes)

    def bytes(self, nbytes: float, size: int, ranks_per_node: int | None = None) -> float:
        """Bytes that each rank sends on all links, when `nbytes` divides evenly.

        2 (k - 1) / k * nbytes inside the node, 2 (nodes - 1) / nodes * nbytes / k between nodes; together
        2 (p - 1) / p * nbytes, as for a flat ring.
        """
        nodes, k = _nodes(size, ranks_per_node)
        return ring_all_reduce.bytes(nbytes, k) + ring_all_reduce.bytes(nbytes / k, nodes)

    def bytes_by_rank(self, numel: int, itemsize: int, size: int, ranks_per_node: int | None = None) -> list[int]:
        """Bytes sent by each rank, exact for any element count.

        The tensor is cut into k parts, and each part into as many chunks as there are nodes.
        """
        nodes, k = _nodes(size, ranks_per_node)
        scatter = ring_reduce_scatter.bytes_by_rank(numel, itemsize, k)
        across = [ring_all_reduce.bytes_by_rank(part, itemsize, nodes) for part in split_sizes(numel, k)]
        gather = ring_all_gather.bytes_by_rank(numel, itemsize, k)
        return [scatter[r % k] + across[r % k][r // k] + gather[r % k] for r in range(size)]

    def inter_bytes_by_rank(self, numel: int, itemsize: int, size: int, ranks_per_node: int | None = None) -> list[int]:
        """Of those bytes, the ones that leave the node."""
        nodes, k = _nodes(size, ranks_per_node)
        across = [ring_all_reduce.bytes_by_rank(part, itemsize, nodes) for part in split_sizes(numel, k)]
        return [across[r % k][r // k] for r in range(size)]

    def messages_by_rank(self, size: int, ranks_per_node: int | None = None) -> list[int]:
        """2 (k - 1) + 2 (nodes - 1) from every rank."""
        return [self.rounds(size, ranks_per_node)] * size

    def time(
        self,
        nbytes: float,
        size: int,
        alpha: float,
        beta: float,
        ranks_per_node: int | None = None,
        inter_alpha: float | None = None,
        inter_beta: float | None = None,
    ) -> float:
        """Seconds: a ring all-reduce of nbytes over k ranks inside, and one of nbytes / k over the nodes between.

        Links between nodes are like those inside unless `inter_alpha` and `inter_beta` say otherwise.
        """
        check(nbytes=nbytes)
        links = Links(alpha, beta, ranks_per_node, inter_alpha, inter_beta)
        nodes, k = links.nodes(size)
        return ring_all_reduce.time(nbytes, k, alpha, beta) + ring_all_reduce.time(nbytes / k, nodes, *links.between)


hierarchical_all_reduce = HierarchicalAllReduce("all_reduce", "hierarchical")


def flat_ring_all_reduce_time(
    nbytes: float,
    size: int,
    alpha: float,
    beta: float,
    ranks_per_node: int | None = None,
    inter_alpha: float | None = None,
    inter_beta: float | None = None,
) -> float:
    """Seconds for one ring over all ranks of such a network: its slowest link sets the pace of every step.

    The ring goes through the ranks in order, so it leaves each node once. Exact where the two kinds of link
    differ in bandwidth; where they differ in latency it is an upper bound, because a slow link's latency is
    paid by one message while the others go on.
    """
    check(nbytes=nbytes)
    links = Links(alpha, beta, ranks_per_node, inter_alpha, inter_beta)
    nodes, k = links.nodes(size)
    inside = ring_all_reduce.time(nbytes, size, alpha, beta)
    between = ring_all_reduce.time(nbytes, size, *links.between)
    return inside if nodes == 1 else between if k == 1 else max(inside, between)
