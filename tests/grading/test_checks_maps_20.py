"""What judges the programs of chapter 20: the fewest moves are the fewest of all, layers are of every kind, and slips
in a sum are named."""

from __future__ import annotations

import itertools
import re

import pytest
import torch

from labkit.grading.checks.fresh import Fresh
from labkit.grading.checks.student import Evidence, NotRight
from labkit.grading.reference import chapter_20_maps as maps
from labkit.grading.reference import chapter_20_widths as widths
from labkit.resilience.ntp import shard_map


class Seeded(Fresh):
    """As much of a student as the inputs of a check need."""

    def __init__(self, seed):
        super().__init__(seed, "a test")

    def expect(self, holds, sentence, **values):
        if not holds:
            raise NotRight(sentence.format(**values))


def even_loads(shards, ranks):
    """All ways in which loads of so many ranks can differ by one at most."""
    each, over = divmod(shards, ranks)
    return {tuple(each + (rank in longer) for rank in range(ranks))
            for longer in itertools.combinations(range(ranks), over)}  # fmt: skip


@pytest.mark.parametrize("ranks", range(2, 7))
def test_the_fewest_moves_are_the_fewest_of_all_even_layouts(ranks):
    """A rank keeps of its stretch what it can compute, whatever the loads are, and whichever stretches are long."""
    for lost in range(1, ranks):
        for shards in range(ranks, 4 * ranks + 2):
            for sync in even_loads(shards, ranks - lost):
                stretches = [*sync, *[0] * lost]
                kept = max(sum(map(min, load, stretches)) for load in even_loads(shards, ranks))
                assert maps.fewest_moves(shards, ranks, lost) == shards - kept


def test_the_librarys_map_moves_as_few():
    for shards, ranks, reduced in ((61, 8, 5), (128, 32, 30), (5, 4, 3), (48, 8, 6), (12, 4, 1)):
        found = shard_map(shards, ranks, reduced)
        assert found.moved == maps.fewest_moves(shards, ranks, ranks - reduced)
        assert sum(maps.counts_of(found.sync, found.compute).values()) == found.moved


@pytest.mark.parametrize("seed", range(60))
def test_layers_are_of_all_kinds(seed):
    for largest in (8, 20):
        layers = maps.some_layers(Seeded(seed), 4, largest)
        for layer in layers:
            lost = layer["lost"]
            assert lost == sorted(set(lost)) and 0 < len(lost) < layer["ranks"] <= min(largest, layer["shards"])
        even, little, much, few = layers
        rest = even["ranks"] - len(even["lost"])
        assert even["shards"] % even["ranks"] == even["shards"] % rest == rest % len(even["lost"]) == 0
        assert even["shards"] // rest - even["shards"] // even["ranks"] >= 2 <= len(even["lost"])
        assert even["lost"][-1] < even["ranks"] - 1
        assert 0 in little["lost"] and 0 < little["shards"] % little["ranks"] <= little["ranks"] - len(little["lost"])
        assert much["shards"] % much["ranks"] > much["ranks"] - len(much["lost"])
        assert few["shards"] < few["ranks"] + 4


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("n", [2, 3, 4, 5, 6, 7])
def test_in_a_job_every_shard_is_once_in_each_replica_and_bytes_go_where_the_map_says(seed, n):
    job = widths.some_job(Seeded(seed), n, 3, 29, even=n == 2)
    ranks, sync, compute = (job.inputs[0][name] for name in ("ranks", "sync", "compute"))
    assert sorted(rank for row in ranks for rank in row if rank is not None) == list(range(n))
    assert sorted(sum(sync, [])) == list(range(29))
    for row, layout in zip(ranks, compute, strict=True):
        assert sorted(sum(layout, [])) == list(range(29))
        lengths = [len(mine) for rank, mine in zip(row, layout, strict=True) if rank is not None]
        assert max(lengths) - min(lengths) <= 1
        assert all(not mine for rank, mine in zip(row, layout, strict=True) if rank is None)
    assert sum(map(sum, job.between)) == 2 * 29
    wide, narrow = len(ranks[0]), min(sum(rank is not None for rank in row) for row in ranks)
    assert sum(map(sum, job.inside)) == 2 * maps.fewest_moves(29, wide, wide - narrow)


def test_narrow_replicas_come_first_and_second_and_lose_any_rank():
    jobs = [widths.some_job(Seeded(seed), 7, 2, 20) for seed in range(40)]
    first = [None in job.inputs[0]["ranks"][0] for job in jobs]
    assert 5 < sum(first) < 35
    lost = {row.index(None) for job in jobs for row in job.inputs[0]["ranks"] if None in row}
    assert lost == {0, 1, 2}


def wrong_sums(job, rank, row, value):
    results = widths.sums_of(job)
    results[rank][row] = value
    return Evidence(results)


def test_a_wrong_sum_is_said_with_shard_rank_and_cause():
    job = widths.some_job(Seeded(3), 5, 6, 20)
    right = widths.sums_of(job)
    widths.expect_sums(Seeded(0), Evidence(right), job)
    own = job.inputs[2]["gradients"][1]
    for value, cause in (
        (own, "never added up"),
        (right[2][1] + own, "added to it twice"),
        (right[2][1] - own, "of the other replica alone"),
        (right[2][0], "rows lie in the order"),
        (job.inputs[0]["gradients"][0] + job.inputs[4]["gradients"][2], "of replica 0 plus shard"),
        (right[2][1] * 0 + 99, "Which gradients are in it"),
    ):
        with pytest.raises(NotRight, match=cause) as caught:
            widths.expect_sums(Seeded(0), wrong_sums(job, 2, 1, value), job)
        assert re.match(r"With 5 ranks: shard \d+ is wrong on rank 2, ", str(caught.value))


def test_sums_are_those_of_the_whole_gradients():
    """Against gradients that are laid out as one tensor for each replica, and added as such."""
    job = widths.some_job(Seeded(8), 6, 4, 31)
    wholes = torch.zeros(2, 31, 4)
    for rank, mine in enumerate(job.inputs):
        replica = next(r for r, row in enumerate(mine["ranks"]) if rank in row)
        held = mine["compute"][replica][mine["ranks"][replica].index(rank)]
        wholes[replica, held] = mine["gradients"]
    for rank, mine in enumerate(job.inputs):
        replica = next(r for r, row in enumerate(mine["ranks"]) if rank in row)
        held = mine["compute"][replica][mine["ranks"][replica].index(rank)]
        assert torch.equal(wholes.sum(0)[held], widths.sums_of(job)[rank])
