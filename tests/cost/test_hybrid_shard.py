"""Sharding in the node and replicating across: against ZeRO at its two ends, and against real rings."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, strategies as st

import labkit
from labkit import collectives, cost
from labkit.cost.units import GB

per_node, nodes, params = st.integers(1, 16), st.integers(1, 16), st.integers(0, 10**12)


@given(params=params, k=per_node, m=nodes)
def test_the_two_ends(params, k, m):
    one_node = cost.hybrid_bytes_per_step(params, k, 1)
    assert one_node.across == 0 and one_node.total == pytest.approx(cost.zero_bytes_per_step(params, k, 3))
    one_rank = cost.hybrid_bytes_per_step(params, 1, m)
    assert one_rank.inside == 0 and one_rank.total == pytest.approx(cost.zero_bytes_per_step(params, m, 0))
    assert cost.hybrid_state_bytes(params, k) == pytest.approx(16 * params / k)


def test_seven_billion_on_eight_nodes():
    sent = cost.hybrid_bytes_per_step(7e9, 8, 8)
    assert sent == cost.Sent(36.75 * GB, 3.0625 * GB)
    assert round(cost.zero_bytes_per_step(7e9, 64, 3) / GB, 1) == 41.3
    assert cost.hybrid_state_bytes(7e9, 8) == 14 * GB  # eight times what full sharding over 64 holds
    leaves = {s: round(cost.node_egress_bytes(7e9, 8, 8, s) / GB, 2) for s in ("full_shard", "no_shard", "hybrid")}
    assert leaves == {"full_shard": 41.34, "no_shard": 27.56, "hybrid": 24.5}
    assert cost.node_egress_bytes(7e9, 8, 1, "full_shard") == 0


def one_step(group, numel, ranks_per_node, split_only=False):
    """The collectives of a step under hybrid sharding: two gathers, a reduce-scatter, an all-reduce of the own part."""
    inside = group.split(group.rank // ranks_per_node)
    across = group.split(group.rank % ranks_per_node)
    if split_only:
        return None
    own = torch.ones(numel // ranks_per_node)
    for _ in range(2):
        collectives.all_gather(own, inside, algorithm="ring")
    part = collectives.reduce_scatter(torch.ones(numel), inside, algorithm="ring")
    collectives.all_reduce(part, across, algorithm="ring")
    return float(part[0])


@pytest.mark.ranks
@pytest.mark.parametrize(("k", "m"), [(2, 2), (3, 2), (2, 4)])
def test_real_ranks_send_so_much(k, m):
    numel = 48 * k * m
    run = labkit.launch(one_step, k * m, numel, k)
    assert run.results == [k * m] * (k * m)
    between = run.trace.bytes_between()
    splitting = labkit.launch(one_step, k * m, numel, k, True).trace.bytes_between()
    sent = cost.hybrid_bytes_per_step(numel, k, m, itemsize=4)
    for rank in range(k * m):
        node = range(rank // k * k, rank // k * k + k)
        inside = sum(int(between[rank][other] - splitting[rank][other]) for other in node)
        across = sum(int(between[rank][other] - splitting[rank][other]) for other in range(k * m) if other not in node)
        assert (inside, across) == (round(sent.inside), round(sent.across))


@pytest.mark.ranks
@pytest.mark.parametrize("strategy", ["full_shard", "no_shard"])
def test_a_ring_leaves_each_node_once(strategy):
    k, m, numel = 2, 3, 600

    def step(group):
        if strategy == "no_shard":
            return collectives.all_reduce(torch.ones(numel), group, algorithm="ring")
        for _ in range(2):
            collectives.all_gather(torch.ones(numel // group.size), group, algorithm="ring")
        return collectives.reduce_scatter(torch.ones(numel), group, algorithm="ring")

    between = labkit.launch(step, k * m).trace.bytes_between()
    for node in range(m):
        leaves = sum(int(between[a][b]) for a in range(k * m) for b in range(k * m) if a // k == node != b // k)
        assert leaves == round(cost.node_egress_bytes(numel, k, m, strategy, itemsize=4))


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: cost.hybrid_bytes_per_step(1, 0, 2), "ranks_per_node .*0"),
        (lambda: cost.hybrid_bytes_per_step(1, 2, 0), "nodes .*0"),
        (lambda: cost.hybrid_bytes_per_step(-1, 2, 2), "params .*-1"),
        (lambda: cost.node_egress_bytes(1, 2, 2, "zero"), "strategy .*'full_shard'.*'zero'"),
        (lambda: cost.hybrid_state_bytes(1, 0), "size .*0"),
    ],
)
def test_what_cannot_be_is_refused_by_name_and_value(call, named):
    with pytest.raises(ValueError, match=named):
        call()
