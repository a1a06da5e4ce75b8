"""What each rank sends is what `labkit.cost` says, to the byte and to the message, and no more is kept in memory."""

from __future__ import annotations

import gc

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from slices import few

from labkit.collectives import ALGORITHMS, pairwise_all_to_all
from labkit.cost.collectives import cost_of

from . import cases
from .thread_world import lone_group, run


def check(collective, algorithm, size, shape, dtype=torch.float32, root=0, ranks_per_node=None):
    world = run(
        lambda g: cases.call(collective, algorithm, cases.small_numbers(g.rank, shape, dtype), g, root=root),
        size,
        ranks_per_node=ranks_per_node,
    )
    sent, messages = cases.bytes_and_messages(collective, algorithm, shape, dtype.itemsize, size, root, ranks_per_node)
    assert world.bytes_sent == sent
    assert world.messages == messages
    return world


def shapes(collective):
    return cases.ROW_SHAPES if collective in cases.CUTTING else cases.SHAPES


@pytest.mark.parametrize("size", cases.WORLD_SIZES)
@pytest.mark.parametrize(("collective", "algorithm"), cases.algorithms(*cases.DATA, native=False))
def test_bytes_and_messages_by_rank_are_those_of_the_closed_form(collective, algorithm, size):
    for shape in shapes(collective):
        check(collective, algorithm, size, shape)


@pytest.mark.parametrize("size", [3, 4, 6])
@pytest.mark.parametrize(("collective", "algorithm"), cases.algorithms(*cases.ROOTED, native=False))
def test_the_closed_form_knows_where_the_root_is(collective, algorithm, size):
    for root in range(size):
        check(collective, algorithm, size, (5, 2), root=root)


@given(data=st.data())
def test_bytes_agree_for_sizes_nobody_thought_of(data):
    collective, algorithm = data.draw(st.sampled_from(cases.algorithms(*cases.DATA, native=False)))
    size = data.draw(st.integers(1, 8))
    least = 1 if collective in cases.CUTTING else 0
    shape = tuple(data.draw(st.lists(st.integers(0, 40), min_size=least, max_size=2)))
    dtype = data.draw(st.sampled_from([torch.float64, torch.bfloat16, torch.int8]))
    per_node = data.draw(st.sampled_from([k for k in range(1, size + 1) if size % k == 0]))
    check(collective, algorithm, size, shape, dtype, ranks_per_node=per_node)


@pytest.mark.parametrize(("size", "k"), [(4, 2), (6, 3), (8, 2), (8, 4)])
def test_hierarchical_sends_one_kth_of_a_flat_ring_across_nodes(size, k):
    n, nodes = 240 * size, size // k
    world = check("all_reduce", "hierarchical", size, (n,), torch.float32, ranks_per_node=k)
    for rank, row in enumerate(world.bytes_between):
        across = sum(sent for peer, sent in enumerate(row) if peer // k != rank // k)
        assert across == 2 * (nodes - 1) * n * 4 // (nodes * k)


@pytest.mark.parametrize("size", cases.WORLD_SIZES)
def test_a_barrier_sends_no_byte_in_the_fewest_rounds(size):
    world = run(lambda g: ALGORITHMS["barrier"]["dissemination"](g), size)
    assert world.bytes_sent == [0] * size
    assert world.messages == cost_of("barrier", "dissemination").messages_by_rank(0, 1, size)


@given(data=st.data(), size=st.integers(1, 6))
def test_uneven_all_to_all_sends_every_row_once_and_none_to_itself(data, size):
    row = st.lists(st.integers(0, 9), min_size=size, max_size=size)
    counts = data.draw(st.lists(row, min_size=size, max_size=size))
    world = run(
        lambda g: pairwise_all_to_all(
            torch.zeros(sum(counts[g.rank])), g, counts[g.rank], [counts[q][g.rank] for q in range(size)]
        ),
        size,
    )
    assert world.bytes_sent == cost_of("all_to_all", "pairwise").bytes_by_rank(0, 4, size, counts=counts)


@pytest.mark.parametrize("algorithm", ["ring", "bruck"])
@pytest.mark.parametrize("rows", [[3, 0, 5], [1, 2, 3, 4, 5], [0, 0], [4]])
def test_uneven_all_gather_sends_what_its_closed_form_says(algorithm, rows):
    size = len(rows)
    world = run(lambda g: ALGORITHMS["all_gather"][algorithm](torch.zeros(rows[g.rank]), g, sizes=rows), size)
    assert world.bytes_sent == cost_of("all_gather", algorithm).bytes_by_rank(0, 4, size, counts=rows)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_adding_in_32_bits_costs_no_byte_more(dtype):
    sent = {name: check("reduce_scatter", name, 5, (1001,), dtype).bytes_sent for name in ("ring", "pairwise")}
    assert sent["ring"] == sent["pairwise"]


def resident_beside(x):
    """Bytes of all tensors alive other than `x`."""
    memory = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in live_tensors()}
    memory.pop(x.untyped_storage().data_ptr(), None)
    return sum(memory.values())


def live_tensors():
    return [t for t in gc.get_objects() if type(t) is torch.Tensor and t.device.type == "cpu"]


@pytest.mark.parametrize(
    ("collective", "algorithm", "most"),
    few(
        [
            ("all_reduce", "recursive_doubling", 1),
            ("reduce_scatter", "ring", 2 / 8),
            ("all_reduce", "ring", 0),
            ("all_reduce", "halving_doubling", 0),
            ("all_reduce", "tree", 0),
            ("all_reduce", "everyone", 8),
            ("reduce_scatter", "pairwise", 2 / 8),
            ("reduce_scatter", "halving", 1),
            ("broadcast", "chain", 0),
        ],
        3,
    ),  # fmt: skip
)
def test_what_is_kept_in_memory_beside_x_is_what_the_docstring_says(collective, algorithm, most):
    gc.collect()
    gc.freeze()  # what was there before is not looked at again in every round
    try:
        x, seen = torch.zeros(8 * 4096), []
        group = lone_group(5, 8, lambda: seen.append(resident_beside(x)))
        ALGORITHMS[collective][algorithm](x, group)
    finally:
        gc.unfreeze()
    assert max(seen) == most * x.nbytes
