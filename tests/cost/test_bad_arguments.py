"""Arguments that cannot be are refused with their name and value."""

from __future__ import annotations

import inspect
import math

import pytest

from labkit import cost

COSTS = cost.all_costs()


def public(what: str):
    """The functions that the names of the closed forms promise."""
    return [getattr(cost, f"{c.algorithm}_{c.collective}_{what}") for c in COSTS]


@pytest.mark.parametrize("size", [0, -3, 2.0, True, "4"])
def test_no_world_without_ranks(size):
    for c in COSTS:
        refuses(c, size)


def refuses(c, size):
    value = repr(size) if not isinstance(size, int) or isinstance(size, bool) else str(size)
    for call in (
        lambda: c.bytes_by_rank(10, 4, size),
        lambda: c.messages_by_rank(10, 4, size, chunks=2),
        lambda: c.rounds(size, chunks=2),
        lambda: c.bytes(10, size),
        lambda: c.seconds(10, size, 1e-6, 1e-9),
    ):
        with pytest.raises(ValueError, match=rf"size .*not {value}"):
            call()


@pytest.mark.parametrize("what", ["bytes_by_rank", "messages_by_rank", "rounds", "bytes", "time"])
def test_functions_refuse_what_the_door_refuses(what):
    for function in public(what):
        names = list(inspect.signature(function).parameters)
        good = {"numel": 10, "itemsize": 4, "size": 4, "nbytes": 10.0, "alpha": 1.0, "beta": 1.0, "chunks": 2}
        arguments = {name: good[name] for name in names if name in good}
        function(**arguments)
        for name, bad in (("size", 0), ("numel", -1), ("itemsize", -4), ("nbytes", -10.0), ("alpha", -1.0)):
            if name in arguments:
                with pytest.raises(ValueError, match=rf"^{name} .*not {bad}"):
                    function(**{**arguments, name: bad})
        for bad in (-1.0, math.nan, math.inf, "fast"):
            if "beta" in arguments:
                with pytest.raises(ValueError, match="^beta .*not "):
                    function(**{**arguments, "beta": bad})


@pytest.mark.parametrize("root", [-1, 4, 1.5])
def test_the_root_is_a_rank(root):
    for c in COSTS:
        with pytest.raises(ValueError, match=f"root .*not {root}"):
            c.bytes_by_rank(10, 4, 4, root=root)
        with pytest.raises(ValueError, match=f"root .*not {root}"):
            c.messages_by_rank(10, 4, 4, root=root, chunks=1)


def test_nodes_hold_equally_many_ranks():
    with pytest.raises(ValueError, match="divide the 6 ranks, and 4 does not"):
        cost.hierarchical_all_reduce_bytes_by_rank(10, 4, 6, 4)
    with pytest.raises(ValueError, match="divide the 6 ranks, and 4 does not"):
        cost.cost_of("all_reduce", "ring").seconds_on(10, 6, cost.Links(1, 1, 4, 2, 2))


def test_counts_must_fit_the_ranks():
    with pytest.raises(ValueError, match="each of the 3 ranks, not 2"):
        cost.ring_all_gather_bytes_by_rank(0, 4, 3, counts=[1, 2])
    with pytest.raises(ValueError, match="not -1"):
        cost.bruck_all_gather_bytes_by_rank(0, 4, 2, counts=[1, -1])
    with pytest.raises(ValueError, match="row for each of the 2 ranks, not 1"):
        cost.pairwise_all_to_all_bytes_by_rank(0, 4, 2, counts=[[1, 2]])
    with pytest.raises(ValueError, match="each of the 2 ranks, not 3"):
        cost.bruck_all_to_all_bytes_by_rank(0, 4, 2, counts=[[1, 2, 3], [1, 2]])


def test_unknown_names_list_the_known_ones():
    with pytest.raises(ValueError, match="'allreduce'.*all_reduce"):
        cost.cost_of("allreduce", "ring")
    with pytest.raises(ValueError, match="'native'.*ring, recursive_doubling"):
        cost.cost_of("all_reduce", "native")
    assert cost.cost_of("broadcast", "root_loop").algorithm == "naive"
    assert cost.cost_of("reduce_scatter", "recursive_halving").algorithm == "halving"


def test_a_chain_needs_its_chunks_to_count_messages():
    chain = cost.cost_of("broadcast", "chain")
    with pytest.raises(ValueError, match="give chunks="):
        chain.messages_by_rank(10, 4, 4)
    with pytest.raises(ValueError, match="give chunks="):
        chain.rounds(4)
    with pytest.raises(ValueError, match="chunks .*not 0"):
        chain.rounds(4, chunks=0)
