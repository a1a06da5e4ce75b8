"""What cannot work is refused at once, before a message is sent, in words that name the value and the remedy."""

from __future__ import annotations

import pytest
import torch

import labkit.collectives as c
from labkit.wire.errors import Mismatch, RefusedError

from .thread_world import Deadlock, run

X = torch.ones(4)


def refused(fn, size=3, **options):
    """The error that `fn(group)` raises, after checking that nothing was sent."""
    sent = []

    def work(group):
        try:
            fn(group)
        finally:
            sent.extend(group.world.between)

    with pytest.raises((TypeError, ValueError)) as caught:
        run(work, size, **options)
    assert not sent
    return str(caught.value)


def test_an_unknown_algorithm_names_the_known_ones_and_the_nearest():
    text = refused(lambda g: c.all_reduce(X, g, algorithm="rign"))
    assert "'rign'" in text and "Did you mean 'ring'" in text
    assert all(name in text for name in ("halving_doubling", "native", "tree", "auto"))


def test_an_algorithm_of_several_words_is_refused_since_records_would_cut_its_name():
    with pytest.raises(RefusedError, match="'ring with a slip'.*one word"):
        c.algorithm("all_reduce", "ring with a slip")


@pytest.mark.parametrize("root", [3, -1, 100])
@pytest.mark.parametrize("call", [c.broadcast, c.reduce, c.gather, c.tree_broadcast, c.naive_reduce])
def test_a_root_out_of_range(call, root):
    text = refused(lambda g: call(X.clone(), g, root=root))
    assert f"root={root}" in text and "0 to 2" in text


def test_a_root_that_is_no_number():
    assert "root" in refused(lambda g: c.broadcast(X, g, root=1.0))
    assert "root" in refused(lambda g: c.broadcast(X, g, root=True))


def test_an_unknown_operator():
    text = refused(lambda g: c.all_reduce(X, g, op="averge"))
    assert "'averge'" in text and "'average'" in text and "sum, avg, min, max, prod" in text


@pytest.mark.parametrize("call", [c.all_reduce, c.reduce, c.reduce_scatter, c.ring_all_reduce])
@pytest.mark.parametrize(
    ("op", "dtype", "remedy"),
    [
        ("avg", torch.int64, "op='sum'"),
        ("sum", torch.bool, "op='max'"),
        ("min", torch.complex64, "x.abs()"),
        ("sum", torch.float8_e4m3fn, "bfloat16"),
        ("max", torch.float8_e5m2, "bfloat16"),
        ("sum", torch.uint16, "int64"),
    ],
)
def test_a_dtype_that_cannot_be_reduced(call, op, dtype, remedy):
    text = refused(lambda g: call(torch.zeros(4, dtype=dtype), g, op=op))
    assert str(dtype).removeprefix("torch.") in text and op in text and remedy in text


def test_what_is_not_a_dense_tensor():
    assert "list" in refused(lambda g: c.all_reduce([1.0, 2.0], g))
    assert "to_dense" in refused(lambda g: c.all_reduce(torch.eye(2).to_sparse(), g))
    assert "float" in refused(lambda g: c.ring_all_gather(3.0, g))


def test_what_is_not_a_group():
    for wrong in (None, 3, "world"):
        with pytest.raises(TypeError, match="labkit group"):
            c.all_reduce(X, wrong)
        with pytest.raises(TypeError, match="labkit group"):
            c.ring_all_reduce(X, wrong)


@pytest.mark.parametrize("call", [c.all_reduce, c.broadcast, c.reduce])
def test_writing_into_a_tensor_that_requires_grad(call):
    assert "torch.no_grad" in refused(lambda g: call(torch.ones(3, requires_grad=True), g))
    assert "torch.no_grad" in refused(lambda g: call(torch.ones(3, requires_grad=True) * 2, g))


def test_writing_into_an_expanded_tensor():
    assert "clone" in refused(lambda g: c.all_reduce(torch.ones(1).expand(5), g))


@pytest.mark.parametrize("call", [c.reduce_scatter, c.all_to_all])
def test_cutting_a_scalar(call):
    assert "scalar" in refused(lambda g: call(torch.tensor(1.0), g))


def test_sizes_that_do_not_fit():
    assert "3 ranks" in refused(lambda g: c.all_gather(X, g, sizes=[4, 4]))
    assert "sizes[0] is 5" in refused(lambda g: c.all_gather(X, g, sizes=[5]), size=1)
    assert "-1" in refused(lambda g: c.gather(X, g, sizes=[-1, 4, 4]))
    assert "whole numbers" in refused(lambda g: c.all_gather(X, g, sizes=[4.0, 4, 4]))
    assert "list" in refused(lambda g: c.all_gather(X, g, sizes="444"))


def test_counts_that_do_not_fit():
    assert "recv_counts" in refused(lambda g: c.all_to_all(X, g, send_counts=[1, 1, 2]))
    assert "send_counts" in refused(lambda g: c.all_to_all(X, g, recv_counts=[1, 1, 2]))
    assert "add up to 3" in refused(lambda g: c.all_to_all(X, g, [1, 1, 1], [1, 1, 1]))
    assert "sends itself" in refused(lambda g: c.all_to_all(X, g, [1, 1, 2], [2, 2, 3]))
    assert "pairwise" in refused(lambda g: c.all_to_all(X, g, [1, 1, 2], [1, 1, 2], algorithm="bruck"))
    assert "bruk" in refused(lambda g: c.all_to_all(X, g, [1, 1, 2], [1, 1, 2], algorithm="bruk"))


def test_scatter_without_like_or_with_a_wrong_one():
    with pytest.raises(ValueError, match="rank 1 is not the root, so scatter needs like="):
        run(lambda g: c.scatter(X if g.rank == 0 else None, g), 2)
    assert "[2]" in refused(lambda g: c.scatter(X, g, like=torch.empty(3)), size=2)
    assert "NoneType" in refused(lambda g: c.scatter(None, g, like=torch.empty(2)), size=2)
    grad = torch.empty(2, requires_grad=True)
    assert "no_grad" in refused(lambda g: c.scatter(X, g, like=grad), size=2)


def test_a_number_of_chunks_that_cannot_be():
    assert "chunks" in refused(lambda g: c.chain_broadcast(X, g, chunks=0))
    assert "chunks" in refused(lambda g: c.chain_broadcast(X, g, chunks=2.5))


def test_nodes_that_are_not_filled():
    text = refused(lambda g: c.hierarchical_all_reduce(X, g), size=5, ranks_per_node=2)
    assert "5 ranks" in text and "nodes of 2" in text and "ring" in text


def test_native_where_there_is_none():
    for call in (c.native_all_reduce, c.native_all_gather, lambda x, g: c.barrier(g, algorithm="native")):
        text = refused(lambda g, call=call: call(X, g), native=False)
        assert "transport='threads'" in text and "gloo" in text


def test_a_reduction_that_the_library_does_not_know():
    assert "int16" in refused(lambda g: c.native_all_reduce(torch.ones(3, dtype=torch.int16), g))
    assert "prod" in refused(lambda g: c.native_all_reduce(torch.ones(3, dtype=torch.complex64), g, "prod"))


def test_an_argument_that_does_not_exist():
    assert "chunk" in refused(lambda g: c.chain_broadcast(X, g, chunk=3))


@pytest.mark.parametrize("algorithm", sorted(set(c.ALGORITHMS["all_reduce"]) - {"native", "hierarchical"}))
def test_ranks_that_disagree_on_the_shape_or_dtype_are_never_given_an_answer(algorithm):
    for other in (torch.ones(9), torch.ones(4, dtype=torch.int32)):
        with pytest.raises((Mismatch, Deadlock)):
            run(lambda g, o=other: c.all_reduce(X.clone() if g.rank else o.clone(), g, algorithm=algorithm), 4)


def test_a_rank_that_leaves_ends_the_world():
    with pytest.raises(Deadlock, match="receives from"):
        run(lambda g: g.rank == 1 or c.all_reduce(X.clone(), g, algorithm="ring"), 3)
