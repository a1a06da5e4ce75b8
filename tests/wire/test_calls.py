"""A collective call seen whole, and the time of a training step: on the virtual clock they are known exactly."""

from __future__ import annotations

import pytest
import torch

import labkit
from labkit.collectives import all_reduce, broadcast

pytestmark = pytest.mark.ranks


def late_last_rank(group):
    for step in range(2):
        group.step(step)
        group.compute(0.5 if group.rank == group.size - 1 else 0.1)
        all_reduce(torch.ones(1000), group, algorithm="ring" if step else "tree")
    broadcast(torch.ones(1000), group)


@pytest.fixture(scope="module")
def trace():
    network = labkit.Network(intra=labkit.Link(bandwidth=1e6, latency=0.01))
    return labkit.launch(late_last_rank, 2, clock="virtual", network=network).trace


def test_a_call_begins_with_its_first_rank_and_is_complete_with_its_last(trace):
    tree, ring = trace.calls("all_reduce")
    assert (tree.algorithm, ring.algorithm, tree.nbytes, ring.step) == ("tree", "ring", 4000, 1)
    assert tree.start == pytest.approx(0.1)
    assert tree.complete == pytest.approx(0.5)
    assert tree.seconds == pytest.approx(2 * (0.01 + 4000 / 1e6))  # up the tree and down again
    assert ring.seconds == pytest.approx(2 * (0.01 + 2000 / 1e6))


def test_calls_are_whole_and_in_order(trace):
    assert [c.name for c in trace.calls()] == ["all_reduce", "all_reduce", "broadcast"]
    assert trace.during("broadcast") == (trace.calls()[2].start, trace.calls()[2].end)
    assert trace.during("all_reduce", -1) == (trace.calls()[1].start, trace.calls()[1].end)
    with pytest.raises(ValueError, match="2 calls of 'all_reduce'.*no number 2"):
        trace.during("all_reduce", 2)


def test_a_step_lasts_until_the_first_rank_begins_the_next(trace):
    first, second = trace.during_step(0), trace.during_step(1)
    assert first == (0, pytest.approx(trace.calls()[0].end, abs=0.015)) and first[1] == second[0]
    assert second[1] == trace.duration
    with pytest.raises(ValueError, match="step 2: steps 0 to 1"):
        trace.during_step(2)


def test_nested_calls_do_not_count():
    network = labkit.Network(nodes=2, ranks_per_node=2)
    run = labkit.launch(lambda g: all_reduce(torch.ones(8), g, algorithm="hierarchical"), 4, clock="virtual",
                        network=network)  # fmt: skip
    assert [c.algorithm for c in run.trace.calls()] == ["hierarchical"]
