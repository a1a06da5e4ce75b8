"""The sampler: disjoint, complete or padded as it says, the same steps at every world size."""

from __future__ import annotations

from itertools import zip_longest

import pytest
import torch
from hypothesis import given, strategies as st

import labkit
from labkit.parallel import Sampler
from labkit.wire.errors import RefusedError

COUNTS, RANKS, BATCHES = st.integers(1, 60), st.integers(1, 6), st.integers(1, 7)


def world(count, size, **options):
    """For each rank, its batches of epoch 0."""
    return [[b.tolist() for b in Sampler(count, (r, size), **options).epoch(0)] for r in range(size)]


@given(COUNTS, RANKS, BATCHES)
def test_exact_shows_each_example_once(count, size, batch):
    ranks = world(count, size, batch=batch, last="exact")
    assert sorted(i for batches in ranks for b in batches for i in b) == list(range(count))
    assert all(0 < len(b) <= batch for batches in ranks for b in batches)
    assert len(ranks[0]) - len(ranks[-1]) <= 1


@given(COUNTS, RANKS, BATCHES)
def test_pad_gives_equal_steps_and_shows_as_few_twice_as_it_can(count, size, batch):
    ranks = world(count, size, batch=batch, last="pad")
    shapes = {tuple(len(b) for b in batches) for batches in ranks}
    seen = [i for batches in ranks for b in batches for i in b]
    assert len(shapes) == 1 and set(seen) == set(range(count))
    assert len(seen) - count == -count % size if count % (batch * size) else len(seen) == count


@given(COUNTS, RANKS, BATCHES)
def test_drop_gives_full_batches_only(count, size, batch):
    if count < batch * size:
        with pytest.raises(RefusedError, match="smaller batch"):
            Sampler(count, (0, size), batch=batch, last="drop")
        return
    ranks = world(count, size, batch=batch, last="drop")
    seen = [i for batches in ranks for b in batches for i in b]
    assert len(set(seen)) == len(seen) == count - count % (batch * size)
    assert {len(b) for batches in ranks for b in batches} == {batch}


@given(COUNTS, RANKS, BATCHES, st.sampled_from(["pad", "drop", "exact"]))
def test_length_is_the_number_of_batches(count, size, batch, last):
    if last == "drop" and count < batch * size:
        return
    for rank in range(size):
        sampler = Sampler(count, (rank, size), batch=batch, last=last)
        assert len(sampler) == len(list(sampler.epoch(0)))


@given(COUNTS, RANKS, BATCHES)
def test_side_by_side_the_ranks_of_a_step_are_one_rank_with_a_larger_batch(count, size, batch):
    one = [b.tolist() for b in Sampler(count, (0, 1), batch=batch * size, last="exact").epoch(0)]
    ranks = world(count, size, batch=batch, last="exact")
    steps = [sum((b or [] for b in step), []) for step in zip_longest(*ranks)]
    assert steps == one


@pytest.mark.ranks
def test_an_epoch_is_a_function_of_seed_and_number():
    def epoch(seed, number, shuffle=True):
        return torch.cat(list(Sampler(100, (0, 1), batch=7, seed=seed, shuffle=shuffle).epoch(number))).tolist()

    assert epoch(0, 3) == epoch(0, 3) and epoch(0, 3) != epoch(0, 4) and epoch(0, 1) != epoch(1, 0)
    assert epoch(0, 5, shuffle=False) == list(range(100)) != epoch(0, 5)
    everywhere = labkit.launch(lambda g: torch.cat(list(Sampler(100, (0, 1), batch=7).epoch(3))).tolist(), 2).results
    assert everywhere == [epoch(0, 3)] * 2


@pytest.mark.ranks
def test_it_takes_its_place_from_a_group():
    def work(group):
        return [b.tolist() for b in Sampler(10, group, batch=2, shuffle=False).epoch(0)]

    assert labkit.launch(work, 2).results == [[[0, 1], [4, 5], [8]], [[2, 3], [6, 7], [9]]]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"count": 0, "batch": 1, "place": (0, 1)}, "at least 1"),
        ({"count": 5, "batch": 0, "place": (0, 1)}, "at least 1"),
        ({"count": 5, "batch": 1, "place": (2, 2)}, "rank 2 is not in a world of 2"),
        ({"count": 5, "batch": 1, "place": (0, 1), "last": "wrap"}, "'pad', 'drop' or 'exact'"),
    ],
)
def test_what_cannot_work_is_refused(options, words):
    with pytest.raises(RefusedError, match=words):
        Sampler(**options)
