"""FTAR adds up what the ring adds up, in the same order, with the same bytes; whatever the cut."""

from __future__ import annotations

import math

import pytest
import torch
from slices import REBUILDABLE, few

import labkit
from labkit import RankFailed, collectives, cost
from labkit.resilience.ftar.exchange import ft_all_reduce
from labkit.resilience.ftar.plan import make_plan

from .ftar_cases import ADDING, digest, values

pytestmark = pytest.mark.ranks

SIZES = [0, 1, 2, 7, 8, 63, 1000, 4096, 10_007]
CUTS = [(64, 1), (64, 3), (1000, 2), (4096, 4), (1 << 20, 4)]  # the first three make many partitions of the larger


def many(group, sizes, cuts):
    """For each size and cut: whether it equals the ring bit by bit, and the bits."""
    found = []
    for numel in sizes:
        for chunk_bytes, chunks in cuts:
            x = values(group.rank, numel)
            ring = collectives.all_reduce(x.clone(), group, algorithm="ring")
            got = ft_all_reduce(x, group, chunk_bytes=chunk_bytes, chunks=chunks)
            found.append((got is x and torch.equal(got, ring), digest(got)))
    return found


@pytest.mark.parametrize("ranks", few([3, 1, 2, 4, 5, 8], 2))
@pytest.mark.parametrize("transport", REBUILDABLE)
def test_the_same_bits_as_the_ring_on_every_rank_and_in_every_run(ranks, transport) -> None:
    sizes = SIZES if ranks < 5 else [0, 1, 1000, 10_007]
    first, again = (labkit.launch(many, ranks, sizes, CUTS, transport=transport, timeout=30).results for _ in range(2))
    assert all(equal for equal, _ in first[0]), first[0]
    assert all(result == first[0] for result in first)
    assert again == first


@pytest.mark.parametrize("transport", few(REBUILDABLE))
def test_every_dtype_that_adds(transport) -> None:
    def work(group, dtypes):
        found = {}
        for name in dtypes:
            x = values(group.rank, 1001, getattr(torch, name))
            ring = collectives.all_reduce(x.clone(), group, algorithm="ring")
            ft_all_reduce(x, group, chunk_bytes=256, chunks=2)
            found[name] = torch.equal(x, ring), digest(x)
        return found

    results = labkit.launch(work, 3, ADDING, transport=transport, timeout=30).results
    assert set(results[0]) == set(ADDING) and all(equal for equal, _ in results[0].values())
    assert results[1] == results[0] == results[2]


@pytest.mark.parametrize("transport", few(REBUILDABLE))
def test_it_agrees_with_the_native_library_to_rounding(transport) -> None:
    def work(group):
        x = torch.randn(50_000, generator=torch.Generator().manual_seed(group.rank))
        native = collectives.all_reduce(x.clone(), group, algorithm="native")
        return float((ft_all_reduce(x, group, chunk_bytes=1 << 12) - native).abs().max())

    assert max(labkit.launch(work, 4, transport=transport, timeout=30).results) < 1e-5


@pytest.mark.parametrize("transport", few(REBUILDABLE))
def test_any_memory_layout_and_no_graph(transport) -> None:
    def work(group):
        scalar = ft_all_reduce(torch.tensor(2.0), group)
        wide = torch.arange(12.0).view(3, 4)
        ft_all_reduce(wide.t(), group)  # not contiguous: written through
        leaf = torch.ones(3, requires_grad=True)
        with torch.no_grad():
            ft_all_reduce(leaf, group)
        return float(scalar), wide.tolist(), leaf.tolist(), leaf.grad_fn is None

    twice = [[2.0 * (4 * i + j) for j in range(4)] for i in range(3)]
    assert labkit.launch(work, 2, transport=transport, timeout=30).results == [(4.0, twice, [2.0] * 3, True)] * 2


@pytest.mark.parametrize(("ranks", "numel"), [(2, 1000), (3, 1000), (4, 1001), (5, 3), (8, 4097)])
@pytest.mark.parametrize("transport", few(REBUILDABLE))
def test_the_bytes_on_the_trace_are_those_of_the_ring(ranks, numel, transport) -> None:
    def work(group):
        ft_all_reduce(torch.ones(numel), group, chunk_bytes=256, chunks=2)

    trace = labkit.launch(work, ranks, transport=transport, timeout=30).trace
    assert trace.bytes_sent() == cost.ring_all_reduce_bytes_by_rank(numel, 4, ranks)
    cuts = math.ceil(math.ceil(numel / ranks) / 64)
    assert trace.messages() == [2 * (ranks - 1) * cuts] * ranks
    (call,) = trace.calls("all_reduce")
    assert (call.algorithm, call.nbytes) == ("ftar", 4 * numel)
    assert {(m.src, m.dst) for m in trace.sends} == {(r, (r + 1) % ranks) for r in range(ranks)}
    assert sum(m.combine for m in trace.recvs) * 2 == len(trace.recvs)
    assert all(m.nbytes <= 256 for m in trace.sends)


def test_the_plan_in_numbers() -> None:
    """8 ranks, 1 MiB in chunks of 8 KiB, 4 of each part at a time: partitions of 8 KiB x 4 x 8 = 256 KiB."""
    plan = make_plan(1 << 18, 4, 8, 3, 8 << 10, 4)
    assert (plan.chunks, plan.partitions, len(plan.outs)) == (16, 4, 14 * 16)
    for (start, stop, after), at in zip(plan.outs, range(len(plan.outs)), strict=True):
        step = at % (14 * 4) // 4
        assert 4 * (stop - start) == 8 << 10 and after == (0 if step == 0 else at - 4 + 1)
        if step:  # what goes on is what came one step before, the same chunk
            assert (start, stop) == plan.intos[at - 4][:2]
    uneven = make_plan(101, 4, 4, 0, 40, 2)
    sizes = [stop - start for start, stop, _ in uneven.outs]
    assert (uneven.chunks, uneven.partitions) == (3, 2)  # part 0 has 26 elements: 9 + 9 in the first, 8 in the second
    assert (sizes[:2], sizes[12]) == ([9, 9], 8)
    assert max(4 * size for size in sizes) <= 40


@pytest.mark.parametrize("transport", few(REBUILDABLE))
def test_on_the_virtual_clock_the_time_is_exact(transport) -> None:
    """Two ranks, a link of 1 GB/s: each step's chunks follow each other, and the last one has come after all bytes."""

    def work(group, chunks):
        ft_all_reduce(torch.ones(1_000_000), group, chunk_bytes=2_000_000 // chunks, chunks=chunks)

    network = labkit.Network(nodes=2, inter=labkit.Link(bandwidth=1e9, latency=1e-3))
    seconds = {}
    for chunks in (1, 4):
        runs = [labkit.launch(work, 2, chunks, transport=transport, clock="virtual", network=network, timeout=30)
                for _ in range(2)]  # fmt: skip
        seconds[chunks], again = (run.trace.calls("all_reduce")[0].seconds for run in runs)
        assert seconds[chunks] == again
    assert seconds[1] == pytest.approx(2 * (0.002 + 0.001))
    assert seconds[4] == pytest.approx(2 * 0.002 + 0.001)  # the second step's messages leave while the first's arrive


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda g, f: f(torch.ones(3) > 0, g), "bool"),
        (lambda g, f: f(torch.ones(3).to(torch.float8_e4m3fn), g), "8-bit floats"),
        (lambda g, f: f(torch.ones(1).expand(3), g), "share memory"),
        (lambda g, f: f(torch.ones(3, requires_grad=True), g), "requires grad"),
        (lambda g, f: f([1.0], g), "moves tensors"),
        (lambda g, f: f(torch.ones(3), g, chunk_bytes=0), "chunk_bytes=0: needs a whole number"),
        (lambda g, f: f(torch.ones(3), g, chunks=65), "chunks=65: needs a whole number from 1 to 64"),
        (lambda g, f: f(torch.ones(3), g, deadline=-1), "deadline=-1: needs a number of seconds above 0"),
        (lambda g, f: f(torch.ones(3), g, quiet=True), "quiet=True: needs a number"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_sent(call, words) -> None:
    with pytest.raises(RankFailed, match=words) as caught:
        labkit.launch(lambda group: call(group, ft_all_reduce), 2, transport="local", timeout=30)
    assert caught.value.failure.error in ("RefusedError", "TypeError")
    assert sum(caught.value.run.trace.messages()) == 0
