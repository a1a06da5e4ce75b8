"""Gossip: every rank averages with a few neighbours, and no collective ever runs.

    model = GossipSGD(module, group, optimizer, graphs.ring(group.size))
    loss.backward()
    model.step()                   # in place of optimizer.step()

Ranks never agree wholly: each step pulls their weights apart by their different gradients, and each round of averages
brings them together again by the mixing rate of the graph. `consensus_distance` measures how far apart they are.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from labkit.collectives import all_reduce
from labkit.optim.synchrony.graphs import Graph, check_mixing, heard
from labkit.optim.synchrony.weights import Weights
from labkit.wire.group import Group


class GossipSGD:
    """D-PSGD (Lian et al. 2017): x_i <- sum over j of W[i, j] x_j, minus the step for the gradient at the old x_i.

    graph: one matrix or several that take turns (`graphs`), the same on every rank. With `graphs.complete` and plain
    SGD this is data-parallel training, but for rounding. Bytes of a step: the weights, once to each neighbour
    (`cost.gossip_bytes`). Raises RefusedError, on every rank, for a graph by which the ranks would not come to agree.
    """

    def __init__(self, module: nn.Module, group: Group, optimizer: torch.optim.Optimizer, graph: Graph) -> None:
        self.group, self.optimizer = group, optimizer
        self.turns = check_mixing(graph, group.size)
        self.weights = Weights(module, group, f"graph={[w.tolist() for w in self.turns]}")
        self.steps = 0

    def step(self) -> None:
        """Average with the neighbours, then let the optimizer move the average by the gradient that is in `.grad`."""
        self.weights.write(mix(self.weights.read(), self.turns[self.steps % len(self.turns)], self.group))
        self.optimizer.step()
        self.steps += 1

    def consensus_distance(self) -> float:
        """How far apart the ranks' weights are now. Every rank calls it."""
        return consensus_distance(self.weights.read(), self.group)


def mix(x: Tensor, w: Tensor, group: Group) -> Tensor:
    """sum over j of w[rank, j] times the x of rank j, added in rank order. x: 1-D, the same length everywhere.

    All messages are under way at once, so that no graph, directed ones included, makes ranks wait in a circle.
    """
    coming = {j: group.irecv(torch.empty_like(x), j) for j in heard(w, group.rank)}
    going = [group.isend(x, j) for j in heard(w.T, group.rank)]
    mixed = torch.zeros_like(x)
    for j, weight in enumerate(w[group.rank].tolist()):
        if weight:
            mixed.add_(x if j == group.rank else coming[j].wait(), alpha=weight)
    for handle in going:
        handle.wait()
    return mixed


def consensus_distance(x: Tensor, group: Group) -> float:
    """The root of the mean over ranks of |x_i - mean|^2. Costs an all-reduce of x, and one of a number."""
    mean = all_reduce(x.clone(), group, "avg")
    square = (x - mean).to(torch.float64).square().sum()
    return float(all_reduce(square, group, "avg").sqrt())
