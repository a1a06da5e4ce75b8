"""Bytes, messages and rounds: every closed form against the simulated algorithm."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from labkit import cost

from .programs import PROGRAMS
from .runs import check_results, expected, run

NAMES = [(c.collective, c.algorithm) for c in cost.all_costs()]
SIZES = st.one_of(st.sampled_from([1, 2, 3, 5, 8]), st.integers(1, 17))
each = pytest.mark.parametrize(("collective", "algorithm"), NAMES)


def divisor(data: st.DataObject, size: int) -> int:
    return data.draw(st.sampled_from([k for k in range(1, size + 1) if size % k == 0]), label="ranks_per_node")


def test_every_algorithm_has_a_definition_and_a_closed_form():
    assert set(NAMES) == set(PROGRAMS)
    listed = [(name, a) for name in cost.COLLECTIVES for a in cost.ALGORITHMS[name]]
    assert listed == NAMES


@each
@given(data=st.data(), size=SIZES, numel=st.integers(0, 41), itemsize=st.integers(0, 8))
def test_bytes_and_messages_are_those_of_the_algorithm(collective, algorithm, data, size, numel, itemsize):
    root = data.draw(st.integers(0, size - 1), label="root")
    chunks = data.draw(st.integers(1, 6), label="chunks")
    k = divisor(data, size)
    cost_of = cost.cost_of(collective, algorithm)

    outcome = run(collective, algorithm, numel, size, root, k, chunks=chunks)

    check_results(outcome, expected(collective, numel, size, root))
    args = numel, itemsize, size, root, k
    assert cost_of.bytes_by_rank(*args) == [n * itemsize for n in outcome.elements]
    assert cost_of.total_bytes(*args) == sum(outcome.elements) * itemsize
    assert cost_of.messages_by_rank(*args, chunks=chunks) == outcome.messages


@pytest.mark.parametrize("collective", ["all_gather", "scatter", "gather"])
@given(data=st.data(), counts=st.lists(st.integers(0, 9), min_size=1, max_size=13))
def test_uneven_blocks(collective, data, counts):
    size = len(counts)
    root = data.draw(st.integers(0, size - 1), label="root")
    for algorithm in cost.ALGORITHMS[collective]:
        outcome = run(collective, algorithm, 0, size, root, counts=counts)
        check_results(outcome, expected(collective, 0, size, root, counts))
        sent = cost.cost_of(collective, algorithm).bytes_by_rank(0, 4, size, root, counts=counts)
        assert sent == [4 * n for n in outcome.elements]


@pytest.mark.parametrize("algorithm", ["pairwise", "bruck"])
@given(data=st.data(), size=st.integers(1, 9))
def test_uneven_all_to_all(algorithm, data, size):
    row = st.lists(st.integers(0, 5), min_size=size, max_size=size)
    counts = data.draw(st.lists(row, min_size=size, max_size=size), label="counts")
    outcome = run("all_to_all", algorithm, 0, size, counts=counts)
    check_results(outcome, expected("all_to_all", 0, size, counts=counts))
    sent = cost.cost_of("all_to_all", algorithm).bytes_by_rank(0, 2, size, counts=counts)
    assert sent == [2 * n for n in outcome.elements]


@each
def test_the_busiest_rank_of_an_even_tensor(collective, algorithm):
    numel = 48 * 7 * 5  # divides by every size here, by their powers of two, and by nodes and ranks on them
    c = cost.cost_of(collective, algorithm)
    for size in (2, 3, 4, 6, 7, 8, 12, 16):
        k = 2 if size % 2 == 0 else 1
        assert c.bytes(numel * 4, size, k) == pytest.approx(max(c.bytes_by_rank(numel, 4, size, 0, k)))


@each
def test_one_rank_sends_nothing(collective, algorithm):
    c = cost.cost_of(collective, algorithm)
    assert c.bytes_by_rank(10, 4, 1) == [0]
    assert c.messages_by_rank(10, 4, 1, chunks=3) == [0]
    assert c.rounds(1, chunks=3) == 0
    assert c.bytes(40, 1) == 0
    assert c.seconds(40, 1, alpha=1.0, beta=1.0) == 0


@each
@given(size=st.integers(1, 40), data=st.data())
def test_rounds_are_what_an_empty_message_takes(collective, algorithm, size, data):
    k, chunks = divisor(data, size), data.draw(st.integers(1, 9), label="chunks")
    c = cost.cost_of(collective, algorithm)
    seconds = c.seconds_on(0, size, cost.Links(1.0, 1.0, k), chunks)
    assert c.rounds(size, k, chunks) == seconds


@pytest.mark.parametrize("size", [2, 3, 5, 8, 31, 1000])
def test_the_ring_sends_the_fewest_bytes_and_tends_to_twice_the_tensor(size):
    nbytes = 7_000_000
    ring = cost.ring_all_reduce_bytes(nbytes, size)
    assert ring == pytest.approx(2 * nbytes * (1 - 1 / size))
    for algorithm in cost.ALGORITHMS["all_reduce"]:
        assert cost.cost_of("all_reduce", algorithm).bytes(nbytes, size) >= ring * (1 - 1e-12)


def test_the_hierarchy_sends_as_much_as_the_ring_but_little_of_it_between_nodes():
    ring = sum(cost.ring_all_reduce_bytes_by_rank(4800, 4, 16))
    assert sum(cost.hierarchical_all_reduce_bytes_by_rank(4800, 4, 16, 4)) == ring
    outcome = run("all_reduce", "hierarchical", 487, 12, ranks_per_node=4)
    between = [0] * 12
    for (src, dst), n in outcome.elements_between.items():
        between[src] += n if src // 4 != dst // 4 else 0
    assert cost.hierarchical_all_reduce_inter_bytes_by_rank(487, 1, 12, 4) == between


def test_rows_count_as_elements():
    # Five rows of three float32 on two ranks: parts of three and two rows, not of eight and seven elements.
    assert cost.ring_reduce_scatter_bytes_by_rank(5, 12, 2) == [24, 36]


def test_parts_are_those_of_tensor_split():
    torch = pytest.importorskip("torch")
    for numel in (0, 1, 5, 12, 13):
        for parts in (1, 2, 5, 8):
            sizes = [len(t) for t in torch.tensor_split(torch.arange(numel), parts)]
            assert cost.split_sizes(numel, parts) == sizes


@given(size=st.integers(1, 200), root=st.integers(0, 199))
def test_a_tree_reaches_everyone_once(size, root):
    sent = cost.tree_broadcast_messages_by_rank(size, root % size)
    assert sum(sent) == size - 1
    assert max(sent) == sent[root % size] == cost.tree_broadcast_rounds(size)


def test_chain_sizes_do_not_depend_on_chunks():
    for few, many in pairwise([1, 2, 5, 64]):
        a, b = (run("broadcast", "chain", 10, 4, chunks=c) for c in (few, many))
        assert a.elements == b.elements == cost.chain_broadcast_bytes_by_rank(10, 1, 4)
