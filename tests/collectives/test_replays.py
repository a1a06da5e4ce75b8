"""Every collective can be replayed from the records of its messages, whatever copies its algorithm works on."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import labkit
from labkit.book import record
from labkit.collectives import ALGORITHMS, algorithm
from labkit.collectives.chunks import room_for, split_rows
from labkit.wire.ops import SUM

from . import cases

pytestmark = pytest.mark.ranks

FOLLOWED = [pair for pair in cases.algorithms(*cases.DATA, native=False) if pair[0] != "all_to_all"]
LENGTHS = (24, 7, 2)  # divides, does not divide, fewer than ranks


def call_all(group: Any, length: int, root: int) -> None:
    """Every algorithm once, in the order of FOLLOWED; gathers with blocks of different lengths."""
    for collective, name in FOLLOWED:
        if cases.fits(name, group.size, group.ranks_per_node):
            x, options = torch.ones(length, 3), {"root": root} if collective in cases.ROOTED else {}
            if collective in ("all_gather", "gather"):
                options["sizes"] = [(length + r) % 5 for r in range(group.size)]
                x = x.new_ones(options["sizes"][group.rank], 3)
            if collective == "scatter":
                options["like"] = torch.empty_like(torch.tensor_split(x, group.size)[group.rank])
                x = x if group.rank == root else None
            ALGORITHMS[collective][name](x, group, **options)


@pytest.mark.parametrize("size, nodes", [(1, 1), (2, 2), (3, 1), (4, 2), (5, 1), (8, 4)])
@pytest.mark.parametrize("length", LENGTHS)
def test_every_algorithm_is_followed_to_the_promised_end(size: int, nodes: int, length: int) -> None:
    network = labkit.Network(nodes=nodes, intra=labkit.Link(1e9, 1e-6), inter=labkit.Link(1e8, 1e-5))
    run = labkit.launch(call_all, size, length, size - 1, transport="local", clock="virtual", network=network)
    ran = [(c, name) for c, name in FOLLOWED if cases.fits(name, size, size // nodes)]
    followed = 0
    for nth, (collective, name) in enumerate(ran):
        replay = record(run.trace, nth=nth)
        assert (replay.name, replay.algorithm) == (collective, name)
        assert (replay.flaws, replay.unseen) == ([], 0), f"{collective} {name}: {replay.sentence}"
        followed += replay.messages
    assert followed == sum(m.nbytes > 0 for m in run.trace.sends)


def on_a_subgroup(group: Any) -> None:
    if group.rank != 1:
        trio = group.subgroup([3, 0, 2])  # not in the order of the world
        ALGORITHMS["all_gather"]["bruck"](torch.ones(2), trio)
        ALGORITHMS["reduce_scatter"]["ring"](torch.ones(6, 6).t(), trio)
        ALGORITHMS["broadcast"]["tree"](torch.ones(2), trio, root=0)


def test_a_group_in_an_order_of_its_own_and_a_transposed_tensor() -> None:
    run = labkit.launch(on_a_subgroup, 4, transport="local", clock="virtual")
    for nth in range(3):
        replay = record(run.trace, nth=nth)
        assert replay.ranks == (3, 0, 2) and not replay.unseen and replay.flaws == [], replay.sentence
    first = record(run.trace, nth=0)
    assert first.frames[0].held[0][0] == (3,)  # the first rows are those of world rank 3


def broken_all_gather(x: Any, group: Any, sizes: Any = None) -> Any:
    """The ring, but rank 2 passes on its own block in the second step instead of the one that came."""
    n, me = group.size, group.rank
    blocks = room_for(x, [len(x)] * n)
    group.work_on(blocks.whole)
    blocks[me].copy_(x)
    for step in range(n - 1):
        out = blocks[me if (me, step) == (2, 1) else (me - step) % n]
        group.exchange(out, (me + 1) % n, blocks[(me - step - 1) % n], (me - 1) % n)
    return blocks.whole


def broken_reduce_scatter(x: Any, group: Any, op: Any = SUM) -> Any:
    """The ring, but rank 1 forgets to add in the first step."""
    n, me = group.size, group.rank
    parts = split_rows(x, n)
    partial = group.copy_of(parts[(me - 1) % n])
    for step in range(n - 1):
        into = group.copy_of(parts[(me - step - 2) % n])
        group.exchange(partial, (me + 1) % n, into, (me - 1) % n, op=None if (me, step) == (1, 0) else op)
        partial = into
    return partial


@pytest.fixture
def lent() -> Any:
    """The broken algorithms in the table, while a test runs."""
    made = [algorithm("all_gather", "broken")(broken_all_gather), algorithm("reduce_scatter", "broken")(
        broken_reduce_scatter)]  # fmt: skip
    yield made
    for collective in ("all_gather", "reduce_scatter"):
        del ALGORITHMS[collective]["broken"]


def test_a_wrong_block_in_a_ring_all_gather_is_named(lent: Any) -> None:
    gather = lent[0]
    run = labkit.launch(lambda g: gather(torch.full((2,), float(g.rank)), g), 4, transport="local", clock="virtual")
    flaws = {(f.rank, f.chunk): f.lacks for f in record(run.trace).flaws}
    wrong = {
        (rank, chunk): frozenset({chunk})
        for rank, result in enumerate(run.results)
        for chunk in range(4)
        if result[2 * chunk] != chunk
    }
    assert wrong and flaws == wrong and all(chunk == 1 for _, chunk in flaws)  # block 1 was to be passed on


def test_a_forgotten_add_in_a_ring_reduce_scatter_is_named(lent: Any) -> None:
    scatter = lent[1]
    run = labkit.launch(lambda g: scatter(torch.full((8,), 10.0**g.rank), g), 4, transport="local", clock="virtual")
    assert [r[0].item() for r in run.results] == [1111, 1111, 1111, 1101]  # part 3 lacks what rank 1 had
    assert [(f.rank, f.chunk, f.lacks) for f in record(run.trace).flaws] == [(3, 3, frozenset({1}))]


def test_an_algorithm_that_hides_its_copies_is_refused_with_the_remedy() -> None:
    @algorithm("all_reduce", "hidden")
    def hidden(x: Any, group: Any, op: Any = SUM) -> Any:
        y = x.clone()
        other = 1 - group.rank
        group.exchange(x.clone(), other, y, other, op)
        return x.copy_(y)

    del ALGORITHMS["all_reduce"]["hidden"]
    run = labkit.launch(lambda g: hidden(torch.ones(4), g), 2, transport="local")
    with pytest.raises(ValueError, match="group.copy_of"):
        record(run.trace)
