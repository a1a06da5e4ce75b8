"""Machines as levels: what two GPUs share, what passes when all send, and what is refused."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, strategies as st

from labkit.cost import topology as T
from labkit.cost.topology import Level, Topology

MACHINES = {
    "node": T.dgx_node(), "nodes": T.dgx_node(4), "nvl72": T.nvl72(3), "cloudmatrix": T.cloudmatrix384(2),
    "hpn first": T.hpn_first(), "hpn paper": T.hpn_paper(), "one pod": T.hpn_paper(1), "buildings": T.clos_buildings(),
    "small zones": T.clos_buildings(zone_gpus=3072), "scale up": T.scale_up(32_000, 32),
}  # fmt: skip
every_machine = pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES.keys())


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    """Any machine whose levels get slower outwards, of at most some hundreds of GPUs."""
    holds = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    bandwidth, latency, levels = 1024.0, 0.0, []
    over = 1.0
    for i, parts in enumerate(holds):
        bandwidth /= draw(st.sampled_from([1, 2, 4]))
        over *= draw(st.sampled_from([1, 2, 4]))
        latency += draw(st.sampled_from([0.0, 0.5, 1.0]))
        levels.append(Level(f"level {i}", parts, bandwidth, latency, over))
    return Topology("drawn", tuple(levels))


def crossing_by_search(machine: Topology, ranks: list[int]) -> str:
    """Cut the list of GPUs into units, level by level, until one unit has all of `ranks`."""
    gpus = list(range(machine.gpus))
    size = 1
    for level in machine.levels:
        size *= level.holds
        units = [set(gpus[i : i + size]) for i in range(0, len(gpus), size)]
        if any(set(ranks) <= unit for unit in units):
            return level.name
    raise AssertionError("the whole machine is one unit")


@given(topologies(), st.data())
def test_ranks_cross_the_innermost_level_that_has_them_all(machine: Topology, data: st.DataObject) -> None:
    if machine.gpus == 1:
        return
    ranks = data.draw(st.lists(st.integers(0, machine.gpus - 1), min_size=2, max_size=5, unique=True))
    assert machine.crossing(ranks).name == crossing_by_search(machine, ranks)


@given(topologies(), st.data())
def test_no_pair_is_nearer_than_a_pair_inside_its_unit(machine: Topology, data: st.DataObject) -> None:
    """Latency between GPUs is an ultrametric: of three GPUs the two largest latencies are equal."""
    if machine.gpus < 3:
        return
    a, b, c = data.draw(st.lists(st.integers(0, machine.gpus - 1), min_size=3, max_size=3, unique=True))
    three = sorted([machine.latency(a, b), machine.latency(b, c), machine.latency(a, c)])
    assert three[1] == three[2]
    assert machine.latency(a, b) == machine.latency(b, a) and machine.bandwidth(a, b) == machine.bandwidth(b, a)
    assert machine.bandwidth(a, b, busy=True) <= machine.bandwidth(a, b)


@every_machine
def test_units_fill_the_machine_at_every_level(machine: Topology) -> None:
    for level in machine.levels:
        assert machine.units(level.name) * machine.capacity(level.name) == machine.gpus
        assert machine.unit_of(machine.gpus - 1, level.name) == machine.units(level.name) - 1
        assert machine.unit_of(0, level.name) == 0
    assert machine.capacities[-1] == machine.gpus == math.prod(level.holds for level in machine.levels)


@every_machine
def test_every_number_has_a_source_or_is_said_to_be_assumed(machine: Topology) -> None:
    for row in machine.rows():
        assert row["source"], row
        assert "latency" in str(row["assumed"]) or "seconds" in str(row["assumed"]) or "hop" in str(row["assumed"])


@every_machine
def test_the_table_has_the_outermost_level_first(machine: Topology) -> None:
    rows = machine.rows()
    assert [row["level"] for row in rows] == [level.name for level in reversed(machine.levels)]
    assert rows[0]["units"] == 1 and rows[0]["GPUs"] == machine.gpus
    assert all(row["all at once"] == row["alone"] / row["oversubscription"] for row in rows)
    assert rows[-1]["tier"] == 1


def test_bisection_is_half_of_the_gpus_with_their_share() -> None:
    two = Topology("two", (Level("node", 4, 100.0, 0.0), Level("pod", 6, 20.0, 1.0, 2.0)))
    assert two.bisection("node") == 2 * 100 and two.bisection() == 3 * 4 * 10 == two.bisection("pod")
    odd = Topology("odd", (Level("node", 5, 100.0, 0.0),))
    assert odd.bisection() == 2 * 100  # the smaller half cannot send more
    assert Topology("one", (Level("node", 1, 100.0, 0.0),)).bisection() == 0


def test_a_message_takes_the_time_of_the_wire_it_needs() -> None:
    machine = T.dgx_node(2)
    assert machine.message_seconds(0, 7, 450e9) == pytest.approx(1 + 3.4e-6)
    assert machine.message_seconds(7, 8, 50e9) == pytest.approx(1 + 14e-6)
    shared = T.clos_buildings()
    far = shared.gpus - 1
    assert shared.message_seconds(0, far, 50e9, busy=True) == pytest.approx(2.8 + 30 * 14e-6)
    assert shared.message_seconds(0, far, 50e9) == pytest.approx(1 + 30 * 14e-6)
    assert shared.bandwidth(0, far, busy=True) == pytest.approx(50e9 / 2.8) and shared.bandwidth(0, far) == 50e9
    assert shared.wire("campus", busy=True).half_size == pytest.approx(30 * 14e-6 * 50e9 / 2.8)


def test_tiers_are_relative_to_any_level() -> None:
    machine = T.clos_buildings()
    assert machine.tiers("rack")["campus"] == pytest.approx(30)
    assert machine.tiers()["rack"] == pytest.approx(14 / 3.4)
    assert machine.tier(0, machine.gpus - 1, "zone") == pytest.approx(30 / 7)


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: Level("node", 0, 1.0, 0.0), "holds must be a whole number of at least 1, not 0"),
        (lambda: Level("node", 8, 0.0, 0.0), "bandwidth must be a number above 0"),
        (lambda: Level("node", 8, 1.0, -1.0), "latency must be a number of at least 0"),
        (lambda: Level("node", 8, 1.0, 0.0, 0.5), "oversubscription of a node must be at least 1"),
        (lambda: Topology("none", ()), "none needs a level or more"),
        (lambda: Topology("same", (Level("a", 2, 1.0, 0.0), Level("a", 2, 1.0, 0.0))), "two levels called 'a'"),
        (lambda: Topology("odd", (Level("a", 2, 1.0, 1.0), Level("b", 2, 1.0, 0.5))), "'b' is faster than 'a'"),
        (lambda: Topology("odd", (Level("a", 2, 1.0, 0.0), Level("b", 2, 2.0, 0.0))), "'b' is faster than 'a'"),
        (lambda: Topology("odd", (Level("a", 2, 4.0, 0.0, 4.0), Level("b", 2, 4.0, 0.0, 2.0))), "is faster than"),
        (lambda: T.nvl72().crossing([3]), "two different ranks or more"),
        (lambda: T.nvl72().crossing([3, 3]), "two different ranks or more"),
        (lambda: T.nvl72().crossing([0, 72]), "0 to 71, not 72"),
        (lambda: T.nvl72().unit_of(-1, "rack"), "0 to 71, not -1"),
        (lambda: T.nvl72().level("pod"), "level must be one of 'rack', not 'pod'"),
        (lambda: T.nvl72().bisection("pod"), "level must be one of 'rack', not 'pod'"),
        (lambda: T.nvl72(0), "racks must be a whole number of at least 1, not 0"),
        (lambda: T.scale_up(32_000, 72), "domain must divide gpus=32000, and 72 does not; 64 and 80 do"),
        (lambda: T.scale_up(8, 16), "domain must be at most the 8 GPUs"),
        (lambda: T.hpn_paper(0), "pods must be a whole number"),
        (lambda: T.hpn_paper(ports=T.HpnPorts(up=128)), "up must leave some of the 128 ports"),
        (lambda: T.HpnPorts(tors=15), "tors must be one for each plane and GPU of a node, 16, not 15"),
        (lambda: T.HpnPorts(spare_nodes=136), "fewer than the 136 nodes"),
        (lambda: T.HpnPorts(aggregation_down=121), "must divide aggregation_down=121"),
        (lambda: T.clos_buildings(zone_gpus=5000), "must divide"),
        (lambda: T.clos_buildings(zone_gpus=30_000), "zone_gpus must be at most building_gpus=24576"),
        (lambda: T.clos_buildings(rack_gpus=0), "rack_gpus must be a whole number"),
        (lambda: T.clos_buildings(oversubscription=0.5), "must be at least 1"),
        (lambda: T.NodeParts(cpus=0), "cpus must be a whole number"),
    ],
)
def test_what_cannot_be_is_refused(make, words) -> None:
    with pytest.raises(ValueError, match=words):
        make()
