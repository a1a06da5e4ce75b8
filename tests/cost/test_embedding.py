"""Tables, skew and who gets what: against sums by hand, draws, and every placement that there is."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import example, given, strategies as st

from labkit import cost

loads = st.lists(st.integers(0, 50), min_size=1, max_size=6)


def test_bytes_of_a_table():
    assert cost.table_bytes(10_000_000, 16) == 720_000_000
    assert cost.table_bytes(10, 3, "sgd") == 10 * (12 + 4) and cost.table_bytes(10, 3, "adam") == 10 * (36 + 4)
    with pytest.raises(ValueError, match="optimizer must be one of"):
        cost.table_bytes(10, 3, "lamb")


@given(loads, st.integers(1, 4))
@example([1, 1, 2], 2)
def test_placed_tables_are_within_grahams_bound_of_the_best(loads, size):
    def fullest(owners):
        return max(sum(n for n, owner in zip(loads, owners, strict=True) if owner == r) for r in range(size))

    best = min(fullest(owners) for owners in itertools.product(range(size), repeat=len(loads)))
    assert best <= fullest(cost.place_tables(loads, size)) <= (4 / 3 - 1 / (3 * size)) * best + 1e-9


@given(loads, st.integers(1, 4), st.randoms(use_true_random=False))
def test_rebalancing_never_makes_it_worse_and_ends_where_no_move_helps(loads, size, dice):
    old = [dice.randrange(size) for _ in loads]
    new = cost.rebalanced_owners(loads, old, size)

    def total(owners):
        return [sum(n for n, owner in zip(loads, owners, strict=True) if owner == r) for r in range(size)]

    assert max(total(new)) <= max(total(old))
    after = total(new)
    full, empty = after.index(max(after)), after.index(min(after))
    assert all(load == 0 or load >= after[full] - after[empty]
               for load, owner in zip(loads, new, strict=True) if owner == full)  # fmt: skip
    assert cost.rebalanced_owners(loads, new, size) == new


def test_shares_of_zipf_by_hand():
    assert cost.zipf_share(3, 1.0, 1) == pytest.approx(1 / (1 + 1 / 2 + 1 / 3))
    assert cost.zipf_share(100, 0.0, 25) == pytest.approx(0.25)
    harmonic = sum(1 / k for k in range(1, 11))
    assert cost.zipf_shard_loads(10, 1.0, 3)[0] == pytest.approx((1 + 1 / 2 + 1 / 3 + 1 / 4) / harmonic)
    assert cost.zipf_shard_loads(10, 1.0, 3, "modulo")[2] == pytest.approx((1 / 3 + 1 / 6 + 1 / 9) / harmonic)


def test_different_ids_of_a_batch_and_shards_are_those_of_draws():
    """2,000 batches; within 5 standard errors: wrong once in a million seeds."""
    rows, skew, batch, size = 50, 1.2, 20, 4
    dice = random.Random(3)
    weights = [(k + 1) ** -skew for k in range(rows)]
    batches = [set(dice.choices(range(rows), weights, k=batch)) for _ in range(2000)]
    unique = np.array([len(ids) for ids in batches])
    assert abs(unique.mean() - cost.zipf_unique(rows, skew, batch)) < 5 * unique.std() / 2000**0.5
    asked = np.array([sum(i % size == 0 for i in ids) for ids in batches])
    expected = cost.zipf_shard_loads(rows, skew, size, "modulo", batch)[0] * cost.zipf_unique(rows, skew, batch)
    assert abs(asked.mean() - expected) < 5 * asked.std() / 2000**0.5


def test_one_row_is_always_there_and_a_cache_of_all_misses_nothing():
    assert cost.zipf_unique(1, 1.0, 9) == pytest.approx(1)
    assert cost.zipf_hit_rate(5, 1.0, 5) == 1.0
    assert cost.zipf_hit_rate(1000, 0.0, 100, "lru") == pytest.approx(0.1, rel=1e-3)  # uniform: any 100 are as good
    lru, lfu = (cost.zipf_hit_rate(1000, 1.0, 100, policy) for policy in ("lru", "lfu"))
    assert lru < lfu == pytest.approx(cost.zipf_share(1000, 1.0, 100))
