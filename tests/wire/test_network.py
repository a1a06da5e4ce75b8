"""Emulated links in real time: a message is never early, and the data is what was sent."""

from __future__ import annotations

import pytest
import torch
from leftovers import soon

import labkit
from labkit import Link, Network, collectives

TRANSPORTS = ["local", "gloo"]


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


def test_a_slow_link_is_not_much_slower_than_asked() -> None:
    net = Network(intra=Link(50e6, 20e-3))

    def work(group):
        for _ in range(5):
            group.exchange(torch.ones(250_000), 1 - group.rank, torch.zeros(250_000), 1 - group.rank)

    wanted = 5 * (20e-3 + 1e6 / 50e6)
    trace = labkit.launch(work, 2, network=net).trace
    begin = min(m.start for m in trace.sends)
    assert wanted <= trace.duration - begin < wanted + soon(0.1)


def test_compute_takes_its_time() -> None:
    import time

    def work(group):
        begin = time.perf_counter()
        group.compute(0.2)
        middle = time.perf_counter()
        with group.compute(0.2):
            time.sleep(0.1)
        padded = time.perf_counter()
        with group.compute(0.05):
            time.sleep(0.1)
        return middle - begin, padded - middle, time.perf_counter() - padded

    plain, padded, longer = labkit.launch(work, 1).results[0]
    assert 0.2 <= plain < 0.2 + soon(0.1) and 0.2 <= padded < 0.2 + soon(0.1) and 0.1 <= longer < 0.1 + soon(0.1)


def test_a_network_that_does_not_fit_the_world() -> None:
    with pytest.raises(labkit.Refused, match="holds 6 ranks, but the world has 4"):
        labkit.launch(lambda group: None, 4, network=Network(nodes=2, ranks_per_node=3))
    with pytest.raises(labkit.Refused, match="holds 6 ranks, but the world has 5"):
        labkit.launch(lambda group: None, 5, network=Network(nodes=2))
    for bad in ({"nodes": 0}, {"ranks_per_node": 0}, {"nodes": 1.5}, {"intra": 5}):
        with pytest.raises(labkit.Refused):
            Network(**bad)
