"""Virtual time is exact: programs whose times can be worked out by hand, the same on every transport and every run."""

from __future__ import annotations

import random
import time

import pytest
import torch
from slices import TRANSPORTS

import labkit
from labkit import Link, Network, collectives

pytestmark = pytest.mark.ranks

ALPHA, BETA = 5e-6, 1e-9
LINK = Link(bandwidth=1 / BETA, latency=ALPHA)
ONE = Network(intra=LINK)


def end_times(trace, name=None):
    """When the last thing of each rank ended."""
    last = [0.0] * trace.world_size
    for row in trace.events:
        last[row["rank"]] = max(last[row["rank"]], row["t1"] / 1e9)
    return last


def run(work, size, *args, transport="local", network=ONE, **options):
    return labkit.launch(work, size, *args, transport=transport, clock="virtual", network=network, **options)


def near(seconds):
    return pytest.approx(seconds, abs=2e-9)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_message_costs_latency_plus_bytes_over_bandwidth(transport) -> None:
    def work(group):
        if group.rank == 0:
            group.compute(1e-3)
            group.send(torch.zeros(1000), 1)
        else:
            group.recv(torch.zeros(1000), 0)

    trace = run(work, 2, transport=transport).trace
    (m,) = trace.sends
    assert (m.start, m.end) == (near(1e-3), near(1e-3 + 4000 * BETA))  # the port is busy for the bytes
    assert (m.recv_start, m.arrived) == (near(0), near(1e-3 + ALPHA + 4000 * BETA))
    assert trace.badge == "emulated" and trace.clock == "virtual"


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_a_ring_step_takes_alpha_plus_n_beta(size, transport) -> None:
    def work(group, steps):
        right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
        for _ in range(steps):
            group.exchange(torch.zeros(25), right, torch.zeros(25), left)

    trace = run(work, size, 7, transport=transport).trace
    assert end_times(trace) == [near(7 * (ALPHA + 100 * BETA))] * size
    assert trace.duration == near(7 * (ALPHA + 100 * BETA))


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_compute_slowest_rank_and_exchange(transport) -> None:
    def work(group):
        group.compute(0.001 * (group.rank + 1))
        other = 1 - group.rank
        group.exchange(torch.zeros(1000), other, torch.zeros(1000), other)

    trace = run(work, 2, transport=transport).trace
    # rank 1 starts at 2 ms and has rank 0's data at once; rank 0 waits for rank 1's
    assert end_times(trace) == [near(0.002 + ALPHA + 4000 * BETA), near(0.002 + 4000 * BETA)]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_posted_messages_overlap_with_compute_and_share_a_port(transport) -> None:
    def work(group):
        if group.rank == 0:
            handles = [group.isend(torch.zeros(250_000), 1) for _ in range(3)]  # 1 ms each on the port
            group.compute(0.0005)
            for handle in handles:
                handle.wait()
        else:
            handles = [group.irecv(torch.zeros(250_000), 0) for _ in range(3)]
            group.compute(0.01)
            for handle in handles:
                handle.wait()
            group.compute(0.001)

    trace = run(work, 2, transport=transport).trace
    assert [m.start for m in trace.sends] == [near(0.001 * i) for i in range(3)]
    assert [m.arrived for m in trace.sends] == [near(ALPHA + 0.001 * (i + 1)) for i in range(3)]
    assert end_times(trace) == [near(0.003), near(0.011)]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_two_senders_share_the_receivers_port(transport) -> None:
    def work(group):
        if group.rank == 0:
            for source in (1, 2):
                group.recv(torch.zeros(250_000), source)
        else:
            group.send(torch.zeros(250_000), 0)

    assert end_times(run(work, 3, transport=transport).trace)[0] == near(ALPHA + 0.002)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_an_asynchronous_collective_hides_under_compute(transport) -> None:
    def work(group, kernel):
        handle = collectives.all_reduce(torch.zeros(250_000), group, algorithm="ring", async_op=True)
        group.compute(kernel)
        handle.wait()

    ring = 2 * (ALPHA + 0.0005)  # two steps of half a megabyte
    for kernel in (0.0003, 0.05):
        trace = run(work, 2, kernel, transport=transport).trace
        assert end_times(trace) == [near(max(ring, kernel))] * 2
        assert [c.end for c in trace.collectives("all_reduce")] == [near(ring)] * 2


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_collectives_of_a_group_follow_one_another_however_fast_the_machine_is(transport) -> None:
    """Whether the first is over in real time when the second is called may not matter."""

    def work(group, pause):
        x = torch.zeros(250_000)
        first = collectives.all_reduce(x, group, algorithm="ring", async_op=True)
        time.sleep(pause)
        collectives.all_reduce(x, group, algorithm="ring")
        first.wait()

    ring = 2 * (ALPHA + 0.0005)
    for pause in (0.0, 0.3):
        assert end_times(run(work, 2, pause, transport=transport).trace) == [near(2 * ring)] * 2


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_links_inside_and_between_nodes(transport) -> None:
    net = Network(nodes=2, ranks_per_node=2, intra=Link(1e9, 1e-6), inter=Link(1e8, 1e-4))

    def work(group, bit):
        other = group.rank ^ bit
        group.exchange(torch.zeros(250), other, torch.zeros(250), other)

    for bit, seconds in ((1, 1e-6 + 1e-6), (2, 1e-4 + 1e-5)):
        run_ = run(work, 4, bit, transport=transport, network=net)
        assert end_times(run_.trace) == [near(seconds)] * 4


def test_without_a_network_messages_take_no_time() -> None:
    def work(group):
        group.compute(0.25)
        collectives.all_reduce(torch.zeros(1000), group, algorithm="ring")
        with group.compute(0.5):
            time.sleep(0.01)  # real time does not count

    assert end_times(labkit.launch(work, 3, clock="virtual").trace) == [near(0.75)] * 3


def program(group, seed):
    """Compute, exchanges, posted messages and collectives, with pauses in real time that differ from run to run."""
    plan, jitter = random.Random(seed), random.Random()
    handles = []
    for _ in range(25):
        kind, n = plan.choice(["compute", "ring", "post", "reduce", "async", "wait"]), plan.choice([0, 1, 1000, 50_000])
        right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
        time.sleep(jitter.choice([0, 0, 0, 0.02]))
        if kind == "compute":
            group.compute(1e-4 * (1 + group.rank))
        elif kind == "ring":
            group.exchange(torch.zeros(n), right, torch.zeros(n), left)
        elif kind == "post":
            handles += [group.irecv(torch.zeros(n), left), group.isend(torch.zeros(n), right)]
        elif kind == "reduce":
            collectives.all_reduce(torch.zeros(n), group, algorithm=plan.choice(["ring", "tree", "naive"]))
        elif kind == "async":
            handles.append(collectives.all_reduce(torch.zeros(n), group, algorithm="ring", async_op=True))
        else:
            while handles:
                handles.pop(0).wait()
    while handles:
        handles.pop(0).wait()


def picture(trace):
    sends = [(m.src, m.dst, m.nbytes, m.start, m.end, m.arrived, m.lane, m.seq) for m in trace.sends]
    return (
        end_times(trace),
        sorted(sends),
        [(c.rank, c.name, c.start, c.end, c.seq) for c in trace.collectives()],
        [(s.rank, s.name, s.start, s.end) for s in trace.spans()],
        trace.step_breakdown(),
    )


@pytest.mark.parametrize("seed", range(4))
def test_times_are_the_same_on_every_transport_and_every_run(seed) -> None:
    first, again, other = (picture(run(program, 3, seed, transport=t).trace) for t in ("local", "local", "gloo"))
    assert first == again
    assert first == other
