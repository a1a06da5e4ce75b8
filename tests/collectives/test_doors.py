"""The way in: names, the table, what is recorded, sub-groups, nesting, the asynchronous form, and "auto"."""

from __future__ import annotations

import inspect
import pickle
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

import labkit.collectives as c
import labkit.cost.collectives as cost
from labkit.collectives.choose import chain_chunks
from labkit.wire import ops

from . import cases
from .thread_world import run


@pytest.mark.parametrize(("collective", "algorithm"), cases.algorithms())
def test_each_algorithm_is_a_function_of_its_own_name_that_can_be_read(collective, algorithm):
    function = c.ALGORITHMS[collective][algorithm]
    assert function.__name__ == f"{algorithm}_{collective}"
    assert getattr(c, function.__name__) is function
    assert f"def {function.__name__}(" in inspect.getsource(function)
    assert "async_op" in inspect.signature(function).parameters
    assert len(inspect.getsource(function).splitlines()) < 60


def test_the_table_has_what_the_cost_model_has_and_native():
    own = {name: set(table) - {"native"} for name, table in c.ALGORITHMS.items()}
    assert own == {name: set(names) for name, names in cost.ALGORITHMS.items()}


@pytest.mark.parametrize(("collective", "algorithm"), cases.algorithms())
def test_the_dispatcher_runs_the_algorithm_that_was_asked_for(collective, algorithm):
    def work(group):
        door = getattr(c, collective)
        if collective == "barrier":
            return door(group, algorithm=algorithm)
        x = torch.ones(6)
        if collective == "scatter":
            return door(x, group, like=torch.empty(3), algorithm=algorithm)
        return door(x, group, algorithm=algorithm)

    top = {(call.name, call.algorithm) for call in run(work, 2).calls if not call.nested}
    assert top == {(collective, algorithm)}


def test_what_is_recorded_of_a_call():
    world = run(lambda g: c.reduce(torch.ones(3), g, "avg", root=1, algorithm="tree"), 2)
    assert {(k.name, k.algorithm, k.op, k.root, k.is_async) for k in world.calls} == {
        ("reduce", "tree", "avg", 1, False)
    }
    nested = [k for k in run(lambda g: c.tree_all_reduce(torch.ones(3), g, "avg"), 2).calls if k.rank == 0]
    assert [(k.name, k.op, k.nested) for k in nested] == [
        ("all_reduce", "avg", False),
        ("reduce", "sum", True),
        ("broadcast", "", True),
    ]


@pytest.mark.parametrize(("collective", "algorithm"), cases.algorithms(*cases.DATA))
def test_sub_groups_work_apart_and_side_by_side(collective, algorithm):
    members = [(4, 1, 2), (0, 3, 5, 6)]  # group ranks in an order of their own
    inputs = [cases.small_numbers(r, (5,), torch.float32) for r in range(7)]

    def work(group):
        mine = next(m for m in members if group.rank in m)
        sub = group.subgroup(mine)
        return cases.call(collective, algorithm, inputs[group.rank].clone(), sub, root=1)

    results = run(work, 7).results
    for m in members:
        wanted = cases.expected(collective, [inputs[r] for r in m], root=1)
        for r, w in zip(m, wanted, strict=True):
            if w is not None:
                assert cases.same(results[r], w)


def test_messages_of_the_reader_and_of_a_collective_never_mix():
    def work(group):
        right, left = (group.rank + 1) % 3, (group.rank - 1) % 3
        token = torch.full((4,), float(group.rank))
        sending = group.isend(token, right)  # under way while the collective runs
        x = c.ring_all_reduce(torch.ones(12), group)
        got = group.recv(torch.empty(4), left)
        sending.wait()
        return x.sum().item(), got[0].item() == left

    assert run(work, 3).results == [(36.0, True)] * 3


@pytest.mark.parametrize(("collective", "algorithm"), cases.algorithms(*cases.DATA))
def test_async_returns_a_handle_whose_wait_returns_the_result(collective, algorithm):
    inputs = [cases.small_numbers(r, (6, 2), torch.float32) for r in range(3)]

    def work(group):
        x = inputs[group.rank].t().clone().t()  # not contiguous
        function, options = c.ALGORITHMS[collective][algorithm], {}
        if collective == "scatter":
            options["like"] = torch.empty(2, 2)
        handle = function(x, group, async_op=True, **options)
        result = handle.wait()
        return result, handle.done(), result is x

    for (got, done, is_x), wanted in zip(run(work, 3).results, cases.expected(collective, inputs), strict=True):
        assert done
        assert is_x or collective not in ("all_reduce", "broadcast", "reduce")
        if wanted is not None:
            assert cases.same(got, wanted)


def test_async_collectives_run_in_the_order_of_their_calls():
    def work(group):
        xs = [torch.full((5,), float(i)) for i in range(6)]
        doors = ["ring", "tree", "naive", "recursive_doubling", "everyone", "halving_doubling"]
        handles = [c.all_reduce(x, group, algorithm=a, async_op=True) for x, a in zip(xs, doors, strict=True)]
        last = c.all_reduce(torch.ones(1), group)
        return [h.wait()[0].item() for h in reversed(handles)], last.item()

    assert run(work, 3).results == [([15.0, 12.0, 9.0, 6.0, 3.0, 0.0], 3.0)] * 3


def test_an_async_call_refuses_at_once_and_not_in_wait():
    def work(group):
        with pytest.raises(ValueError, match="root=9"):
            c.broadcast(torch.ones(1), group, root=9, async_op=True)

    run(work, 2)


def test_operators_by_name_and_from_torch_are_the_same_objects():
    for name, op in {"average": ops.AVG, "mean": ops.AVG, "PRODUCT": ops.PROD, "Sum": ops.SUM}.items():
        assert ops.resolve(name) is op
    assert ops.resolve(dist.ReduceOp.SUM) is ops.SUM
    assert ops.resolve(dist.ReduceOp.PRODUCT) is ops.PROD
    assert ops.resolve(dist.ReduceOp.AVG) is ops.AVG
    assert all(pickle.loads(pickle.dumps(op)) is op for op in (ops.SUM, ops.AVG, ops.MIN, ops.MAX, ops.PROD))
    assert run(lambda g: c.ring_all_reduce(torch.ones(2), g, "avg"), 3).results[0].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("size", cases.ODD_SIZES)
@pytest.mark.parametrize("rows", [0, 1, 5000])
def test_auto_is_right_everywhere(size, rows):
    inputs = [cases.small_numbers(r, (rows, 3), torch.bfloat16) for r in range(size)]

    def work(group):
        x, every = inputs[group.rank], []
        for name in cases.DATA:
            if name == "scatter":
                like = torch.empty_like(torch.tensor_split(x, size)[group.rank])
                every.append(c.scatter(x, group, like=like))
            else:
                every.append(getattr(c, name)(x.clone(), group))
        c.barrier(group)
        return every

    for r, results in enumerate(run(work, size).results):
        for name, got in zip(cases.DATA, results, strict=True):
            wanted = cases.expected(name, inputs)[r]
            assert wanted is None or cases.same(got, wanted)


def chosen(collective, x, size=8, **world):
    calls = run(lambda g: getattr(c, collective)(x.clone(), g), size, **world).calls
    names = {call.algorithm for call in calls if not call.nested}
    assert len(names) == 1  # all ranks alike
    return names.pop()


def test_auto_takes_few_messages_for_small_tensors_and_few_bytes_for_large_ones():
    small, large = torch.zeros(10), torch.zeros(4_000_000)
    assert chosen("all_reduce", small) == "recursive_doubling"
    assert chosen("all_reduce", large) == "ring"
    assert chosen("broadcast", small) == "tree"
    assert chosen("broadcast", large) == "chain"
    assert chosen("all_gather", small) == "bruck"
    assert chosen("all_gather", torch.zeros(1_000_000)) == "ring"
    assert chosen("all_to_all", torch.zeros(8)) == "bruck"
    assert chosen("all_to_all", large) == "pairwise"


def test_auto_adds_16_bit_floats_in_32():
    assert chosen("reduce_scatter", torch.zeros(4_000_000)) == "ring"
    for elements in (50, 150_000, 4_000_000):  # the others round at every hop
        assert chosen("reduce_scatter", torch.zeros(elements, dtype=torch.bfloat16)) == "pairwise"


def test_auto_looks_at_the_links_of_this_machine_and_at_its_nodes():
    x = torch.zeros(20_000)
    slow_start = SimpleNamespace(alpha=1e-2, beta=1e-9)
    slow_bytes = SimpleNamespace(alpha=1e-6, beta=1e-6)
    assert chosen("all_reduce", x, link_model=slow_start) == "recursive_doubling"
    assert chosen("all_reduce", x, link_model=slow_bytes) == "ring"
    assert chosen("all_reduce", torch.zeros(4_000_000), ranks_per_node=4) in ("hierarchical", "ring")
    assert chosen("all_reduce", x, size=6, ranks_per_node=4) != "hierarchical"  # 4 does not divide 6


def test_auto_counts_the_joined_result_so_that_ranks_with_different_blocks_agree():
    rows = [0, 900_000, 3, 0]
    world = run(lambda g: c.all_gather(torch.zeros(rows[g.rank]), g, sizes=rows), 4)
    assert {call.algorithm for call in world.calls} == {"ring"}


def test_explain_says_what_was_chosen_with_its_time_and_the_runner_up():
    text = c.explain("all_reduce", 64_000_000, 8, SimpleNamespace(alpha=1e-4, beta=1e-9))
    assert text.startswith("all_reduce of 64,000,000 bytes on 8 ranks: ring, 113 ms by the model")
    assert "100 µs a message" in text and "1 GB/s" in text
    assert (
        "The fastest is halving_doubling, 113 ms, but ring is taken because halving_doubling is less than 10 %" in text
    )
    assert c.choose("all_reduce", 64_000_000, 8, SimpleNamespace(alpha=1e-4, beta=1e-9)).algorithm == "ring"
    tied = c.explain("all_reduce", 64_000_000, 2, SimpleNamespace(alpha=1e-4, beta=1e-9))
    assert "everyone" not in tied and "The fastest is recursive_doubling" in tied
    assert "recursive_doubling is less than 10 %" in tied
    two = c.explain("all_reduce", 1000, 3, SimpleNamespace(alpha=1e-4, beta=1e-9), among=["ring", "recursive_doubling"])
    assert "recursive_doubling, 303" in two and two.endswith("next ring 401 µs.")
    bfloat16 = c.explain("reduce_scatter", 64_000_000, 8, dtype=torch.bfloat16)
    assert "pairwise" in bfloat16 and "32 bits" in bfloat16
    assert "1 rank:" in c.explain("barrier", 0, 1)


def test_the_number_of_chunks_of_a_chain_grows_with_the_tensor():
    counts = [chain_chunks(n, 8) for n in (0, 1000, 1_000_000, 100_000_000)]
    assert counts == sorted(counts) and counts[0] == 1 and counts[-1] > 50
    assert chain_chunks(1_000_000, 2) == 1  # nobody in the middle to overlap
    assert chain_chunks(1000, 8, SimpleNamespace(alpha=0.0, beta=1e-9)) <= 1000
