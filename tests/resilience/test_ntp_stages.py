"""Pipeline stages of different width: what crosses their border, and that the gradients are those of one device."""

from __future__ import annotations

import pytest
import torch
from slices import few

from labkit import launch
from labkit.models import GPTConfig
from labkit.models.gpt import Block
from labkit.parallel.tensor.block import TensorParallelBlock
from labkit.parallel.tensor.placement import Placement
from labkit.parallel.tensor.whole import load_whole, whole_gradients
from labkit.resilience.ntp import Border, shard_map
from labkit.wire.errors import RefusedError
from labkit.world import RankFailed

pytestmark = pytest.mark.ranks

CONFIG = GPTConfig(vocab=8, context=8, layers=2, heads=4, width=16)


def stages(width, narrow):
    return list(range(width)), list(range(width, width + narrow))


def blocks():
    torch.manual_seed(1)
    return [Block(CONFIG).double() for _ in range(2)]


def input_btd():
    return torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


@pytest.mark.parametrize("widths", few([(4, 3), (1, 3), (3, 4), (2, 2), (4, 1)], 2, one=True), ids=str)
def test_two_stages_have_the_gradients_of_one_device(widths):
    def ranks(group):
        first, second = stages(*widths)
        border, mine = Border(group, first, second), first if group.rank in first else second
        inner = group.subgroup(mine)
        placement = Placement.by(CONFIG, lambda count: shard_map(count, len(mine), len(mine)).compute)
        block = TensorParallelBlock(CONFIG, inner, placement=placement).double()
        load_whole(block, inner, blocks()[mine is second].state_dict())
        x = input_btd()
        if mine is first:
            y = block(x)
            border.send(y.detach())
            y.backward(border.receive(y))
        else:
            x = border.receive(x).requires_grad_()
            (block(x) ** 2).sum().backward()
            border.send(x.grad)
        return whole_gradients(block, inner)

    run = launch(ranks, sum(widths), transport="local")
    one, two = blocks()
    (two(one(input_btd())) ** 2).sum().backward()
    for rank, found in enumerate(run.results):
        wanted = {name: p.grad for name, p in (one if rank < widths[0] else two).named_parameters()}
        assert max(float((found[name] - wanted[name]).abs().max()) for name in wanted) < 1e-10


def test_no_number_crosses_twice_and_a_narrow_stage_has_less_bandwidth():
    def ranks(group):
        first, second = stages(4, 3)
        border = Border(group, first, second)
        x = torch.arange(300.0)
        if group.rank in first:
            border.send(x)
            return None
        return border.receive(torch.empty(300))

    run = launch(ranks, 7, transport="local")
    assert all(torch.equal(got, torch.arange(300.0)) for got in run.results[4:])
    table = run.trace.bytes_between()
    assert [table[a][b] for a in range(4) for b in range(4, 7)] == [400, 0, 0, 0, 400, 0, 0, 0, 400, 0, 0, 0]


REFUSALS = [
    (([], [0, 1]), r"before=\[\]: a stage needs one rank"),
    (([0, 0], [1]), r"before=\[0, 0\]"),
    (([0], [1, 2]), "of 0 to 1"),
    (([0, 1], [1]), "rank 1 is on both sides"),
]


@pytest.mark.parametrize(("sides", "words"), REFUSALS)
def test_sides_that_cannot_be_are_refused(sides, words):
    with pytest.raises(RankFailed, match=words):
        launch(lambda group: Border(group, *sides), 2, transport="local")


def test_who_is_on_neither_side_is_told():
    def ranks(group):
        if group.rank < 2:
            return
        with pytest.raises(RefusedError, match="rank 2 is on neither side"):
            Border(group, [0], [1])

    launch(ranks, 3, transport="local")
