"""What `auto` knows of the links of a run: the machine's, the emulated ones, and those between nodes."""

import pytest
import torch

import labkit
from labkit import Link, Network, collectives
from labkit.cost import Links
from labkit.wire.network import emulated_links

pytestmark = pytest.mark.ranks


def test_an_emulated_link_is_never_faster_than_the_machine():
    network = Network(nodes=2, intra=Link(bandwidth=1e12, latency=1e-3), inter=Link(bandwidth=1e6, latency=1e-9))
    assert emulated_links(Links(1e-5, 1e-9), network, 4) == Links(1e-3, 1e-9, 4, 1e-5, 1e-6)
    assert emulated_links(None, network, 4) == Links(1e-3, 1e-12, 4, 1e-9, 1e-6)
    assert emulated_links(None, Network(), 4) == Links(0, 0, 4, 0, 0)  # free links


def known(group):
    pair = group.subgroup([0, 1] if group.rank < 2 else [2, 3])
    across = group.subgroup([group.rank % 2, group.rank % 2 + 2])
    return group.link_model, pair.link_model, across.link_model


def test_on_the_virtual_clock_the_links_are_the_networks_whatever_the_machine():
    network = Network(nodes=2, intra=Link(1e10, 1e-6), inter=Link(1e9, 1e-5))
    for whole, pair, across in labkit.launch(known, 4, clock="virtual", network=network).results:
        assert whole == pair == Links(1e-6, 1e-10, 2, 1e-5, 1e-9)
        assert across.ranks_per_node == 1 and across.slowest(2) == (1e-5, 1e-9)
        assert pair.slowest(2) == (1e-6, 1e-10)
    assert labkit.launch(known, 4, clock="virtual").results[0][0] is None


def test_in_real_time_the_machine_counts_too():
    network = Network(nodes=2, inter=Link(1e6, 1e-3))
    slow = labkit.launch(known, 4, network=network).results[0][0]
    plain = labkit.launch(known, 4).results[0][0]
    assert (slow.alpha, slow.beta) == (plain.alpha, plain.beta)
    assert slow.between == (max(plain.alpha, 1e-3), max(plain.beta, 1e-6))  # a busy machine has a slower link than this


def chosen(group, numel):
    collectives.all_reduce(torch.zeros(numel), group)


@pytest.mark.parametrize("inter, expected", [(Link(1e8, 1e-6), "hierarchical"), (Link(1e10, 1e-6), "ring")])
def test_auto_weighs_the_hierarchical_algorithm_by_the_links_between_nodes(inter, expected):
    network = Network(nodes=2, intra=Link(1e10, 1e-6), inter=inter)
    run = labkit.launch(chosen, 8, 1 << 18, clock="virtual", network=network)
    outer = {c.algorithm for c in run.trace.collectives() if not c.nested}
    assert outer == {expected}
    times = {
        name: labkit.launch(forced, 8, 1 << 18, name, clock="virtual", network=network).trace.duration
        for name in ("hierarchical", "ring", "halving_doubling", "tree")
    }
    assert times[expected] <= 1.1 * min(times.values())


def forced(group, numel, name):
    collectives.all_reduce(torch.zeros(numel), group, algorithm=name)


def test_a_chain_over_a_link_without_latency_is_not_fed_single_bytes():
    def work(group):
        collectives.broadcast(torch.zeros(1 << 16), group, algorithm="chain")

    run = labkit.launch(work, 3, clock="virtual", network=Network(intra=Link(1e9)))
    assert run.trace.messages() == [64, 64, 0]
