"""The same collectives on real processes: every algorithm over every transport, results and evidence together.

One world a test runs everything in turn, so that a whole table costs one launch. What threads already prove about
odd shapes and dtypes is sampled here; what only processes can show (sockets, partial reads, native libraries, the
trace) is checked in full.
"""

from __future__ import annotations

import pytest
import torch
from slices import TRANSPORTS, WIRES, few

import labkit
from labkit import collectives, cost
from labkit.world import machine

from . import cases

pytestmark = pytest.mark.ranks

SHAPES = [(), (0,), (7,), (8, 2), (131_075,)]  # the last one is cut in pieces by the local transport


@pytest.fixture(autouse=True)
def typical_links(monkeypatch):
    """The chain cuts its tensor by what was measured on this machine; the expected counts assume a typical one."""
    monkeypatch.setattr(machine, "link_model", lambda transport: None)


def sent_so_far(group):
    counters = group.context.recorder.page.counters()
    return sum(c[0] for c in counters), sum(c[1] for c in counters)


def everything(group, plan):
    """Run each case of the plan; returns (result, bytes sent, messages sent) of each on this rank."""
    rows = []
    for collective, algorithm, shape, dtype, op, root in plan:
        x = cases.small_numbers(group.rank, shape, dtype)
        before = sent_so_far(group)
        result = cases.call(collective, algorithm, x, group, op=op, root=root)
        after = sent_so_far(group)
        rows.append((result, after[0] - before[0], after[1] - before[1]))
    return rows


def plan_for(size):
    plan = []
    for n, (collective, algorithm) in enumerate(cases.algorithms(*cases.DATA)):
        if not cases.fits(algorithm, size, size):
            continue
        for i, shape in enumerate(SHAPES):
            if collective in cases.CUTTING and not shape:
                continue
            op, dtype = cases.REDUCIBLE[(7 * n + 3 * i) % len(cases.REDUCIBLE)] if i < 4 else ("sum", torch.float32)
            if algorithm == "native" and not cases.native_can(op, dtype):
                op, dtype = "sum", torch.float32
            plan.append((collective, algorithm, shape, dtype, op, (n + i) % size))
    return plan


@pytest.mark.parametrize("transport", WIRES)
@pytest.mark.parametrize("size", few([3, *(n for n in cases.ODD_SIZES if n != 3)]))
def test_every_algorithm_gives_the_right_result_with_the_stated_bytes(size, transport):
    plan = plan_for(size)
    run = labkit.launch(everything, size, plan, transport=transport)
    for i, (collective, algorithm, shape, dtype, op, root) in enumerate(plan):
        what = (collective, algorithm, shape, dtype, op, root)
        inputs = [cases.small_numbers(r, shape, dtype) for r in range(size)]
        for rank, wanted in enumerate(cases.expected(collective, inputs, op, root)):
            if wanted is not None:
                assert cases.same(run.results[rank][i][0], wanted), (what, rank)
        if algorithm != "native":
            sent, messages = cases.bytes_and_messages(collective, algorithm, shape, dtype.itemsize, size, root)
            assert [rows[i][1] for rows in run.results] == sent, what
            assert [rows[i][2] for rows in run.results] == messages, what


@pytest.mark.parametrize("transport", WIRES)
def test_the_trace_holds_what_the_closed_form_says(transport):
    numel, size = 10_007, 5
    run = labkit.launch(lambda g: collectives.ring_all_reduce(torch.ones(numel), g), size, transport=transport)
    assert run.trace.bytes_sent() == cost.cost_of("all_reduce", "ring").bytes_by_rank(numel, 4, size)
    assert run.trace.messages() == [2 * (size - 1)] * size
    between = run.trace.bytes_between()
    assert all(between[r][c] == 0 for r in range(size) for c in range(size) if c != (r + 1) % size)
    assert all(m.arrived >= m.start for m in run.trace.recvs)
    halves = [m.combine for m in run.trace.sends if m.src == 0]
    assert halves == [True] * (size - 1) + [False] * (size - 1)


@pytest.mark.parametrize("transport", WIRES)
def test_asynchronous_collectives_keep_their_order_and_their_results(transport):
    def many(group):
        tensors = [torch.full((1000,), float(group.rank + i)) for i in range(6)]
        handles = [collectives.all_reduce(x, group, algorithm="ring", async_op=True) for x in tensors]
        group.exchange(torch.ones(3), (group.rank + 1) % group.size, torch.empty(3), (group.rank - 1) % group.size)
        return [h.wait()[0].item() for h in handles]

    run = labkit.launch(many, 3, transport=transport)
    assert run.results == [[3.0 + 3 * i for i in range(6)]] * 3


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("algorithm", ["ring", "halving_doubling", "recursive_doubling", "tree"])
@pytest.mark.parametrize("size", few([4, 2, 8]))
def test_virtual_time_is_the_alpha_beta_model_to_the_nanosecond(algorithm, size, transport):
    link = labkit.Link(bandwidth=1e9, latency=1e-4)
    numel = 8 * 1000
    run = labkit.launch(
        lambda g: collectives.all_reduce(torch.ones(numel), g, algorithm=algorithm), size,
        clock="virtual", network=labkit.Network(intra=link), transport=transport,
    )  # fmt: skip
    model = cost.cost_of("all_reduce", algorithm).seconds(numel * 4, size, 1e-4, 1e-9)
    assert run.trace.duration == pytest.approx(model, abs=1e-8)


def test_hierarchical_crosses_nodes_with_one_kth_of_the_bytes():
    network = labkit.Network(nodes=2, ranks_per_node=4)
    numel = 8 * 500

    def flat_and_hierarchical(group, algorithm):
        return collectives.all_reduce(torch.ones(numel), group, algorithm=algorithm)[0].item()

    across = {}
    for algorithm in ("ring", "hierarchical"):
        run = labkit.launch(flat_and_hierarchical, 8, algorithm, network=network, clock="virtual", transport="local")
        assert run.results == [8.0] * 8
        between = run.trace.bytes_between()
        across[algorithm] = [sum(row[4:]) if r < 4 else sum(row[:4]) for r, row in enumerate(between)]
    assert across["hierarchical"] == [numel * 4 // 4] * 8
    assert max(across["ring"]) == 2 * 7 * numel * 4 // 8
