"""What the programs of chapter 21 are compared with agrees with what is computed in another way."""

from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, permutations, product

import pytest

from labkit import cost
from labkit.chapters.c21_hundred_thousand_gpus import axes, packing, runs, shares
from labkit.cost import topology


@dataclass
class Door:
    """All that a drawing asks a student for."""

    seed: int


def placements(cluster, domains, left):
    """All placements of at most `left` replicas of these domains: each is made once."""
    yield []
    if left:
        for replica in combinations(domains, cluster["size"]):
            if len({cluster["zone"][d] for d in replica}) == 1:
                rest = [d for d in domains if d > replica[0] and d not in replica]
                yield from ([list(replica), *more] for more in placements(cluster, rest, left - 1))


@pytest.mark.parametrize("seed", range(8))
def test_no_placement_of_a_small_cluster_is_better_than_what_is_counted(seed):
    for cluster in packing.some_clusters(Door(seed), 1, 4, 8, 2, seed % 3, 0.5)[0]:
        found = [packing.trained_by(cluster, p) for p in placements(cluster, list(range(8)), cluster["replicas"])]
        best = packing.most_trained(cluster)
        assert best in found  # one placement reaches both
        assert best == (max(whole for whole, _ in found), max(samples for _, samples in found))


def test_drawn_clusters_need_the_worst_left_out_and_the_best_zone_first():
    clusters = [
        c for seed in range(5) for many in packing.some_clusters(Door(seed), 3, 6, 30, 3, 6, 0.35) for c in many
    ]
    hurt = [(c["replicas"] - packing.most_trained(c)[0]) / c["replicas"] for c in clusters]
    assert sum(0 < part < 1 for part in hurt) > len(clusters) / 3


@pytest.mark.parametrize("kind", [k for k in runs.KINDS if k not in ("at the return", "in a recovery")])
def test_second_by_second_is_what_the_simulator_says_of_equal_repairs(kind):
    for fleet in runs.some_fleets(Door(3), 1, 6, (kind,))[0]:
        same = {**fleet, "failures": [[t, gpu, 150] for t, gpu, _ in fleet["failures"]]}
        failures = sorted((float(t), gpu // fleet["gpus"]) for t, gpu, _ in same["failures"])
        touch = {(t + 150, r) for t, r in failures} & set(failures)
        if touch:
            continue
        said = cost.simulate_fleet(
            100, 150, fleet["stall"], fleet["replicas"], fleet["rejoin"], time=fleet["length"], strikes=[failures] * 2
        )
        total = fleet["replicas"] * fleet["gpus"] * fleet["length"]
        assert runs.counted(same)["trained"] / total == pytest.approx(said.effective.mean, abs=1e-12)


def test_parts_of_a_fleet_add_up_and_each_slip_shows_in_some_kind():
    shown = set()
    for seed in range(4):
        for fleet in runs.some_fleets(Door(seed), 1, 2, runs.KINDS)[0]:
            right = runs.counted(fleet)
            assert sum(right.values()) == fleet["replicas"] * fleet["gpus"] * fleet["length"]
            assert min(right.values()) >= 0
            shown |= {name for name in runs.WRONG if runs.counted(fleet, name) != right}
    assert shown == set(runs.WRONG)


def test_a_fleet_without_failures_only_trains_and_one_that_is_always_away_never_does():
    fleet = {"replicas": 2, "gpus": 4, "length": 100, "stall": 10, "rejoin": 10, "failures": []}
    assert runs.counted(fleet) == {"trained": 800, "stalled": 0, "away": 0}
    fleet["failures"] = [[0, 0, 100], [0, 7, 999]]
    assert runs.counted(fleet) == {"trained": 0, "stalled": 0, "away": 800}
    fleet["failures"] = [[100, 0, 50]]
    assert runs.counted(fleet) == {"trained": 800, "stalled": 0, "away": 0}


def test_the_example_of_the_statement_is_right():
    fleet = {"replicas": 2, "gpus": 4, "length": 100, "stall": 10, "rejoin": 5, "failures": [[20, 1, 30]]}
    assert runs.counted(fleet) == {"trained": 600, "stalled": 80, "away": 120}


@pytest.mark.parametrize("tight", [False, True])
def test_the_shortest_step_is_the_shortest_of_all_cuts(tight):
    for seed in range(6):
        for attempt in shares.some_attempts(Door(seed), 3, 1, 12, tight):
            told = list(attempt["told"].values())
            cuts = product(*(range(min(x["most"], attempt["batch"]) + 1) for x in told))
            times = [
                max(Fraction(share, x["width"] * x["speed"]) for share, x in zip(cut, told, strict=True))
                for cut in cuts
                if sum(cut) == attempt["batch"]
            ]
            assert shares.shortest(attempt) == min(times, default=None)


def test_of_three_replicas_the_first_is_lost_and_comes_back():
    for seed in range(5):
        plan = shares.some_attempts(Door(seed), 3, 1, 60, True)
        assert [a["dies"] for a in plan if a["dies"] is not None] == [0]
        assert 0 in plan[-1]["members"] and any(0 not in a["members"] for a in plan)
        assert [shares.shortest(a) is None for a in plan] == [k == 1 for k in range(len(plan))]
        room = [sum(x["most"] for x in a["told"].values()) - a["batch"] for a in plan]
        assert room[1] == -1 and room[-1] == 0 and min(x["most"] for a in plan for x in a["told"].values()) > 0
        assert [len(x["lives"]) for x in shares.lives_of(plan, 3)] == [2, 1, 1]


@pytest.mark.parametrize("odd", [False, True])
def test_every_order_costs_what_the_topology_of_the_library_says(odd):
    for machine in axes.some_machines(Door(1), 1, 4, odd)[0]:
        levels = [topology.Level(x["name"], x["holds"], x["bandwidth"], x["latency"]) for x in machine["levels"]]
        known = topology.Topology("machine", tuple(levels))
        flows = {
            name: topology.Traffic(x["collective"], x["bytes"], x["calls"], None)
            for name, x in machine["traffic"].items()
        }
        for order in permutations(machine["axes"]):
            said = topology.order_seconds(known, {name: machine["axes"][name] for name in order}, flows)
            assert axes.order_seconds(machine, order) == pytest.approx(said.seconds, rel=1e-9)


def test_drawn_machines_expose_all_wrong_ways_and_the_last_may_have_no_order():
    for seed in range(3):
        shown = [
            axes.exposed(m) for odd in (False, True) for ms in axes.some_machines(Door(seed), 3, 3, odd) for m in ms
        ]
        assert set().union(*shown) == {*axes.WRONG, "most bytes inside", "anywhere"}
        last = axes.some_machines(Door(seed), 1, 4, True, none=True)[0]
        assert axes.least(last[-1]) is None and axes.least(last[0]) is not None
