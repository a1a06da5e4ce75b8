"""Checksums, replays and flipped bits: what each pattern of numbers means, without and with ranks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, strategies as st

import labkit
from labkit import RefusedError
from labkit.resilience.diagnose import checksum, compare, find_flip, replay
from labkit.resilience.diagnose.flips import _around, explain
from labkit.resilience.diagnose.replays import judge

# -- checksums -----------------------------------------------------------------------------------------------------


@given(at=st.integers(0, 99), bit=st.integers(0, 31))
def test_every_bit_counts(at, bit) -> None:
    x = torch.arange(100, dtype=torch.float32)
    before = checksum([x])
    x.view(torch.int32)[at] ^= (1 << bit) if bit < 31 else -(1 << 31)
    assert checksum([x]) != before


def test_shape_dtype_and_order_count_and_layout_does_not() -> None:
    x = torch.zeros(2, 3)
    others = [[x.view(3, 2)], [x.double()], [x.to(torch.int32)], [x, torch.zeros(0)], []]
    assert len({checksum(o) for o in others} | {checksum([x])}) == 6
    assert checksum([torch.arange(6.0).view(2, 3).t()]) == checksum([torch.arange(6.0).view(2, 3).t().contiguous()])
    assert 0 <= checksum([x.bfloat16()]) < 1 << 56


def state(group, odd):
    w = {"a": torch.arange(100.0), "b": torch.arange(70.0), "c": torch.zeros(0)}
    if group.rank in odd:
        w["b"][40] += 1
    return compare(w, group)


@pytest.mark.ranks
@pytest.mark.parametrize("size, odd, suspects, exact", [
    (3, [1], (1,), True), (5, [0, 3], (0, 3), True), (2, [1], (0, 1), False), (4, [2, 3], (0, 1, 2, 3), False),
])  # fmt: skip
def test_which_replica_differs_and_where(size, odd, suspects, exact) -> None:
    results = labkit.launch(state, size, odd, transport="local").results
    assert len({repr(r) for r in results}) == 1
    found = results[0]
    assert (found.suspects, found.exact, found.tensors, found.pieces) == (suspects, exact, ("b",), ((32, 64),))
    assert "'b' from element 32 to 63" in str(found.verdict)


@pytest.mark.ranks
def test_replicas_that_agree() -> None:
    assert labkit.launch(state, 3, [], transport="local").results == [None] * 3


def uneven(group):
    return compare({str(n): torch.zeros(1) for n in range(1 + group.rank)}, group)


@pytest.mark.ranks
def test_ranks_that_bring_other_tensors_are_told_so() -> None:
    with pytest.raises(labkit.RankFailed, match=r"brought \[1, 2\] tensors"):
        labkit.launch(uneven, 2, transport="local")


# -- replays -------------------------------------------------------------------------------------------------------

# By rank: recorded, twice its own work, then the work of its next two neighbours.
CLEAN = [[10, 10, 10, 11, 12], [11, 11, 11, 12, 13], [12, 12, 12, 13, 10], [13, 13, 13, 10, 11]]


def changed(*cells):
    table = [list(row) for row in CLEAN]
    for row, column, value in cells:
        table[row][column] = value
    return table


@pytest.mark.parametrize("table, suspects, pattern", [
    (CLEAN, (), "clean"),
    (changed((2, 0, 99)), (2,), "transient"),
    (changed((1, 0, 99), (1, 1, 99), (1, 2, 99), (1, 3, 98), (1, 4, 97)), (1,), "persistent"),
    (changed((1, 1, 99), (1, 2, 99), (1, 3, 98), (1, 4, 97)), (1,), "persistent"),  # it was right when it counted
    (changed((3, 2, 99)), (3,), "intermittent"),
    (changed((0, 3, 99)), (0,), "persistent"),  # wrong with the work of others only
    (changed((0, 0, 9), (2, 0, 8)), (0, 2), "transient"),
    (changed((0, 1, 1), (1, 1, 2), (2, 1, 3)), (), "not deterministic"),
])  # fmt: skip
def test_what_a_pattern_of_checksums_means(table, suspects, pattern) -> None:
    found = judge(table, 2)
    assert (found.suspects, found.pattern) == (suspects, pattern)
    assert found.exact is (pattern != "not deterministic")
    assert (found.verdict.kind == "nothing") is (suspects == ())


def test_two_ranks_cannot_say_which_of_them_is_right() -> None:
    found = judge([[10, 10, 10, 11], [99, 99, 99, 98]], 2)
    assert (found.suspects, found.exact, found.pattern) == ((0, 1), False, "persistent")


def test_one_rank_alone_sees_only_what_changes() -> None:
    assert judge([[9, 10, 10]], 2).pattern == "transient"
    assert judge([[10, 10, 11]], 2).pattern == "intermittent"
    assert judge([[10, 10, 10]], 2).pattern == "clean"


@pytest.mark.parametrize("options", [{"times": 1}, {"helpers": -1}, {"times": 2.0}])
def test_replays_that_would_show_nothing_are_refused(options) -> None:
    with pytest.raises(RefusedError, match=next(iter(options))):
        replay(lambda rank: [], 0, None, **options)  # type: ignore[arg-type]


# -- flips ---------------------------------------------------------------------------------------------------------


@given(n=st.integers(2, 8), seed=st.integers(0, 999), bit=st.integers(0, 31), data=st.data())
def test_the_message_that_was_hit_is_always_among_the_explanations(n, seed, bit, data) -> None:
    brought = torch.randn(n, generator=torch.Generator().manual_seed(seed))
    numel, hop = 3 * n + 1, data.draw(st.integers(0, 2 * (n - 1) - 1))
    element = data.draw(st.integers(0, numel - 1))
    sizes = [len(part) for part in torch.tensor_split(torch.arange(numel), n)]
    start = next(c for c in range(n) if element < sum(sizes[: c + 1]))
    order = [(start + k) % n for k in range(n)]
    mask = torch.tensor([(1 << bit) if bit < 31 else -(1 << 31)], dtype=torch.int32)
    got = _around(brought, order, hop, mask)[:, 0].contiguous().view(torch.int32)
    ways, bits = explain(brought, got, element, numel)
    assert ((order[hop % n], order[(hop + 1) % n]), bit) in list(zip(ways, bits, strict=True))


def test_without_a_flip_the_sum_is_that_of_the_ring() -> None:
    brought = torch.tensor([1e8, 1.0, -1e8, 3.0])  # in another order another sum
    held = _around(brought, [2, 3, 0, 1], 0, torch.zeros(1, dtype=torch.int32))
    right = ((brought[2] + brought[3]) + brought[0]) + brought[1]
    assert held.flatten().tolist() == [right.item()] * 4 and right != brought.sum()


def test_a_sum_that_no_flip_explains() -> None:
    brought = torch.tensor([1.0, 2.0, 3.0])
    assert explain(brought, torch.full((3,), 7.25).view(torch.int32), 0, 9) == ((), ())


def test_tensors_of_different_calls_are_refused() -> None:
    with pytest.raises(RefusedError, match="give the three tensors of one all-reduce"):
        find_flip(torch.zeros(4), torch.zeros(5), torch.zeros(4), None)  # type: ignore[arg-type]
