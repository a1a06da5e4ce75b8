"""Whatever a tensor looks like in memory: the result lands where it should, and nothing else is touched."""

from __future__ import annotations

import pytest
import torch

from labkit.collectives import ALGORITHMS, all_gather, all_reduce, broadcast, gather, reduce_scatter, scatter

from . import cases
from .thread_world import run

LAYOUTS = {
    "transposed": lambda x: x.t().contiguous().t(),
    "strided": lambda x: torch.stack([x, torch.full_like(x, 99)], dim=-1)[..., 0],
    "column slice": lambda x: torch.cat([x, torch.full_like(x, 99)], dim=1)[:, : x.shape[1]],
    "flipped": lambda x: x.flip(0).flip(0),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("collective", "algorithm"), cases.algorithms(*cases.DATA))
def test_a_tensor_need_not_be_contiguous(collective, algorithm, layout):
    inputs = [cases.small_numbers(r, (6, 4), torch.float32) for r in range(3)]
    laid_out = [LAYOUTS[layout](x.clone()) for x in inputs]
    results = run(lambda g: cases.call(collective, algorithm, laid_out[g.rank], g), 3).results
    for got, wanted in zip(results, cases.expected(collective, inputs), strict=True):
        if wanted is not None:
            assert cases.same(got, wanted)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("collective", "algorithm"), cases.algorithms("all_reduce", "broadcast"))
def test_in_place_means_in_that_very_tensor_and_not_beside_it(collective, algorithm, layout):
    def work(group):
        x = LAYOUTS[layout](cases.small_numbers(group.rank, (6, 4), torch.float32))
        around = x._base if x._base is not None else x
        outside = around.numel() - x.numel()
        result = cases.call(collective, algorithm, x, group)
        return result is x, x.clone(), int((around == 99).sum()) == outside

    inputs = [cases.small_numbers(r, (6, 4), torch.float32) for r in range(4)]
    wanted = cases.expected(collective, inputs)[0]
    for is_x, x, outside_untouched in run(work, 4).results:
        assert is_x and torch.equal(x, wanted) and outside_untouched


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize(
    ("collective", "algorithm"), cases.algorithms("reduce_scatter", "all_gather", "gather", "all_to_all", "scatter")
)
def test_the_input_is_left_alone_and_the_result_is_new_memory(collective, algorithm, size):
    def work(group):
        x = cases.small_numbers(group.rank, (8, 2), torch.float32)
        before = x.clone()
        result = cases.call(collective, algorithm, x, group)
        if result is not None:
            result.fill_(77)
        return torch.equal(x, before)

    assert all(run(work, size).results)


def test_naive_reduce_leaves_the_others_as_they_were():
    inputs = [cases.small_numbers(r, (5,), torch.float32) for r in range(4)]
    results = run(lambda g: ALGORITHMS["reduce"]["naive"](inputs[g.rank].clone(), g, "avg", root=2), 4).results
    assert all(torch.equal(results[r], inputs[r]) for r in (0, 1, 3))


def test_a_lazily_conjugated_tensor_is_reduced_by_its_values():
    inputs = [cases.small_numbers(r, (5,), torch.complex64) for r in range(3)]

    def work(group):
        x = inputs[group.rank].clone().conj()
        return all_reduce(x, group, algorithm="ring") is x, x.clone()

    for is_x, x in run(work, 3).results:
        assert is_x and torch.equal(x, sum(inputs).conj())


def test_a_scalar_counts_as_one_row_where_blocks_are_joined():
    results = run(lambda g: (all_gather(torch.tensor(g.rank), g), gather(torch.tensor(g.rank), g)), 4).results
    assert all(torch.equal(every, torch.arange(4)) for every, _ in results)
    assert torch.equal(results[0][1], torch.arange(4))


def test_parameters_can_be_reduced_under_no_grad_and_stay_parameters():
    def work(group):
        weight = torch.nn.Parameter(torch.full((3, 2), float(group.rank)))
        with torch.no_grad():
            result = all_reduce(weight, group, "avg")
        gathered = all_gather(weight, group)
        return result is weight, weight.requires_grad, weight.is_leaf, gathered.requires_grad, weight.sum().item()

    assert run(work, 3).results == [(True, True, True, False, 6.0)] * 3


def test_scatter_writes_into_like_whatever_its_layout():
    whole = cases.small_numbers(0, (5, 4), torch.float32)

    def work(group):
        rows = len(torch.tensor_split(whole, 3)[group.rank])
        like = torch.zeros(4, rows).t()
        return scatter(whole if group.rank == 1 else None, group, root=1, like=like) is like, like

    for r, (is_like, part) in enumerate(run(work, 3).results):
        assert is_like and torch.equal(part, torch.tensor_split(whole, 3)[r])


def test_the_root_of_a_scatter_may_leave_out_like_and_gets_new_memory():
    whole = torch.arange(6.0)
    results = run(lambda g: scatter(whole, g) if g.rank == 0 else scatter(None, g, like=torch.empty(2)), 3).results
    assert torch.equal(torch.cat(results), whole)
    results[0].fill_(77)
    assert torch.equal(whole, torch.arange(6.0))


def test_bool_min_is_and_max_is_or():
    flags = [torch.tensor(bits) for bits in ([True, True, False], [True, False, False])]
    both = run(lambda g: all_reduce(flags[g.rank].clone(), g, "min"), 2).results[0]
    any_ = run(lambda g: all_reduce(flags[g.rank].clone(), g, "max"), 2).results[0]
    assert both.tolist() == [True, False, False]
    assert any_.tolist() == [True, True, False]


@pytest.mark.parametrize("op", ["min", "max"])
def test_a_nan_anywhere_is_seen_everywhere(op):
    def work(group):
        x = torch.tensor([1.0, float("nan") if group.rank == 2 else 0.0])
        return all_reduce(x, group, op).tolist()

    for result in run(work, 4).results:
        assert result[0] == 1.0 and result[1] != result[1]


def test_a_group_of_one_sends_nothing():
    x = torch.arange(5.0)
    for collective, algorithm in cases.algorithms(*cases.DATA, native=False):
        world = run(lambda g, c=collective, a=algorithm: cases.call(c, a, x.clone(), g), 1)
        assert world.messages == [0]
        assert torch.equal(world.results[0], x)


def test_broadcast_of_an_empty_tensor_and_reduce_scatter_of_fewer_rows_than_ranks():
    assert run(lambda g: broadcast(torch.empty(0, 3), g).shape, 3).results == [(0, 3)] * 3
    parts = run(lambda g: reduce_scatter(torch.ones(2, 3), g), 4).results
    assert [tuple(p.shape) for p in parts] == [(1, 3), (1, 3), (0, 3), (0, 3)]
