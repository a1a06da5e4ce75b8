"""AD-PSGD: no update is lost between threads, a slow rank holds nobody up, a dead one neither, and bytes are exact."""

from __future__ import annotations

import pytest
import torch
from slices import few

import labkit
from labkit import Kill, Slow, cost
from labkit.models import MLP, MLPConfig
from labkit.optim.synchrony import ADPSGD, GossipSGD, graphs
from labkit.wire.errors import RefusedError

CONFIG = MLPConfig((5, 4, 2))
SECOND = 10**9


def train(group, graph, steps, method=ADPSGD):
    """Steps of known size: every rank moves each weight by 2^-10 (rank + 1) a step, which floats add up exactly."""
    module = MLP(CONFIG, seed=0)
    with torch.no_grad():
        for p in module.parameters():
            p.zero_()
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    model = method(module, group, optimizer, graph)
    for _ in range(steps):
        group.compute(1.0)
        for p in module.parameters():
            p.grad = torch.full_like(p, -(2.0**-10) * (group.rank + 1))
        model.step()
    took = group.context.clock_here().now() / SECOND
    if method is ADPSGD:
        model.close()
    return torch.cat([p.detach().flatten() for p in module.parameters()]), took, getattr(model, "meetings", 0)


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("size", "make"), few([(3, graphs.bipartite), (5, graphs.bipartite), (4, graphs.ring), (1, graphs.ring)], 2)
)
def test_averages_keep_the_sum_of_all_steps_and_bytes_are_those_of_the_formula(size, make):
    steps, graph = 8, make(size)
    run = labkit.launch(train, size, graph, steps, transport="local", clock="virtual")
    total = sum(weights.double() for weights, _, _ in run.results)
    expected = torch.full_like(total, 2.0**-10 * steps * sum(range(1, size + 1)))
    torch.testing.assert_close(total, expected, rtol=1e-6, atol=0)  # no meeting has lost, or doubled, a step
    active, _ = graphs.sides(graph)
    nbytes = 4 * CONFIG.num_parameters
    own = [m for m in run.trace.sends if m.collective < 0]  # a passive rank may answer before its own first step
    sent = [sum(m.nbytes for m in own if m.src == r) for r in range(size)]
    for rank in active if size > 1 else ():
        neighbours = len(graphs.heard(graph, rank))
        assert sent[rank] == cost.ad_psgd_bytes(nbytes, steps, neighbours)[0]
    met = [meetings for _, _, meetings in run.results]
    assert sum(sent) - sum(sent[r] for r in active) == nbytes * sum(met) // 2
    assert sum(met[r] for r in active) * 2 == sum(met) and (size == 1 or met[0] == steps)


@pytest.mark.ranks
@pytest.mark.parametrize("slow", [0, 1])
def test_a_slow_rank_holds_up_its_neighbours_in_gossip_and_nobody_here(slow):
    """Rank `slow` computes 4 times as long: as an active rank and as a passive one."""
    graph, steps = graphs.bipartite(3), 6
    fault = [Slow(slow, factor=4.0)]
    for method, others in ((GossipSGD, 4.0), (ADPSGD, 1.0)):
        run = labkit.launch(train, 3, graph, steps, method, clock="virtual", transport="local", faults=fault)
        took = [seconds for _, seconds, _ in run.results]
        assert took[slow] == 4.0 * steps
        for rank in graphs.heard(graph, slow):
            assert abs(took[rank] - others * steps) < 1e-6


@pytest.mark.ranks
@pytest.mark.parametrize("dead", [0, 1])
def test_a_rank_that_dies_is_left_out_and_the_others_end_their_steps(dead):
    run = labkit.launch(train, 5, graphs.bipartite(5), 6, transport="local", on_failure="continue",
                        faults=[Kill(dead, at="compute", nth=3)])  # fmt: skip
    alive = [result for rank, result in enumerate(run.results) if rank != dead]
    assert [f.rank for f in run.failures] == [dead] and all(result is not None for result in alive)


@pytest.mark.ranks
def test_graphs_without_two_sides_are_refused_on_every_rank():
    def refused(group):
        with pytest.raises(RefusedError) as said:
            train(group, graphs.ring(group.size), 1)
        return str(said.value)

    for said in labkit.launch(refused, 3).results:
        assert said.startswith("ranks 1 and 2 are joined and lie on the same side")
