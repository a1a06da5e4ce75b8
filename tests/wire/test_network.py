"""Emulated links in real time: a message is never early, and the data is what was sent."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
import torch
from slices import TRANSPORTS

import labkit
from labkit import Link, Network, collectives

pytestmark = pytest.mark.ranks


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_no_message_arrives_before_its_time(transport) -> None:
    net = Network(nodes=2, ranks_per_node=2, intra=Link(200e6, 2e-3), inter=Link(20e6, 10e-3))

    def work(group):
        for other in (group.rank ^ 1, group.rank ^ 2):
            for n in (0, 100_000):
                group.exchange(torch.ones(n), other, torch.zeros(n), other)
            if group.rank < other:
                group.send(torch.ones(1000), other)
                handle = group.irecv(torch.zeros(1000), other)
            else:
                group.recv(torch.zeros(1000), other)
                handle = group.isend(torch.ones(1000), other)
            handle.wait()
        return float(collectives.all_reduce(torch.ones(3), group, algorithm="ring")[0])

    run = labkit.launch(work, 4, network=net, transport=transport)
    assert run.results == [4.0] * 4 and run.trace.badge == "emulated"
    for m in run.trace.sends:
        link = net.link(m.src, m.dst, 2)
        assert m.arrived - m.start >= link.seconds(m.nbytes) - 1e-6, m


def asked_to_sleep() -> list[float]:
    """In a rank: the seconds that its clock asks the system for, from now on."""
    from labkit.wire import clock

    asked: list[float] = []
    clock.time = SimpleNamespace(  # type: ignore[assignment]
        perf_counter_ns=time.perf_counter_ns, sleep=lambda seconds: (asked.append(seconds), time.sleep(seconds))
    )
    return asked


def test_a_slow_link_makes_nobody_wait_for_longer_than_it_takes() -> None:
    net = Network(intra=Link(50e6, 20e-3))

    def work(group):
        asked = asked_to_sleep()
        for _ in range(5):
            group.exchange(torch.ones(250_000), 1 - group.rank, torch.zeros(250_000), 1 - group.rank)
        return sum(asked)

    once = 20e-3 + 1e6 / 50e6
    run = labkit.launch(work, 2, network=net)
    begin = min(m.start for m in run.trace.sends)
    assert all(0 < asked <= 5 * once for asked in run.results) and run.trace.duration - begin >= 5 * once
    for m in run.trace.sends:  # its last byte is on its way for as long, unless nobody wanted it yet
        assert m.arrived == pytest.approx(max(m.end + 20e-3, m.recv_start), abs=1e-6)


def test_compute_takes_its_time() -> None:
    def work(group):
        asked, begin = asked_to_sleep(), time.perf_counter()
        group.compute(0.2)
        with group.compute(0.2):
            time.sleep(0.1)
        with group.compute(0.05):
            time.sleep(0.1)
        return asked, time.perf_counter() - begin

    (plain, padded), seconds = labkit.launch(work, 1).results[0]  # the third was long enough by itself
    assert plain <= 0.2 and padded <= 0.1 and seconds >= 0.5


def test_a_network_that_does_not_fit_the_world() -> None:
    with pytest.raises(labkit.RefusedError, match="holds 6 ranks, but the world has 4"):
        labkit.launch(lambda group: None, 4, network=Network(nodes=2, ranks_per_node=3))
    with pytest.raises(labkit.RefusedError, match="holds 6 ranks, but the world has 5"):
        labkit.launch(lambda group: None, 5, network=Network(nodes=2))
    for bad in ({"nodes": 0}, {"ranks_per_node": 0}, {"nodes": 1.5}, {"intra": 5}):
        with pytest.raises(labkit.RefusedError):
            Network(**bad)
