"""The shard map: nothing lost, nothing moved in vain, one partner each."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from labkit.resilience.ntp import naive_messages, shard_map
from labkit.wire.errors import RefusedError


@st.composite
def widths(draw: st.DrawFn) -> tuple[int, int, int]:
    healthy = draw(st.integers(1, 64))
    return draw(st.integers(healthy, max(healthy, 200))), healthy, draw(st.integers(1, healthy))


@given(widths())
def test_both_layouts_hold_every_shard_once_and_evenly(sizes: tuple[int, int, int]) -> None:
    k, n1, n2 = sizes
    m = shard_map(k, n1, n2)
    for layout, ranks in ((m.sync, n2), (m.compute, n1)):
        assert len(layout) == ranks
        assert sorted(shard for mine in layout for shard in mine) == list(range(k))
        assert [len(mine) for mine in layout] == [k // ranks + (rank < k % ranks) for rank in range(ranks)]


@given(widths())
def test_the_sync_layout_is_in_stretches_and_ranks_keep_its_beginning(sizes: tuple[int, int, int]) -> None:
    m = shard_map(*sizes)
    assert [shard for mine in m.sync for shard in mine] == list(range(m.num_shards))
    for mine, held in zip(m.sync, m.compute, strict=False):
        assert held == mine[: len(held)]


@given(widths())
def test_no_fewer_shards_could_move(sizes: tuple[int, int, int]) -> None:
    k, n1, n2 = sizes
    m = shard_map(k, n1, n2)
    assert m.moved == sum(map(len, m.compute[n2:]))
    # An extra rank owns nothing, so all that it holds moves: at least k // n1 each, more only if the others are full.
    fewest = (n1 - n2) * (k // n1) + max(0, k % n1 - n2)
    assert m.moved == fewest
    if k % n1 == 0:
        assert m.moved * n1 == k * (n1 - n2)


@given(widths())
def test_only_extra_ranks_give_and_each_gives_and_gets_about_alike(sizes: tuple[int, int, int]) -> None:
    k, n1, n2 = sizes
    m = shard_map(k, n1, n2)
    assert all(a >= n2 > b for a, row in enumerate(m.counts) for b, n in enumerate(row) if n)
    for rank in range(n1):
        assert {b: len(shards) for b, shards in m.gives(rank).items()} == {
            b: n for b, n in enumerate(m.counts[rank]) if n
        }
    for b in range(n2):  # each rank deals its last shards out in turn
        taken = [m.counts[a][b] for a in range(n2, n1)]
        assert not taken or max(taken) - min(taken) <= 1


def test_the_example_of_the_chapter() -> None:
    m = shard_map(32, 8, 7)
    assert m.sync[0] == [0, 1, 2, 3, 4] and m.sync[6] == [28, 29, 30, 31]
    assert m.compute[0] == [0, 1, 2, 3] and m.compute[6] == [28, 29, 30, 31] and m.compute[7] == [4, 9, 14, 19]
    assert m.moved == 4 and m.gives(7) == {0: [4], 1: [9], 2: [14], 3: [19]}
    assert shard_map(128, 32, 30).pace == 1 and shard_map(128, 30, 30).pace == 5 / (128 / 30)
    assert shard_map(12_000, 32, 30).moved == 750


def test_every_extra_rank_gives_about_as_much_to_every_other_one() -> None:
    m = shard_map(12_000, 32, 30)
    assert m.moved == 750 and {n for row in m.counts[30:] for n in row[:30]} == {12, 13}


def test_without_a_failure_nothing_moves() -> None:
    m = shard_map(12, 4, 4)
    assert m.sync == m.compute and m.moved == 0 and m.pace == 1


@given(widths())
def test_naive_messages_share_out_all_shards(sizes: tuple[int, int, int]) -> None:
    k, n1, n2 = sizes
    table = naive_messages(k, n1, n2)
    assert [sum(row) for row in table] == [len(mine) for mine in shard_map(k, n1, n1).sync]
    assert [sum(column) for column in zip(*table, strict=True)] == [len(mine) for mine in shard_map(k, n2, n2).sync]


REFUSALS = [
    ((0, 1, 1), "num_shards=0: a whole number, 1 or more"),
    ((4, 2, 0), "reduced=0: a whole number"),
    ((4, True, 1), "healthy=True"),
    ((8, 2, 3), "a reduced replica of 3 ranks and a healthy one of 2"),
    ((3, 4, 2), "3 shards for 4 ranks: each rank needs one. At most 3 ranks"),
]


@pytest.mark.parametrize(("sizes", "words"), REFUSALS)
def test_what_cannot_be_is_refused(sizes: tuple[int, int, int], words: str) -> None:
    for make in (shard_map, naive_messages):
        with pytest.raises(RefusedError) as refused:
            make(*sizes)
        assert words in str(refused.value)
