"""Crossovers and the choice of an algorithm."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, strategies as st

from labkit import cost

ALPHA, BETA = 20e-6, 1e-9
LINKS = cost.Links(ALPHA, BETA)
LINES = [(c, a) for c in cost.COLLECTIVES for a in cost.ALGORITHMS[c] if a != "chain" and c != "barrier"]
PAIRS = [(c, a, b) for c, a in LINES for d, b in LINES if c == d and a != b]


def bisected(collective: str, small: str, large: str, size: int) -> float:
    a, b = cost.cost_of(collective, small), cost.cost_of(collective, large)
    return cost.crossover_by_bisection(
        lambda n: a.seconds(n, size, ALPHA, BETA), lambda n: b.seconds(n, size, ALPHA, BETA)
    )


@pytest.mark.parametrize("size", [1, 2, 3, 8, 12, 70])
def test_the_closed_form_is_where_bisection_ends(size):
    for collective, small, large in PAIRS:
        closed = cost.crossover(collective, small, large, size, ALPHA, BETA)
        bisection = bisected(collective, small, large, size)
        assert closed == pytest.approx(bisection, rel=1e-6, abs=1e-6), (collective, small, large)


@pytest.mark.parametrize("size", [3, 4, 5, 8, 100])
def test_the_two_named_crossovers(size):
    lg = math.ceil(math.log2(size))
    tree = (size - 1 - lg) * ALPHA / ((lg - (size - 1) / size) * BETA)
    assert cost.ring_tree_crossover(size, ALPHA, BETA) == pytest.approx(tree)
    assert cost.ring_tree_crossover(size, ALPHA, BETA) == pytest.approx(
        bisected("all_reduce", "tree", "ring", size), rel=1e-6, abs=1e-6
    )
    doubling = cost.ring_recursive_doubling_crossover(size, ALPHA, BETA)
    assert doubling == pytest.approx(bisected("all_reduce", "recursive_doubling", "ring", size), rel=1e-6)


def test_crossovers_that_a_hand_can_check():
    # p = 4: 2 rounds of n each against 6 of n / 4, so (6 - 2) alpha = (2 - 3/2) n beta.
    assert cost.ring_recursive_doubling_crossover(4, ALPHA, BETA) == pytest.approx(8 * ALPHA / BETA)
    # p = 8: 6 rounds of n each against 14 of n / 8.
    assert cost.ring_tree_crossover(8, ALPHA, BETA) == pytest.approx(8 * ALPHA / ((6 - 14 / 8) * BETA))
    # p = 2: the same bytes, but twice the messages: the ring never gets there.
    assert cost.ring_recursive_doubling_crossover(2, ALPHA, BETA) == math.inf
    # ... and against the tree it has as few messages and half the bytes: always.
    assert cost.ring_tree_crossover(2, ALPHA, BETA) == 0
    # Powers of two: halving-doubling has the ring's bytes in fewer messages.
    assert cost.crossover("all_reduce", "halving_doubling", "ring", 16, ALPHA, BETA) == math.inf
    assert cost.crossover("all_reduce", "ring", "halving_doubling", 16, ALPHA, BETA) == 0
    # Not a power of two: folding costs two whole tensors more, and the ring catches up.
    folded = cost.crossover("all_reduce", "halving_doubling", "ring", 6, ALPHA, BETA)
    assert folded == pytest.approx((10 - 6) * ALPHA / ((2 * 3 / 4 + 2 - 2 * 5 / 6) * BETA))


def test_rounding_makes_no_crossover():
    assert 0.1 + 0.2 > 0.3  # the same number of bytes, computed in two ways
    assert cost.line_crossing(1, 0.1 + 0.2, 2, 0.3, ALPHA, BETA) == math.inf
    assert cost.line_crossing(2, 0.3, 1, 0.1 + 0.2, ALPHA, BETA) == 0


def test_free_messages_and_free_bytes():
    assert cost.ring_tree_crossover(8, 0, BETA) == 0
    assert cost.ring_tree_crossover(8, ALPHA, 0) == math.inf


def test_chains_need_bisection():
    with pytest.raises(ValueError, match="bisection"):
        cost.crossover("broadcast", "tree", "chain", 8, ALPHA, BETA)
    n = bisected("broadcast", "tree", "chain", 8)
    tree, chain = cost.cost_of("broadcast", "tree"), cost.cost_of("broadcast", "chain")
    assert chain.seconds(n / 2, 8, ALPHA, BETA) > tree.seconds(n / 2, 8, ALPHA, BETA)
    assert chain.seconds(n * 2, 8, ALPHA, BETA) < tree.seconds(n * 2, 8, ALPHA, BETA)


@pytest.mark.parametrize("collective", cost.COLLECTIVES)
@given(size=st.integers(1, 40), nbytes=st.integers(0, 10**10))
def test_the_choice_is_the_least_time(collective, size, nbytes):
    ranked = cost.rank_algorithms(collective, nbytes, size, LINKS)
    times = {a: cost.cost_of(collective, a).seconds(nbytes, size, ALPHA, BETA) for _, a in ranked}
    best = cost.best_algorithm(collective, nbytes, size, LINKS)
    assert best == ranked[0][1]
    assert times[best] <= min(times.values()) * (1 + 1e-8)
    assert set(times) == set(cost.ALGORITHMS[collective]) - {"hierarchical"}
    assert [s for s, _ in ranked] == pytest.approx(sorted(s for s, _ in ranked))


def test_choices_that_the_field_makes():
    def choose(nbytes: int, size: int, **options: float) -> str:
        return cost.best_algorithm("all_reduce", nbytes, size, cost.Links(ALPHA, BETA, **options))

    assert choose(4, 8) == "recursive_doubling"
    assert choose(2**26, 8) == "halving_doubling"
    assert choose(2**30, 6) == "ring"  # not a power of two
    assert choose(2**30, 16, ranks_per_node=8, inter_alpha=ALPHA, inter_beta=20 * BETA) == "hierarchical"
    for k in (1, 16):  # nodes of one rank, or one node: there is no hierarchy
        timed = cost.rank_algorithms("all_reduce", 4, 16, cost.Links(ALPHA, BETA, k))
        assert "hierarchical" not in [name for _, name in timed]
    assert choose(2**30, 16, ranks_per_node=16) == "halving_doubling"  # one node: nothing to gain
    assert choose(2**30, 16, ranks_per_node=1, inter_beta=20 * BETA) == "halving_doubling"
    assert cost.best_algorithm("broadcast", 4, 8, LINKS) == "tree"
    assert cost.best_algorithm("broadcast", 2**30, 8, LINKS) == "chain"
    assert cost.best_algorithm("all_to_all", 8, 16, LINKS) == "bruck"
    assert cost.best_algorithm("all_to_all", 2**30, 16, LINKS) == "pairwise"


def test_equals_are_decided_by_the_list_and_not_by_rounding():
    for size in range(2, 40):
        for nbytes in (1, 3, 10**7 + 1):
            order = [a for _, a in cost.rank_algorithms("reduce_scatter", nbytes, size, LINKS)]
            assert order.index("ring") < order.index("pairwise")  # the same time
    assert cost.best_algorithm("all_reduce", 100, 1, LINKS) == cost.ALGORITHMS["all_reduce"][0]


def test_choosing_among_some():
    assert cost.best_algorithm("all_reduce", 4, 8, LINKS, among=["naive", "ring"]) == "ring"
    with pytest.raises(ValueError, match="'native'"):
        cost.best_algorithm("all_reduce", 4, 8, LINKS, among=["native"])
    with pytest.raises(ValueError, match="no collective 'allreduce'"):
        cost.best_algorithm("allreduce", 4, 8, LINKS)
    with pytest.raises(ValueError, match="divide the 6 ranks"):
        cost.best_algorithm("all_reduce", 4, 6, cost.Links(ALPHA, BETA, 4))
