"""Mixing matrices mix at the rate of their spectrum, in theory and between ranks; and what cannot mix is refused."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from slices import few

import labkit
from labkit import cost
from labkit.models import MLP, MLPConfig
from labkit.optim.synchrony import GossipSGD, consensus_distance, graphs, mix
from labkit.wire.errors import RefusedError

STATIC = {
    "ring": graphs.ring,
    "complete": graphs.complete,
    "bipartite": graphs.bipartite,
    "exponential": graphs.exponential,
    "random": lambda n: graphs.erdos_renyi(n, 0.7, seed=0),
}
CONFIG = MLPConfig((6, 9, 3))


@pytest.mark.parametrize("name", STATIC)
def test_every_graph_is_a_stochastic_matrix_that_mixes(name):
    for size in (1, 2, 3, 5, 8, 13):
        w = graphs.check_mixing(STATIC[name](size), size)[0]
        rate = graphs.mixing_rate(w)
        assert 0 <= rate < 1
        apart = torch.linalg.matrix_norm(w - 1 / size, 2)  # what one round leaves of the worst difference
        assert math.isclose(rate, apart, abs_tol=1e-7)


def test_rates_are_those_of_closed_forms():
    for size in (3, 5, 8, 16):
        assert math.isclose(
            graphs.mixing_rate(graphs.ring(size)), 1 / 3 + 2 / 3 * math.cos(2 * math.pi / size), abs_tol=1e-12
        )
        assert graphs.mixing_rate(graphs.complete(size)) < 1e-12
    for size in (4, 8, 16):  # Ying et al. 2021, proposition 1
        log = math.log2(size)
        assert math.isclose(graphs.mixing_rate(graphs.exponential(size)), (log - 1) / (log + 1))
        assert graphs.mixing_rate(graphs.one_peer_exponential(size)) < 1e-12
    assert 0 < graphs.mixing_rate(graphs.one_peer_exponential(5)) < 1


def averages(group, graph, x, rounds):
    """Consensus distances before and after each round of averages alone, and what this rank holds in the end."""
    mine, turns = x[group.rank].clone(), graphs.check_mixing(graph, group.size)
    apart = [consensus_distance(mine, group)]
    for k in range(rounds):
        mine = mix(mine, turns[k % len(turns)], group)
        apart.append(consensus_distance(mine, group))
    return mine, apart


@pytest.mark.ranks
@pytest.mark.parametrize(("name", "size"), few([("ring", 5), ("exponential", 5), ("random", 5), ("bipartite", 3)], 2))
def test_the_distance_falls_by_the_mixing_rate_at_least_and_by_it_exactly_along_an_eigenvector(name, size):
    w = STATIC[name](size)
    rate = graphs.mixing_rate(w)
    x = torch.randn(size, 40, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    run = labkit.launch(averages, size, w, x, 4)
    for _, apart in run.results:
        assert all(after <= rate * before * (1 + 1e-12) for before, after in zip(apart, apart[1:], strict=False))
    together = torch.stack([mine for mine, _ in run.results])
    torch.testing.assert_close(together.mean(0), x.mean(0))  # columns sum to 1: the mean stays
    torch.testing.assert_close(together, torch.linalg.matrix_power(w, 4) @ x)
    if name == "ring":  # symmetric: its eigenvectors are real
        values, vectors = torch.linalg.eigh(w)
        slowest = vectors[:, values.argsort()[-2]][:, None].contiguous()
        for _, apart in labkit.launch(averages, size, w, slowest, 3).results:
            assert all(math.isclose(b, rate * a, rel_tol=1e-9) for a, b in zip(apart, apart[1:], strict=False))


@pytest.mark.ranks
def test_one_peer_at_a_time_makes_the_exact_mean_after_log_n_rounds():
    x = torch.arange(8.0)[:, None] ** 2  # whole numbers: sums and halves are exact
    for mine, apart in labkit.launch(averages, 8, graphs.one_peer_exponential(8), x, 3).results:
        assert apart[-1] == 0 and mine == x.mean() and apart[2] > 0


def train(group, graph, steps):
    module = MLP(CONFIG, seed=group.rank)
    model = GossipSGD(module, group, torch.optim.SGD(module.parameters(), lr=0.3), graph)
    group.step(1)
    for step in range(steps):
        dice = torch.Generator().manual_seed(100 * group.rank + step)
        x, y = torch.randn(4, 6, generator=dice), torch.randint(3, (4,), generator=dice)
        module.zero_grad()
        F.cross_entropy(module(x), y).backward()
        model.step()
    group.step(2)
    return torch.cat([p.detach().flatten() for p in module.parameters()]), model.consensus_distance()


def alone(size, graph, steps):
    """D-PSGD on one device: x <- W x - lr g(x), one row a rank."""
    turns = graphs.matrices(graph)
    module = MLP(CONFIG, seed=0)
    x = torch.nn.utils.parameters_to_vector(module.parameters()).detach().repeat(size, 1)
    for step in range(steps):
        g = torch.empty_like(x)
        for rank in range(size):
            torch.nn.utils.vector_to_parameters(x[rank].clone(), module.parameters())
            dice = torch.Generator().manual_seed(100 * rank + step)
            a, y = torch.randn(4, 6, generator=dice), torch.randint(3, (4,), generator=dice)
            module.zero_grad()
            F.cross_entropy(module(a), y).backward()
            g[rank] = torch.cat([p.grad.flatten() for p in module.parameters()])
        x = turns[step % len(turns)].float() @ x - 0.3 * g
    return x


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("size", "make", "neighbours"),
    few([(5, graphs.exponential, 3), (3, graphs.one_peer_exponential, 1), (1, graphs.ring, 0), (4, graphs.ring, 2)], 2),
)
def test_gossip_is_what_one_device_computes_and_bytes_are_those_of_the_formula(size, make, neighbours):
    graph, steps = make(size), 5
    run = labkit.launch(train, size, graph, steps, transport="local")
    expected = alone(size, graph, steps)
    apart = (expected - expected.mean(0)).square().sum(1).mean().sqrt()
    for rank, (weights, distance) in enumerate(run.results):
        torch.testing.assert_close(weights, expected[rank], rtol=1e-5, atol=1e-6)
        assert math.isclose(distance, apart, rel_tol=1e-4, abs_tol=1e-7)
    sent = [0] * size
    for m in run.trace.sends:
        sent[m.src] += m.nbytes if m.step == 1 else 0
    assert sent == [steps * cost.gossip_bytes(4 * CONFIG.num_parameters, neighbours)] * size


def block(*rows):
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize(
    ("graph", "size", "words"),
    [
        (graphs.ring(3), 4, r"has shape \(3, 3\): 4 ranks need \(4, 4\)"),
        (block([0.5, 0.4], [0.5, 0.5]), 2, "row 0 of the mixing matrix sums to 0.9"),
        (block([0.5, 0.5], [0.25, 0.75]), 2, "column . of the mixing matrix sums to"),
        (block([1.5, -0.5], [-0.5, 1.5]), 2, r"weight \[0, 1\] of the mixing matrix is -0.5"),
        (block([math.nan, 1], [1, 0]), 2, r"weight \[0, 0\] of the mixing matrix is nan"),
        (graphs.metropolis([(0, 1), (2, 3), (3, 4)], 5), 5, "no path joins rank 0 with ranks 2, 3, 4"),
        (block([0, 1], [1, 0]), 2, "only pass their weights around"),
        ([torch.eye(2), torch.eye(2)], 2, "no path joins rank 0 with rank 1"),
    ],
)
def test_a_graph_that_does_not_mix_is_refused_with_what_fails(graph, size, words):
    with pytest.raises(RefusedError, match=words):
        graphs.check_mixing(graph, size)


def test_arguments_of_graphs_are_refused():
    for make, words in (
        (lambda: graphs.ring(0), "size=0"),
        (lambda: graphs.one_peer_exponential(2.0), "size=2.0"),
        (lambda: graphs.erdos_renyi(4, 0.0), "p=0.0"),
    ):
        with pytest.raises(RefusedError, match=words):
            make()
