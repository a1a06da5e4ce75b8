"""A cache of rows never shows: what is read is what was written. And how often it has a row is what Zipf's law says."""

from __future__ import annotations

import pytest
import torch

from labkit import cost
from labkit.data import zipf_ids
from labkit.parallel.embedding.stores import Cached, Plain
from labkit.wire.errors import RefusedError


@pytest.mark.parametrize("policy", ["lru", "lfu"])
@pytest.mark.parametrize("capacity", [1, 4, 40])
def test_whatever_is_read_and_written_a_cache_has_what_one_tensor_has(policy, capacity):
    dice = torch.Generator().manual_seed(capacity)
    rows = torch.randn(30, 3, generator=dice)
    plain, cached = Plain(rows.clone()), Cached(rows.clone(), capacity, policy)
    for n in range(200):
        places = torch.randperm(30, generator=dice)[: n % 9]
        assert torch.equal(plain.read(places, n % 3 < 2), cached.read(places, n % 3 < 2)), n
        if n % 2:
            new = torch.randn(len(places), 3, generator=dice)
            plain.write(places, new)
            cached.write(places, new)
        if n % 50 == 49:
            assert torch.equal(plain.all(), cached.all())
    assert cached.hits and cached.misses and cached.moved_bytes
    assert cached.nbytes == (30 + min(capacity, 30)) * (3 * 4 + 8)


def test_who_leaves():
    rows = torch.arange(4.0)[:, None]
    looks = ([0], [0], [1], [2], [0])  # a cache of two: 2 drives out what was last seen longest ago, or nobody
    hits = {}
    for policy in ("lru", "lfu"):
        cached = Cached(rows.clone(), 2, policy)
        for ids in looks:
            cached.read(torch.tensor(ids), lookup=True)
        hits[policy] = cached.hits
    assert hits == {"lru": 1, "lfu": 2}
    cached = Cached(rows.clone(), 2, "lru")
    for ids in ([0], [1], [0], [2], [0], [1]):
        cached.read(torch.tensor(ids), lookup=True)
    assert (cached.hits, cached.misses) == (2, 4)


@pytest.mark.parametrize("policy", ["lru", "lfu"])
def test_the_hit_rate_is_that_of_the_formula(policy):
    """Within 5 standard errors of 400 look-ups (wrong once in a million seeds), and one in a hundred: Che's formula is
    an approximation, and counts still take some rows of the edge for others."""
    rows, capacity, batch, skew = 3000, 300, 100, 1.05
    cached, dice, rates = Cached(torch.zeros(rows, 1), capacity, policy), torch.Generator().manual_seed(1), []
    for n in range(1400):
        before = cached.hits, cached.misses
        cached.read(zipf_ids((batch,), rows, skew, dice).unique(), lookup=True)
        hits, misses = cached.hits - before[0], cached.misses - before[1]
        rates += [hits / (hits + misses)] if n >= 1000 else []
    measured = torch.tensor(rates)
    expected = cost.zipf_hit_rate(rows, skew, capacity, policy, batch)
    assert abs(measured.mean() - expected) < 5 * measured.std() / len(rates) ** 0.5 + 0.01 * expected
    other = cost.zipf_hit_rate(rows, skew, capacity, {"lru": "lfu", "lfu": "lru"}[policy], batch)
    assert abs(measured.mean() - expected) < abs(measured.mean() - other)


def test_what_is_no_cache():
    for options, words in (((0,), "cache=0"), ((2, "fifo"), "policy='fifo'")):
        with pytest.raises(RefusedError, match=words):
            Cached(torch.zeros(4, 1), *options)
