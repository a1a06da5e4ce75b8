"""What judges the programs of chapter 20: the fewest moves are the fewest of all, layers are of every kind, slips are
named, and nothing passes that is one too many."""

from __future__ import annotations

import itertools
import re

import pytest
import torch

from labkit.chapters.c20_nonuniform_tensor_parallelism import maps, widths
from labkit.grading.checks.fresh import Fresh
from labkit.grading.checks.student import Evidence, NotRight
from labkit.grading.checks.wording import fill
from labkit.resilience.ntp import shard_map


class Seeded(Fresh):
    """As much of a student as the inputs of a check need."""

    def __init__(self, seed):
        super().__init__(seed, "a test")

    def expect(self, holds, sentence, **values):
        if not holds:
            raise NotRight(fill(sentence, values))


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


def test_a_rank_holds_its_shards_in_any_order():
    for seed in range(10):
        job = widths.some_job(Seeded(seed), 5, 2, 24)
        held = [mine for layout in job.inputs[0]["compute"] for mine in layout if mine]
        assert sum(mine != sorted(mine) for mine in held) >= 4


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


LAYER = {"shards": 11, "ranks": 4, "lost": [1]}
SYNC = [[0, 1, 2, 3], [], [4, 5, 6, 7], [8, 9, 10]]
COMPUTE = [[0, 1, 2], [3, 7], [6, 5, 4], [8, 9, 10]]


def refusal(layer, sync, compute):
    """What the three checks say of a map, "" if it is right."""
    run = Evidence([{"sync": sync, "compute": compute}])
    try:
        for check in (maps.expect_layouts, maps.expect_few_moves, maps.expect_few_pairs):
            check(Seeded(0), run, [layer])
    except NotRight as error:
        return str(error)
    return ""


def test_a_right_map_is_right():
    assert refusal(LAYER, SYNC, COMPUTE) == ""


@pytest.mark.parametrize(
    "sync, compute, says",
    [
        (SYNC[:3], COMPUTE, "each a list of 4 lists of whole numbers"),
        (SYNC, [[0, 1, 2], [3, 7.0], [6, 5, 4], [8, 9, 10]], "each a list of 4 lists of whole numbers"),
        ([*SYNC[:3], [8, 9, 10, 11]], COMPUTE, "no shard 11. They are 0 to 10"),
        (SYNC, [[0, 1, 2], [3, 7, 6], [6, 5, 4], [8, 9, 10]], "in the compute layout shard 6 is on 2 ranks"),
        (SYNC, [[0, 1, 2], [3], [6, 5, 4], [8, 9, 10]], "in the compute layout shard 7 is on no rank"),
        ([[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10]], COMPUTE, "in the sync layout rank 1 has 3 shards. Its partner"),
        ([[0, 1, 2, 4], [], [3, 5, 6, 7], [8, 9, 10]], COMPUTE, r"rank 0 adds up \[0, 1, 2, 4\]"),
        ([[4, 5, 6, 7], [], [0, 1, 2, 3], [8, 9, 10]], COMPUTE, "that of rank 0 begins with shard 0"),
        ([[0, 1, 2, 3, 4], [], [5, 6, 7], [8, 9, 10]], COMPUTE, "in the sync layout ranks have 3 to 5 shards"),
        (SYNC, [[0, 1, 2, 3], [7], [6, 5, 4], [8, 9, 10]], "in the compute layout ranks have 1 to 4 shards"),
        (SYNC, [[0, 1, 2], [3, 7, 10], [6, 5, 4], [8, 9]], "3 shards move, and 2 would do. An extra rank has"),
        (
            SYNC,
            [[0, 1, 2], [3, 7], [6, 5, 8], [4, 9, 10]],
            "4 shards move, and 2 would do. Rank 2 computes with shards",
        ),
    ],
)
def test_what_is_wrong_with_a_map_is_said(sync, compute, says):
    assert re.search(says, refusal(LAYER, sync, compute)), refusal(LAYER, sync, compute)


def test_one_pair_too_many_is_too_many():
    even = {"shards": 24, "ranks": 6, "lost": [0, 3]}
    sync = [[], *(list(range(a, a + 6)) for a in (0, 6)), [], *(list(range(a, a + 6)) for a in (12, 18))]
    rest = [mine[:4] for mine in sync]
    filled = [[4, 5, 10, 11], *rest[1:3], [16, 17, 22, 23], *rest[4:]]
    mixed = [[4, 5, 10, 16], *rest[1:3], [11, 17, 22, 23], *rest[4:]]
    assert refusal(even, sync, filled) == ""
    assert "6 pairs of ranks exchange something, and 4 would do" in refusal(even, sync, mixed)
    sync = [list(range(8)), [], [], list(range(8, 16)), list(range(16, 23)), list(range(23, 30))]
    odd = {"shards": 30, "ranks": 6, "lost": [1, 2]}
    rest = [mine[:5] for mine in sync]
    filled = [rest[0], [5, 6, 7, 13, 14], [15, 21, 22, 28, 29], *rest[3:]]  # 5 pairs: 4 owners + 2 - 1
    mixed = [rest[0], [5, 6, 13, 14, 15], [7, 21, 22, 28, 29], *rest[3:]]  # 5 as well
    spread = [rest[0], [5, 6, 13, 14, 21], [7, 15, 22, 28, 29], *rest[3:]]
    assert refusal(odd, sync, filled) == refusal(odd, sync, mixed) == ""
    assert "7 pairs of ranks exchange something, and 5 would do" in refusal(odd, sync, spread)


@pytest.mark.parametrize("seed", range(5))
def test_one_byte_or_message_more_than_needed_is_too_many(seed):
    job = widths.some_job(Seeded(seed), 5, 6, 24)
    exact = [[24 * (a + b) for a, b in zip(*rows, strict=True)] for rows in zip(job.inside, job.between, strict=True)]
    widths.expect_bytes(Seeded(0), Evidence(bytes_between=exact), job)
    widths.expect_messages(Seeded(0), Evidence(messages=job.messages), job)
    for a, b in itertools.permutations(range(5), 2):
        more = [[n + ((a, b) == (i, j)) for j, n in enumerate(row)] for i, row in enumerate(exact)]
        with pytest.raises(NotRight, match=f"Rank {a} sent .* to rank {b}"):
            widths.expect_bytes(Seeded(0), Evidence(bytes_between=more), job)
    for rank in range(5):
        with pytest.raises(NotRight, match=f"Rank {rank} sent"):
            more = [n + (i == rank) for i, n in enumerate(job.messages)]
            widths.expect_messages(Seeded(0), Evidence(messages=more), job)
