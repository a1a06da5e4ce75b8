"""Meshes on machines: which units the groups of an axis are in, what their collectives take, and in which order."""

from __future__ import annotations

import math
from collections import Counter
from itertools import permutations

import pytest
from hypothesis import given, strategies as st

from labkit import cost
from labkit.cost import topology as T
from labkit.cost.topology import Level, Topology, Traffic
from labkit.parallel.layout import Layout

NODES = T.dgx_node(4)  # 32 GPUs
MB = 10**6
sizes_of_meshes = st.lists(st.integers(1, 6), min_size=1, max_size=4).map(
    lambda sizes: {f"axis{i}": size for i, size in enumerate(sizes)}
)
machines = st.lists(st.integers(1, 6), min_size=1, max_size=4).map(
    lambda holds: Topology(
        "drawn", tuple(Level(f"level {i}", n, 100.0 / (i + 1), float(i), 1.0 + i) for i, n in enumerate(holds))
    )
)


def large_enough(machine: Topology, ranks: int) -> Topology:
    """The machine with one more level that gives it GPUs for so many ranks."""
    more = -(-ranks // machine.gpus)
    return Topology("drawn", (*machine.levels, Level("outermost", more, 10.0, 9.0, 9.0)))


@given(machines, sizes_of_meshes)
def test_members_and_leavers_are_those_of_the_layouts_own_groups(machine: Topology, sizes: dict[str, int]) -> None:
    layout = Layout(sizes)
    machine = large_enough(machine, layout.size)
    for name, axis in T.place(machine, sizes).items():
        groups = layout.groups(name)
        assert (axis.groups, axis.stride) == (len(groups), layout.stride(name))
        assert list(axis.first_group()) == groups[0]
        for i, level in enumerate(machine.levels):
            capacity = machine.capacity(level.name)
            counts = [Counter(rank // capacity for rank in group).values() for group in groups]
            assert axis.members[i] == min(min(c) for c in counts)
            assert axis.leaves(level.name) == sum(len(c) > 1 for c in counts) == len(layout.crossing(name, capacity))
        if axis.size == 1:
            assert axis.crosses is None and axis.depth == 0
        else:
            needed = max((machine.crossing(group) for group in groups), key=machine.levels.index)
            assert axis.crosses == needed


@given(machines, sizes_of_meshes)
def test_regular_is_the_same_number_everywhere(machine: Topology, sizes: dict[str, int]) -> None:
    layout = Layout(sizes)
    machine = large_enough(machine, layout.size)
    for name, axis in T.place(machine, sizes).items():
        even = all(
            len({n for group in layout.groups(name) for n in Counter(r // c for r in group).values()}) == 1
            for c in machine.capacities
        )
        assert axis.regular == even


def test_a_layout_is_placed_as_it_is() -> None:
    sizes = {"dp": 4, "tp": 8}
    assert T.place(NODES, Layout(sizes)) == T.place(NODES, sizes)
    placed = T.place(NODES, sizes)
    assert placed["tp"].crosses.name == "node" and placed["dp"].crosses.name == "cluster"
    turned = T.place(NODES, {"tp": 8, "dp": 4})
    assert turned["dp"].crosses.name == "node" and turned["tp"].leaves("node") == 4
    assert T.axis_of(placed, "tp") is placed["tp"]


@given(st.floats(0, 1e9), st.sampled_from([2, 4, 8]), st.sampled_from(["all_reduce", "reduce_scatter", "all_gather"]))
def test_hierarchical_on_two_levels_is_the_known_closed_form(nbytes: float, inside: int, collective: str) -> None:
    machine = T.dgx_node(4)
    # dp has `inside` of its ranks in a node, and goes over all 4.
    axis = T.place(machine, {"dp": 4 * inside, "tp": 8 // inside})["dp"]
    links = cost.Links(3.4e-6, 1 / 450e9, inside, 14e-6, 1 / 50e9)
    whole = cost.cost_of("all_reduce", "hierarchical").seconds_on(nbytes, 4 * inside, links)
    part = 1 if collective == "all_reduce" else 0.5  # either of the halves that an all-reduce is made of
    assert T.hierarchical_seconds(axis, collective, nbytes) == pytest.approx(part * whole)


def test_flat_algorithms_go_at_the_pace_of_the_slowest_wire() -> None:
    for algorithm in ("ring", "tree"):
        axis = T.place(NODES, {"dp": 32})["dp"]
        links = cost.Links(3.4e-6, 1 / 450e9, 8, 14e-6, 1 / 50e9)
        expected = cost.cost_of("all_reduce", algorithm).seconds_on(100 * MB, 32, links)
        assert T.collective_seconds(axis, "all_reduce", 100 * MB, algorithm) == pytest.approx(expected)
    inside = T.place(NODES, {"dp": 4, "ep": 8})["ep"]
    expected = cost.pairwise_all_to_all_time(100 * MB, 8, 3.4e-6, 1 / 450e9)
    assert T.collective_seconds(inside, "all_to_all", 100 * MB) == pytest.approx(expected)
    assert T.collective_seconds(inside, "send", 450e9) == pytest.approx(1 + 3.4e-6)


def test_oversubscription_slows_a_ring_down_only_as_far_as_all_send() -> None:
    """Of m ranks in a unit one sends out: a level oversubscribed 4 : 1 does nothing to 4 of them."""
    machine = Topology("shared", (Level("node", 8, 100.0, 0.0), Level("pod", 8, 10.0, 0.0, 4.0)))
    for inside, rate in ((1, 2.5), (2, 5.0), (4, 10.0), (8, 10.0)):
        axis = T.place(machine, {"dp": 8 * inside, "tp": 8 // inside})["dp"]
        assert 1 / T.pace(axis)[1] == pytest.approx(rate)
        assert 1 / T.pace(axis, busy=False)[1] == pytest.approx(10)
        assert 1 / T.pace(axis, all_send=True)[1] == pytest.approx(2.5)
        # The hierarchical form sends a part 1/m from every GPU at once, so it pays the share in full.
        ring = cost.ring_all_reduce_time
        expected = ring(1000, inside, 0, 1 / 100) + ring(1000 / inside, 8, 0, 1 / 2.5)
        assert T.hierarchical_seconds(axis, "all_reduce", 1000) == pytest.approx(expected)


@given(machines, sizes_of_meshes, st.floats(0, 1e6))
def test_nothing_is_faster_because_others_send_too(machine: Topology, sizes: dict[str, int], nbytes: float) -> None:
    machine = large_enough(machine, math.prod(sizes.values()))
    for axis in T.place(machine, sizes).values():
        for collective in T.COLLECTIVES:
            busy, alone = (T.collective_seconds(axis, collective, nbytes, busy=b) for b in (True, False))
            assert busy >= alone * (1 - 1e-12) >= 0
            if axis.size > 1 and collective != "send":
                best = T.collective_seconds(axis, collective, nbytes, "best")
                assert best <= busy * (1 + 1e-12)
            if axis.size == 1:
                assert busy == 0


def test_the_axis_that_sends_most_belongs_inside() -> None:
    traffic = {"tp": Traffic("all_reduce", 200 * MB, 400), "dp": Traffic("all_reduce", 1000 * MB)}
    orders = T.rank_orders(NODES, {"dp": 4, "tp": 8}, traffic)
    assert [order.axes for order in orders] == [("dp", "tp"), ("tp", "dp")]
    assert orders[0].seconds < orders[1].seconds
    assert T.cheapest_order(NODES, {"tp": 8, "dp": 4}, traffic) == orders[0]
    fastest = cost.rank_algorithms("all_reduce", 200 * MB, 8, cost.Links(3.4e-6, 1 / 450e9))[0][0]
    assert orders[0].by_axis["tp"] == pytest.approx(400 * fastest)


@given(st.permutations(["dp", "pp", "ep", "tp"]), st.integers(0, 10**9), st.integers(0, 10**9))
def test_the_cheapest_order_is_no_dearer_than_any(names: list[str], first: int, second: int) -> None:
    sizes = {name: size for name, size in zip(names, (2, 2, 4, 2), strict=True)}
    traffic = {"tp": Traffic("all_reduce", first), "ep": Traffic("all_to_all", second), "pp": Traffic("send", first)}
    best = T.cheapest_order(NODES, sizes, traffic)
    for axes in permutations(sizes):
        other = T.order_seconds(NODES, {name: sizes[name] for name in axes}, traffic)
        assert best.seconds <= other.seconds * (1 + 1e-8)
    assert best.by_axis["dp"] == 0  # nothing was said to be sent along it


def test_expert_parallelism_gains_from_a_large_domain() -> None:
    """The article, 3.5.4: all-to-all is helped by a larger scale-up domain, too."""
    times = [
        T.collective_seconds(T.place(T.scale_up(256, domain), {"dp": 4, "ep": 64})["ep"], "all_to_all", 100 * MB)
        for domain in (8, 64)
    ]
    assert times[0] / times[1] > 5


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: T.place(NODES, {"dp": 8, "tp": 8}), "dp 8 x tp 8 = 64 ranks, and 4 x 8-GPU node has 32 GPUs"),
        (lambda: T.place(NODES, {"dp": 0}), "dp must be a whole number of at least 1, not 0"),
        (lambda: T.place(NODES, {}), "sizes must be ranks by axis"),
        (lambda: T.place(NODES, 32), "sizes must be ranks by axis"),
        (lambda: T.axis_of(T.place(NODES, {"dp": 4}), "tp"), "axis must be one of 'dp', not 'tp'"),
        (lambda: T.place(NODES, {"dp": 4})["dp"].leaves("pod"), "level must be one of 'node', 'cluster', not 'pod'"),
        (lambda: Traffic("gossip", 1), "collective must be one of 'all_reduce'"),
        (lambda: Traffic("send", -1), "nbytes must be a number of at least 0"),
        (lambda: T.order_seconds(NODES, {"dp": 4}, {"tp": Traffic("send", 1)}), "axis of traffic must be one of 'dp'"),
        (lambda: T.collective_seconds(T.place(NODES, {"dp": 4})["dp"], "broadcast", 1), "collective must be one of"),
        (lambda: T.collective_seconds(T.place(NODES, {"dp": 4})["dp"], "all_reduce", 1, "magic"), "by 'magic'"),
        (lambda: T.hierarchical_seconds(T.place(NODES, {"dp": 4})["dp"], "all_to_all", 1), "collective must be one of"),
        (
            lambda: T.hierarchical_seconds(T.place(NODES, {"dp": 12})["dp"], "all_reduce", 1),
            "12 ranks, 1 apart. have unequal numbers of ranks in the units of 4 x 8-GPU node",
        ),
    ],
)
def test_what_cannot_be_is_refused(make, words) -> None:
    with pytest.raises(ValueError, match=words):
        make()
