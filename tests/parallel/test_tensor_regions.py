"""The pairs of functions at the borders of a tensor-parallel region: values, adjoints, lengths that do not divide."""

from __future__ import annotations

import pytest
import torch
from slices import few

from labkit import RankFailed, launch
from labkit.parallel.tensor.regions import (
    copy_all_to_region,
    copy_to_region,
    gather_from_region,
    gather_sequence,
    reduce_from_region,
    reduce_scatter_sequence,
    scatter_to_region,
)

pytestmark = pytest.mark.ranks

SIZES = few([3, 1, 2, 4], 2)


def numbers(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def own(x, group, dim):
    return x.tensor_split(group.size, dim)[group.rank]


def through(function, x, gradient):
    """(output, gradient of x) for this gradient of the output."""
    x = x.clone().requires_grad_()
    y = function(x)
    y.backward(gradient)
    return y.detach(), x.grad


@pytest.mark.parametrize("size", SIZES)
def test_what_each_function_does_forward_and_backward(size):
    def on_rank(group):
        n, r = group.size, group.rank
        same, mine = numbers(2, 7, 5), [numbers(2, 7, 5, seed=10 + i) for i in range(n)]
        total = torch.stack(mine).sum(0)
        found = {}

        def holds(name, pair, expected):
            for what, a, b in zip(("forward", "backward"), pair, expected, strict=True):
                found[name, what] = float((a - b).abs().sum()) if a.shape == b.shape else "another shape"

        holds("copy", through(lambda x: copy_to_region(x, group), same, mine[r]), (same, total))
        holds("reduce", through(lambda x: reduce_from_region(x, group), mine[r], same), (total, same))
        for dim in (0, 1, -1):
            part = own(same, group, dim).contiguous()
            length = same.shape[dim]
            holds(f"scatter {dim}", through(lambda x, d=dim: scatter_to_region(x, group, d), same, part), (part, same))
            gather = lambda x, d=dim, m=length: gather_from_region(x, group, d, length=m)  # noqa: E731
            holds(f"gather {dim}", through(gather, part, same), (same, part))
            gather = lambda x, d=dim, m=length: gather_sequence(x, group, d, length=m)  # noqa: E731
            holds(f"gather sequence {dim}", through(gather, part, mine[r]), (same, own(total, group, dim)))
            reduce = lambda x, d=dim: reduce_scatter_sequence(x, group, d)  # noqa: E731
            holds(f"reduce sequence {dim}", through(reduce, mine[r], part), (own(total, group, dim), same))
        return found

    for found in launch(on_rank, size, transport="local").results:
        assert len(found) == 2 * (2 + 3 * 4)
        exact = {name for name, off in found.items() if off == 0}
        summed = [("copy", "backward"), ("reduce", "forward")]  # in the order of some algorithm
        summed += [(f"{kind} sequence {dim}", way) for dim in (0, 1, -1)
                   for kind, way in (("gather", "backward"), ("reduce", "forward"))]  # fmt: skip
        assert exact | set(summed) == set(found), found
        assert all(found[name] < 1e-12 for name in summed), found


@pytest.mark.parametrize("size", SIZES)
def test_gradcheck_of_every_pair_on_real_ranks(size):
    """From a tensor that all ranks have to one that all have, through work that differs by rank."""

    def on_rank(group):
        r = group.rank
        w, v = numbers(3, 4, seed=r), numbers(4, 3, seed=20 + r)
        length = 2 * group.size + 1

        def pair(x):
            return reduce_from_region(torch.tanh(copy_to_region(x, group) @ w) * (r + 1), group)

        def several(x, y):
            a, b = copy_all_to_region([x, y], group)
            return reduce_from_region(a.sum() * b * (r + 1) + a[0, 0].sin(), group)

        def parts(x):
            return gather_from_region(torch.sin(scatter_to_region(x, group, 1)) * (r + 1), group, 1, length=length)

        def sequence(x):
            local = torch.sin(scatter_to_region(x, group, 1)) * (r + 2)
            whole = torch.tanh(gather_sequence(local, group, length=length) @ w) @ v
            return gather_from_region(reduce_scatter_sequence(whole, group), group, 1, length=length)

        x = numbers(2, length, 3, seed=99).requires_grad_()
        small, other = numbers(2, 2, seed=98).requires_grad_(), numbers(3, seed=97).requires_grad_()
        return [
            torch.autograd.gradcheck(pair, (x,)), torch.autograd.gradcheck(several, (small, other)),
            torch.autograd.gradcheck(parts, (x,)), torch.autograd.gradcheck(sequence, (x,)),
        ]  # fmt: skip

    assert all(all(found) for found in launch(on_rank, size, transport="local").results)


def test_gathering_and_reduce_scattering_are_adjoint():
    """<A x, y> = <x, A' y>, summed over the ranks, for parts of different lengths."""

    def on_rank(group):
        x = own(numbers(2, 7, 3), group, 1).clone().requires_grad_()
        y = numbers(2, 7, 3, seed=group.rank + 1).requires_grad_()
        gathered = (gather_sequence(x, group, length=7) * y.detach()).sum()
        scattered = (x.detach() * reduce_scatter_sequence(y, group)).sum()
        gathered.backward()
        scattered.backward()
        return float(gathered.detach()), float(scattered.detach()), float((x.grad * x).sum().detach())

    results = launch(on_rank, 3, transport="local").results
    one, two, three = (sum(column) for column in zip(*results, strict=True))
    assert one == pytest.approx(two, rel=1e-12) and one == pytest.approx(three, rel=1e-12)


def test_several_tensors_are_summed_by_one_all_reduce_and_one_that_is_not_used_counts_zeros():
    def on_rank(group):
        x, y, z = (torch.ones(k, requires_grad=True) for k in (2, 3, 4))
        a, b, _ = copy_all_to_region([x, y, z], group, algorithm="ring")
        (a.sum() + b.sum() if group.rank else a.sum()).backward()
        return [p.grad.tolist() for p in (x, y, z)]

    run = launch(on_rank, 3, transport="local")
    assert run.results == [[[3.0] * 2, [2.0] * 3, [0.0] * 4]] * 3
    assert [(c.name, c.algorithm, c.nbytes) for c in run.trace.collectives() if c.rank == 0] == [
        ("all_reduce", "ring", 4 * 9)
    ]


def test_inputs_and_gradients_are_left_as_they_were():
    def on_rank(group):
        x = numbers(2, 4, 3, seed=group.rank)
        kept, gradient = x.clone(), numbers(2, 4, 3)
        before = gradient.clone()
        through(lambda x: copy_to_region(x, group), x, gradient)
        through(lambda x: reduce_from_region(x, group), x, gradient)
        through(lambda x: reduce_scatter_sequence(x, group), x, gradient[:, :2])
        return bool(torch.equal(x, kept) and torch.equal(gradient, before))

    assert launch(on_rank, 2, transport="local").results == [True, True]


def test_nothing_is_differentiated_twice_without_saying_so():
    def on_rank(group):
        x = numbers(2, 2, 2).requires_grad_()
        (g,) = torch.autograd.grad(gather_sequence(x, group).square().sum(), x, create_graph=True)
        g.sum().backward()

    with pytest.raises(RankFailed, match="once_differentiable"):
        launch(on_rank, 2, transport="local")
