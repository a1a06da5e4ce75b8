"""Every algorithm of every collective returns what torch computes from all inputs on one device."""

from __future__ import annotations

import time

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from slices import few

from labkit.collectives import ALGORITHMS, all_to_all

from . import cases
from .thread_world import run


def check(collective, algorithm, size, shape, dtype=torch.float32, op="sum", root=0, ranks_per_node=None):
    inputs = [cases.small_numbers(r, shape, dtype) for r in range(size)]
    result = run(
        lambda g: cases.call(collective, algorithm, inputs[g.rank].clone(), g, op, root),
        size,
        ranks_per_node=ranks_per_node,
    )
    for r, (got, wanted) in enumerate(zip(result.results, cases.expected(collective, inputs, op, root), strict=True)):
        if wanted is not None or collective == "gather":
            assert cases.same(got, wanted), f"rank {r} returned {got}, not {wanted}"
    return result


def shapes(collective):
    return cases.ROW_SHAPES if collective in cases.CUTTING else cases.SHAPES


@pytest.mark.parametrize("size", cases.WORLD_SIZES)
@pytest.mark.parametrize(("collective", "algorithm"), cases.algorithms(*cases.DATA))
def test_every_algorithm_is_right_for_every_shape_and_world_size(collective, algorithm, size):
    for shape in shapes(collective):
        check(collective, algorithm, size, shape)


@pytest.mark.parametrize("size", few([3, 2, 7]))
@pytest.mark.parametrize(("collective", "algorithm"), cases.algorithms(*cases.REDUCING))
def test_every_operator_on_every_dtype_it_is_defined_for(collective, algorithm, size):
    for op, dtype in cases.REDUCIBLE:
        if algorithm != "native" or cases.native_can(op, dtype):
            check(collective, algorithm, size, (9,), dtype, op)


@pytest.mark.parametrize("size", [2, 5])
@pytest.mark.parametrize(
    ("collective", "algorithm"), cases.algorithms("broadcast", "all_gather", "scatter", "gather", "all_to_all")
)
def test_what_is_only_moved_may_have_any_dtype(collective, algorithm, size):
    for dtype in cases.MOVABLE:
        check(collective, algorithm, size, (9, 2), dtype)


@pytest.mark.parametrize("size", [1, 3, 4, 6])
@pytest.mark.parametrize(("collective", "algorithm"), cases.algorithms(*cases.ROOTED))
def test_any_rank_may_be_the_root(collective, algorithm, size):
    for root in range(size):
        check(collective, algorithm, size, (5, 2), root=root)


@pytest.mark.parametrize(("size", "ranks_per_node"), [(1, 1), (2, 1), (4, 2), (6, 2), (6, 3), (8, 2), (8, 4), (8, 8)])
def test_hierarchical_is_right_for_any_number_of_nodes(size, ranks_per_node):
    for shape in cases.SHAPES:
        check("all_reduce", "hierarchical", size, shape, ranks_per_node=ranks_per_node, op="avg")


@given(data=st.data())
def test_every_algorithm_is_right_for_shapes_nobody_thought_of(data):
    collective, algorithm = data.draw(st.sampled_from(cases.algorithms(*cases.DATA)))
    size = data.draw(st.integers(1, 8))
    least = 1 if collective in cases.CUTTING else 0
    shape = tuple(data.draw(st.lists(st.integers(0, 9), min_size=least, max_size=3)))
    root = data.draw(st.integers(0, size - 1)) if collective in cases.ROOTED else 0
    per_node = data.draw(st.sampled_from([k for k in range(1, size + 1) if size % k == 0]))
    op = data.draw(st.sampled_from(["sum", "avg", "min", "max", "prod"]))
    check(collective, algorithm, size, shape, op=op, root=root, ranks_per_node=per_node)


@given(
    rows=st.lists(st.integers(0, 6), min_size=1, max_size=8),
    algorithm=st.sampled_from([a for a in cases.algorithms("all_gather", "gather")]),
)
def test_gathered_blocks_may_have_different_lengths(rows, algorithm):
    collective, name = algorithm
    inputs = [cases.small_numbers(r, (n, 2), torch.float32) for r, n in enumerate(rows)]
    got = run(lambda g: ALGORITHMS[collective][name](inputs[g.rank], g, sizes=rows), len(rows)).results
    for result in got if collective == "all_gather" else got[:1]:
        assert cases.same(result, torch.cat(inputs))


@given(data=st.data(), size=st.integers(1, 6))
def test_all_to_all_with_uneven_counts_delivers_every_row(data, size):
    row = st.lists(st.integers(0, 4), min_size=size, max_size=size)
    counts = data.draw(st.lists(row, min_size=size, max_size=size))  # counts[r][q]: rows from r to q
    inputs = [cases.small_numbers(r, (sum(counts[r]), 3), torch.int32) for r in range(size)]
    pieces = [x.split(counts[r]) for r, x in enumerate(inputs)]

    def exchange(group):
        received = [counts[q][group.rank] for q in range(size)]
        return all_to_all(inputs[group.rank], group, counts[group.rank], received)

    for r, result in enumerate(run(exchange, size).results):
        assert cases.same(result, torch.cat([pieces[q][r] for q in range(size)]))


@pytest.mark.parametrize("chunks", [1, 2, 3, 50])
def test_a_chain_may_have_any_number_of_chunks(chunks):
    x = cases.small_numbers(1, (7, 3), torch.float32)
    ranks = run(
        lambda g: ALGORITHMS["broadcast"]["chain"](x.clone() if g.rank == 1 else torch.zeros(7, 3), g, 1, chunks),
        4,
    )
    assert all(torch.equal(result, x) for result in ranks.results)
    assert ranks.messages == [0, chunks, chunks, chunks]


@pytest.mark.parametrize("algorithm", ["dissemination", "native"])
@pytest.mark.parametrize("size", cases.ODD_SIZES)
def test_nobody_leaves_a_barrier_before_everybody_has_come(algorithm, size):
    for late in range(size):
        come = []

        def wait(group, late=late, come=come):
            if group.rank == late:
                time.sleep(0.02)
            come.append(group.rank)
            ALGORITHMS["barrier"][algorithm](group)
            return len(come)

        assert run(wait, size).results == [size] * size
