"""Seconds in the alpha-beta model: every closed form against the simulated algorithm."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, strategies as st

from labkit import cost

from .runs import run

ALPHA, BETA = 3.0, 0.25
NAMES = [(c.collective, c.algorithm) for c in cost.all_costs()]
each = pytest.mark.parametrize(("collective", "algorithm"), NAMES)


def same_links(src: int, dst: int, elements: int) -> float:
    return ALPHA + elements * BETA


def two_kinds(k: int, inter: tuple[float, float]):
    """Links of nodes of k ranks, and slower or faster ones between them."""

    def link(src: int, dst: int, elements: int) -> float:
        alpha, beta = (ALPHA, BETA) if src // k == dst // k else inter
        return alpha + elements * beta

    return link


def unit(size: int, k: int, chunks: int) -> int:
    """The smallest tensor that every algorithm cuts evenly."""
    return math.lcm(size, 1 << (size.bit_length() - 1), k, chunks)


@each
@given(size=st.integers(1, 16), units=st.integers(0, 2))
def test_even_tensors_take_exactly_that_long(collective, algorithm, size, units):
    k, chunks = (size // 2 if size % 2 == 0 else 1), 3
    c = cost.cost_of(collective, algorithm)
    numel = units * unit(size, k, chunks)
    simulated = run(collective, algorithm, numel, size, size // 2, ranks_per_node=k, chunks=chunks, link=same_links)
    # Times are per element here: an element is one "byte".
    seconds = c.seconds_on(numel, size, cost.Links(ALPHA, BETA, k), chunks)
    assert seconds == pytest.approx(simulated.seconds, rel=1e-12)


@each
@given(size=st.integers(1, 13), numel=st.integers(0, 60))
def test_uneven_tensors_take_no_longer_than_the_next_even_one(collective, algorithm, size, numel):
    c = cost.cost_of(collective, algorithm)
    step = unit(size, 1, 1) if size & (size - 1) else size
    below, above = numel // step * step, -(-numel // step) * step
    simulated = run(collective, algorithm, numel, size, link=same_links).seconds
    low, high = (c.seconds(n, size, ALPHA, BETA, chunks=1) for n in (below, above))
    assert low * (1 - 1e-12) <= simulated <= high * (1 + 1e-12)


@pytest.mark.parametrize(("nodes", "k"), [(1, 4), (2, 1), (2, 3), (3, 2), (4, 4), (5, 1)])
@pytest.mark.parametrize("inter", [(30.0, 2.5), (3.0, 2.5), (40.0, 0.25), (1.0, 0.05)])
def test_two_kinds_of_links(nodes, k, inter):
    size = nodes * k
    numel = 2 * size * k
    link = two_kinds(k, inter)
    args = numel, size, ALPHA, BETA, k, *inter
    hierarchical = run("all_reduce", "hierarchical", numel, size, ranks_per_node=k, link=link)
    assert cost.hierarchical_all_reduce_time(*args) == pytest.approx(hierarchical.seconds)
    flat = run("all_reduce", "ring", numel, size, link=link)
    assert cost.flat_ring_all_reduce_time(*args) == pytest.approx(flat.seconds)


@each
@pytest.mark.parametrize("inter", [(30.0, 2.5), (1.0, 0.05)])
def test_slower_links_between_nodes_bound_every_algorithm(collective, algorithm, inter):
    for nodes, k in ((2, 3), (4, 1), (1, 5)):
        size = nodes * k
        numel = unit(size, k, 2)
        simulated = run(collective, algorithm, numel, size, ranks_per_node=k, chunks=2, link=two_kinds(k, inter))
        bound = cost.cost_of(collective, algorithm).seconds_on(numel, size, cost.Links(ALPHA, BETA, k, *inter), 2)
        assert simulated.seconds <= bound * (1 + 1e-12)
        if algorithm in ("ring", "hierarchical") and inter[0] > ALPHA:
            assert simulated.seconds == pytest.approx(bound)


@given(data=st.data(), size=st.integers(1, 8))
def test_uneven_all_to_all_stays_below_its_bound(data, size):
    row = st.lists(st.integers(0, 9), min_size=size, max_size=size)
    counts = data.draw(st.lists(row, min_size=size, max_size=size), label="counts")
    simulated = run("all_to_all", "pairwise", 0, size, counts=counts, link=same_links).seconds
    bound = cost.pairwise_all_to_all_time_of_counts(counts, 1, ALPHA, BETA)
    assert simulated <= bound * (1 + 1e-12)
    # A popular expert: everyone sends all it has to rank 0, and the bound is the truth.
    popular = [[7 if q == 0 else 0 for q in range(size)] for _ in range(size)]
    simulated = run("all_to_all", "pairwise", 0, size, counts=popular, link=same_links).seconds
    assert simulated == pytest.approx(cost.pairwise_all_to_all_time_of_counts(popular, 1, ALPHA, BETA))


def test_even_counts_take_the_time_of_the_even_formula():
    counts = [[5] * 6] * 6
    bound = cost.pairwise_all_to_all_time_of_counts(counts, 4, ALPHA, BETA)
    assert bound == pytest.approx(cost.pairwise_all_to_all_time(6 * 5 * 4, 6, ALPHA, BETA))


@given(size=st.integers(2, 40), nbytes=st.integers(0, 10**6), alpha=st.floats(1e-3, 50))
def test_the_best_chunk_count_beats_all_others(size, nbytes, alpha):
    best = cost.chain_broadcast_best_chunks(nbytes, size, alpha, 1e-3)
    time = cost.chain_broadcast_time(nbytes, size, alpha, 1e-3, best)
    for other in {1, 2, max(1, best - 1), best + 1, 2 * best, max(1, best // 2)}:
        assert time <= cost.chain_broadcast_time(nbytes, size, alpha, 1e-3, other) * (1 + 1e-12)
    assert cost.chain_broadcast_time(nbytes, size, alpha, 1e-3) == time


def test_the_best_chunk_count_at_the_limits():
    assert cost.chain_broadcast_best_chunks(1e6, 2, 1e-6, 1e-9) == 1  # two ranks have nothing to pass on
    assert cost.chain_broadcast_best_chunks(1e6, 8, 1e-6, 1e-9) == round(math.sqrt(6 * 1e6 * 1e-9 / 1e-6))
    assert cost.chain_broadcast_best_chunks(1e6, 8, 1e-6, 1e-9, limit=10) == 10
    assert cost.chain_broadcast_best_chunks(1e6, 8, 0, 1e-9, limit=10) == 10
    with pytest.raises(ValueError, match="limit"):
        cost.chain_broadcast_best_chunks(1e6, 8, 0, 1e-9)
    assert cost.chain_broadcast_time(1e6, 8, 0, 1e-9) == pytest.approx(1e-3)
    assert cost.chain_broadcast_time(1e9, 100, 1e-6, 1e-9) == pytest.approx(1.0, rel=0.03)  # however long
