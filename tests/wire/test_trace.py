"""The trace tells what happened: bytes, messages, who sent to whom, spans, nesting, offsets, and what it dropped."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings, strategies as st
from slices import WIRES

import labkit
from labkit import collectives

pytestmark = pytest.mark.ranks


def by_plan(group, plan):
    """Each entry (a, b, n, way): a sends n float32 to b."""
    handles = []
    for a, b, n, posted in plan:
        if group.rank == a:
            handles.append(group.isend(torch.zeros(n), b)) if posted else group.send(torch.zeros(n), b)
        elif group.rank == b:
            group.recv(torch.zeros(n), a)
    for h in handles:
        h.wait()


PLANS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 2), st.sampled_from([0, 1, 7, 1000]), st.booleans()).filter(
        lambda p: p[0] != p[1]
    ),
    max_size=12,
)


@pytest.mark.parametrize("transport", WIRES)
@settings(max_examples=8)
@given(plan=PLANS)
def test_counts_are_those_of_the_plan(transport, plan) -> None:
    trace = labkit.launch(by_plan, 3, plan, transport=transport).trace
    between = [[sum(4 * n for a, b, n, _ in plan if (a, b) == (i, j)) for j in range(3)] for i in range(3)]
    assert trace.bytes_between() == between
    assert trace.bytes_sent() == [sum(row) for row in between]
    assert trace.messages() == [sum(a == i for a, *_ in plan) for i in range(3)]
    want = sorted((a, b, 4 * n) for a, b, n, _ in plan)
    assert sorted((m.src, m.dst, m.nbytes) for m in trace.sends) == want
    assert sorted((m.src, m.dst, m.nbytes) for m in trace.recvs) == want


@pytest.mark.parametrize("transport", WIRES)
def test_a_send_and_its_receive_are_matched(transport) -> None:
    def work(group):
        other = 1 - group.rank
        for i in range(5):
            group.step(i)
            group.exchange(torch.zeros(i), other, torch.zeros(i), other)

    trace = labkit.launch(work, 2, transport=transport).trace
    for m in (*trace.sends, *trace.recvs):
        assert (m.nbytes, m.dtype, m.shape, m.seq) == (4 * m.step, "float32", (m.step,), m.step + 1)
        assert 0 <= m.start <= m.end <= trace.duration and m.start <= m.arrived and m.recv_start <= m.arrived
        assert m.collective == -1 and m.offset == -1 and not m.combine


def test_a_message_that_nobody_took_never_arrived() -> None:
    def work(group):
        if group.rank == 0:
            group.isend(torch.zeros(2), 1)

    trace = labkit.launch(work, 2, transport="local", check=False).trace
    (m,) = trace.sends
    assert math.isnan(m.arrived) and math.isnan(m.recv_start) and trace.recvs == []


def test_spans_nest_and_keep_their_attributes() -> None:
    def work(group):
        group.step(3)
        with group.span("outer", layer=2, name="mlp"):
            group.compute(0.25)
            with group.span("inner"):
                group.compute(0.5)
        try:
            with group.span("broken"):
                raise KeyError
        except KeyError:
            pass

    trace = labkit.launch(work, 2, clock="virtual").trace
    outer, inner, compute = (trace.spans(n) for n in ("outer", "inner", "compute"))
    assert [(s.start, s.end, s.attrs, s.step) for s in outer] == [(0, 0.75, {"layer": 2, "name": "mlp"}, 3)] * 2
    assert [(s.start, s.end) for s in inner] == [(0.25, 0.75)] * 2
    assert [(s.start, s.end) for s in compute] == [(0, 0.25), (0.25, 0.75)] * 2
    assert len(trace.spans("broken")) == 2 and len(trace.spans()) == 10


@pytest.mark.parametrize("transport", WIRES)
def test_messages_of_a_collective_know_their_place_in_its_tensor(transport) -> None:
    def work(group):
        x = torch.zeros(4, 3, dtype=torch.float64)
        collectives.all_reduce(x, group, algorithm="ring")
        collectives.broadcast(x[:1], group, root=2, algorithm="tree")

    trace = labkit.launch(work, 3, transport=transport).trace
    reduce, broadcast = trace.collectives("all_reduce"), trace.collectives("broadcast")
    assert [(c.rank, c.algorithm, c.op, c.dtype, c.shape, c.nbytes, c.root, c.seq) for c in reduce] == [
        (r, "ring", "sum", "float64", (4, 3), 96, -1, 1) for r in range(3)
    ]
    assert [(c.root, c.seq, c.op, c.native, c.is_async, c.nested) for c in broadcast] == [
        (2, 2, "", False, False, False)
    ] * 3
    ring = [m for m in trace.sends if trace.collectives()[m.collective].name == "all_reduce"]
    assert len(ring) == 12 and {m.offset for m in ring} == {0, 4, 8} and all(m.shape == (4,) for m in ring)
    assert sum(m.combine for m in ring) == 6
    for m in ring:
        assert trace.collectives()[m.collective].rank == m.src and trace.collectives()[m.recv_collective].rank == m.dst
    assert sum(trace.messages()) == 12 + 2


def test_a_collective_inside_another_is_nested() -> None:
    def work(group):
        collectives.all_reduce(torch.zeros(8), group, algorithm="naive")
        collectives.all_reduce(torch.zeros(8), group, algorithm="hierarchical")

    net = labkit.Network(nodes=2, ranks_per_node=2)
    trace = labkit.launch(work, 4, network=net, clock="virtual").trace
    top = [c for c in trace.collectives() if not c.nested]
    assert [(c.algorithm, c.seq) for c in top if c.rank == 0] == [("naive", 1), ("hierarchical", 2)]
    for m in trace.sends:
        assert trace.collectives()[m.collective].rank == m.src


@pytest.mark.parametrize("size", [2, 3, 4])
def test_bytes_of_a_native_collective_are_measured_and_near_the_formula(size) -> None:
    def work(group):
        for _ in range(3):
            collectives.all_reduce(torch.ones(1 << 19), group, algorithm="native")

    for transport in WIRES:
        trace = labkit.launch(work, size, transport=transport).trace
        want = 3 * 2 * (size - 1) / size * (1 << 21)
        assert all(want <= sent <= 1.02 * want for sent in trace.bytes_sent()), (transport, trace.bytes_sent(), want)
        assert trace.messages() == [0] * size
        assert [c.native for c in trace.collectives()] == [True] * 3 * size


def test_native_bytes_are_not_counted_twice_beside_messages() -> None:
    def work(group):
        other = 1 - group.rank
        for _ in range(4):
            group.exchange(torch.zeros(1 << 18), other, torch.zeros(1 << 18), other)
            collectives.all_reduce(torch.ones(1 << 18), group, algorithm="native")

    for transport in WIRES:
        sent = labkit.launch(work, 2, transport=transport).trace.bytes_sent()
        assert all(8 << 20 <= n <= 1.02 * (8 << 20) for n in sent), (transport, sent)


def test_memory_is_measured_where_asked_for() -> None:
    def work(group):
        keep = torch.ones((1 + group.rank) << 20)
        group.step(1)
        del keep
        group.step(2)

    for kind, slack in (("resident", 1 << 16), ("peak", 24 << 20)):
        peaks = labkit.launch(work, 2, memory=kind).trace.peak_bytes()
        assert 4 << 20 <= peaks[0] <= (4 << 20) + slack and 8 << 20 <= peaks[1] <= (8 << 20) + slack, (kind, peaks)
    with pytest.raises(ValueError, match="memory='resident'"):
        labkit.launch(work, 1).trace.peak_bytes()


def test_a_failed_run_has_its_trace() -> None:
    def work(group):
        other = 1 - group.rank
        group.exchange(torch.zeros(3), other, torch.zeros(3), other)
        if group.rank:
            raise ValueError
        group.recv(torch.zeros(1), 1)

    with pytest.raises(labkit.RankFailed) as caught:
        labkit.launch(work, 2)
    assert caught.value.run.trace.bytes_sent() == [12, 12]


@pytest.mark.parametrize("transport", WIRES)
def test_more_names_than_fit_harm_nobody(transport) -> None:
    def work(group):
        for i in range(6000):
            with group.span("step", number=i, note="some words"):
                pass
        for i in range(6000):
            with group.span(f"a span of its own {i}"):
                pass
        half = group.subgroup([0, 1])
        x = collectives.all_reduce(torch.ones(2), half, algorithm="ring")
        return x.tolist()

    run = labkit.launch(work, 2, transport=transport)
    assert run.results == [[2.0, 2.0]] * 2
    steps = run.trace.spans("step")
    assert len(steps) == 12000 and steps[5].attrs == {"number": 5, "note": "some words"} and steps[5999].attrs == {}
    assert len(run.trace.spans()) == 24000
