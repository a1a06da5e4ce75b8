"""Sequences to ranks: largest differencing, against its own example and against the best there is."""

import itertools

import pytest
from hypothesis import given, strategies as st

from labkit import cost
from labkit.align.batching import imbalance, largest_differencing


def sums(costs, parts):
    return sorted(sum(costs[i] for i in part) for part in parts)


@given(costs=st.lists(st.integers(0, 50), max_size=20), parts=st.integers(1, 6))
def test_every_sequence_is_on_one_rank(costs, parts):
    found = largest_differencing(costs, parts)
    assert len(found) == parts and sorted(i for part in found for i in part) == list(range(len(costs)))
    assert all(part == sorted(part) for part in found)
    if costs:
        assert max(sums(costs, found)) <= sum(costs) / parts + max(costs)


def test_the_classic_example():
    """8, 7, 6, 5, 4: differences of 1, 1, then 4 - 1 - 1 = 2, so 16 and 14, where the best is 15 and 15."""
    assert sums([8, 7, 6, 5, 4], largest_differencing([8, 7, 6, 5, 4], 2)) == [14, 16]


@given(costs=st.lists(st.integers(1, 30), min_size=1, max_size=7), parts=st.integers(2, 3))
def test_near_the_best_of_all_partitions(costs, parts):
    best = min(
        max(sum(c for c, at in zip(costs, places, strict=True) if at == p) for p in range(parts))
        for places in itertools.product(range(parts), repeat=len(costs))
    )
    found = max(sums(costs, largest_differencing(costs, parts)))
    assert best <= found <= best * (4 / 3 - 1 / 3 / parts) + 1e-9  # Michiels et al. 2003


def test_better_than_dealing_out_by_length():
    costs = [2048] + [128] * 15 + [700, 650, 600]
    by_turns = [list(range(r, len(costs), 4)) for r in range(4)]
    assert imbalance(costs, largest_differencing(costs, 4)) < 1.4 < imbalance(costs, by_turns)
    assert imbalance([5, 5, 5], [[0], [1], [2]]) == 1 and imbalance([5], [[0], [], []]) == 3


def test_with_long_contexts_equal_tokens_are_not_equal_work():
    tokens = [100_000, 50_000, 50_000]
    work = [cost.sequence_flops(n, 70e9, 80, 8192) for n in tokens]
    by_tokens, by_work = largest_differencing(tokens, 2), largest_differencing(work, 2)
    assert imbalance(tokens, by_tokens) == 1 and imbalance(work, by_tokens) > 1.1
    assert imbalance(work, by_work) <= imbalance(work, by_tokens)


@pytest.mark.parametrize(("costs", "parts", "named"), [([1], 0, "parts=0"), ([1, -1], 2, "sequence 1 has the cost -1")])
def test_refusals(costs, parts, named):
    with pytest.raises(ValueError, match=named):
        largest_differencing(costs, parts)
    with pytest.raises(ValueError, match="cost nothing"):
        imbalance([], [[], []])
