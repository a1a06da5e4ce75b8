"""What failures leave of a cluster: against forming every replica by hand, and laws that no placement breaks."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from labkit import cost
from labkit.cost.simulators.clusters import METHODS

SMALL = cost.Cluster(12, 8, 3, (8, 7, 5), samples=5)
UNEVEN = cost.Cluster(12, 8, 3, (8, 7, 5), samples=5, speeds=(1, 0.75, 0.6))
placements = st.lists(st.one_of(st.just(0), st.integers(0, 8)), min_size=12, max_size=12)
clusters = st.sampled_from([SMALL, UNEVEN])


def by_hand(cluster: cost.Cluster, failed: list[int], method: str, grow: bool = False) -> tuple[int, int, int]:
    """(samples of a step, active GPUs, healthy GPUs in no replica), replica by replica."""
    widths = cluster.widths[:1] if method == "dp-drop" else cluster.widths
    size, full = cluster.domains_per_replica, cluster.gpus_per_domain

    def width(f: int) -> int:
        return max((w for w in widths if w <= full - f), default=0)

    usable = sorted(f for f in failed if width(f))
    most = len(usable) // size if grow else min(cluster.replicas, len(usable) // size)
    inside = usable[: most * size][::-1]  # the worst first
    trained = active = 0
    for replica in range(most):
        domains = inside[replica * size : (replica + 1) * size]
        worst = width(domains[0])
        speed = cluster.pace[cluster.widths.index(worst)]
        if method == "ntp-pw":
            speed *= cluster.boost.speed(cluster.boost.limit)
        trained += min(cluster.samples, math.floor(cluster.samples * speed + 1e-9))
        active += sum(width(f) if method == "ntp-pw" else worst for f in domains)
    outside = list(failed)
    for f in inside:
        outside.remove(f)
    return trained, active, sum(full - f for f in outside)


@given(cluster=clusters, failed=placements, spares=st.lists(st.integers(0, 8), max_size=7), grow=st.booleans())
def test_a_packed_cluster_is_what_forming_each_replica_gives(cluster, failed, spares, grow):
    for method in METHODS:
        use = cluster.use(failed + spares, method, grow=grow)
        assert (use.trained, use.active, use.stranded) == by_hand(cluster, failed + spares, method, grow)


@given(cluster=clusters, failed=placements, spares=st.lists(st.integers(0, 8), max_size=7))
def test_gpus_add_up(cluster, failed, spares):
    for method in METHODS:
        use = cluster.use(failed + spares, method)
        assert use.failed + use.active + use.idle + use.stranded == 8 * (12 + len(spares))
        assert min(use.failed, use.active, use.idle, use.stranded, use.useful) >= 0
        assert use.useful + use.waiting == pytest.approx(use.active + use.boosted)
        assert use.loss == pytest.approx(1 - use.trained / cluster.batch)
        if method != "ntp-pw":
            assert use.boosted == use.boosted_domains == 0 and use.power == use.active


@given(cluster=clusters, failed=placements, order=st.permutations(range(12)), at=st.integers(0, 11))
def test_laws_of_loss(cluster, failed, order, at):
    dropped, narrowed, boosted = (float(cluster.loss(failed, method)) for method in METHODS)
    assert 1 >= dropped >= narrowed >= boosted >= 0
    for method, packed in zip(METHODS, (dropped, narrowed, boosted), strict=True):
        assert packed <= cluster.loss(failed, method, packed=False) + 1e-12
        assert packed == cluster.loss([failed[i] for i in order], method)
        assert packed >= cluster.loss([*failed, 0], method)  # a spare never harms
        worse = [*failed[:at], min(8, failed[at] + 1), *failed[at + 1 :]]
        assert packed <= cluster.loss(worse, method)


@pytest.mark.parametrize("packed", [True, False])
def test_without_failures_nothing_is_lost_and_without_gpus_everything(packed):
    for method in METHODS:
        assert SMALL.loss([0] * 12, method, packed=packed) == 0
        assert SMALL.loss([8] * 12, method, packed=packed) == 1
        assert SMALL.use([0] * 12, method).energy_per_sample() == 1
    assert SMALL.use([8] * 12).energy_per_sample() == math.inf


def test_many_placements_at_once_are_each_alone():
    many = np.random.default_rng(0).integers(0, 9, (4, 5, 12))
    for method, packed in itertools.product(METHODS, (True, False)):
        found = SMALL.loss(many, method, packed=packed)
        assert found.shape == (4, 5)
        assert found[2, 3] == SMALL.loss(many[2, 3], method, packed=packed)


def test_one_failure_by_each_method():
    cluster = cost.Cluster(domains=16, gpus_per_domain=32, domains_per_replica=8)  # two replicas
    failed = [1] + [0] * 15
    dropped, narrowed, boosted = (cluster.use(failed, method) for method in METHODS)
    assert (dropped.loss, dropped.stranded, dropped.idle) == (0.5, 255, 0)
    # Eight domains at 30 of 32 train 7 of 8 samples; the healthy seven lend two GPUs each, the other one.
    assert (narrowed.loss, narrowed.idle, narrowed.stranded) == (1 / 16, 15, 0)
    assert narrowed.waiting == 8 * 30 - 256 * 7 / 8
    # Only the domain that lost a GPU is narrow, and has more power.
    assert (boosted.loss, boosted.idle, boosted.boosted_domains, boosted.boosted) == (0, 1, 1, 2)
    power = cluster.boost.power_for(32 / 30)
    assert boosted.power == pytest.approx(512 - 32 + 30 * power)
    assert boosted.energy_per_sample() == pytest.approx((480 + 30 * power) / 512)
    assert boosted.energy_per_sample(idle_power=0.5) == pytest.approx((480 + 30 * power + 0.5) / 512)
    assert dropped.energy_per_sample(idle_power=0.5) == pytest.approx((256 + 255 / 2) / 256)
    # A spare takes its place.
    assert cluster.loss([*failed, 0], "dp-drop") == 0 and cluster.use([*failed, 0]).stranded == 31


def test_local_batches_are_whole_samples_in_a_whole_replicas_time():
    cluster = cost.Cluster()
    assert cluster.local_batches("dp-drop") == (8, 0, 0)
    assert cluster.local_batches("ntp") == (8, 7, 7)  # 8 * 28 / 32 is 7 exactly
    assert cluster.local_batches("ntp-pw") == (8, 8, 8)
    heads = cost.Cluster(speeds=tuple(cost.narrow_speed(w, 32, cost.WORK_480B) for w in (32, 30, 28)))
    assert heads.local_batches("ntp") == (8, 7, 6)
    assert heads.local_batches("ntp-pw") == (8, 8, 7)  # 1.3 times the power does not make up for 5 heads of 4.57
    assert cost.Cluster(2, 49, 1, (49, 1), samples=49).local_batches("ntp") == (49, 1)  # though 49 * (1 / 49) < 1
    assert cluster.powers("ntp") == (1, 1, 1)
    assert cluster.powers("ntp-pw") == tuple(cluster.boost.power_for(32 / w) for w in (32, 30, 28))
    assert [cluster.width_of(f) for f in (0, 1, 2, 3, 4, 5, 32)] == [32, 30, 30, 28, 28, 0, 0]


def test_narrow_groups_go_at_the_pace_of_their_fullest_rank():
    assert cost.narrow_speed(30, 32) == 30 / 32
    assert cost.narrow_speed(32, 32, cost.WORK_480B) == 1
    assert cost.narrow_speed(30, 32, [(128, 1.0)]) == 4 / 5  # 5 / (128 / 30) of the even share
    assert cost.narrow_speed(16, 32, [(128, 1.0)]) == 1 / 2  # what divides is even
    assert cost.narrow_speed(30, 32, [(128, 0.5), (960, 0.5)]) == pytest.approx(1 / (0.5 * 5 / 4 + 0.5 * 32 / 30))
    assert math.fsum(part for _, part in cost.WORK_480B) == pytest.approx(1)


@given(fraction=st.floats(0, 1), width=st.integers(1, 64))
def test_a_wider_group_is_never_more_available(fraction, width):
    assert cost.group_availability(fraction, width + 1) <= cost.group_availability(fraction, width)
    assert cost.group_availability(fraction, 1) == 1 - fraction


@given(groups=st.integers(1, 6), width=st.integers(1, 5), data=st.data())
def test_availability_is_the_mean_over_all_placements(groups, width, data):
    gpus = groups * width
    failed = data.draw(st.integers(0, min(gpus, 4)))
    whole = [
        sum(not any(g * width <= x < (g + 1) * width for x in chosen) for g in range(groups)) / groups
        for chosen in itertools.combinations(range(gpus), failed)
    ]
    assert cost.group_availability_of(gpus, failed, width) == pytest.approx(sum(whole) / len(whole))


def test_amplification_is_the_width_while_failures_are_few():
    assert cost.amplification(1e-6, 64) == pytest.approx(64, rel=1e-4)
    assert cost.amplification(1e-3, 64) < 64 and cost.amplification(1, 64) == 1


@pytest.mark.parametrize("blast", [1, 2, 4, 8])
def test_placed_failures_are_as_many_as_asked_for_and_take_whole_blasts(blast):
    found = cost.place_failures(5, 64, 8, samples=50, blast=blast)
    assert found.shape == (50, 8) and (found % blast == 0).all() and found.max() <= 8
    if blast == 1:
        assert (found.sum(1) == 5).all()
    else:
        assert (found.sum(1) <= 5 * blast).all() and (found.sum(1) == 5 * blast).any()
    assert (cost.place_failures(64, 64, 8, 2, blast=blast) == 8).all()


def test_placements_by_chance_agree_with_the_closed_form():
    cluster = cost.Cluster(domains=128, gpus_per_domain=32, domains_per_replica=1, widths=(32,))
    found = cost.loss_at(20 / 4096, cluster, "dp-drop", samples=2000)
    assert abs(1 - found.mean - cost.group_availability_of(4096, 20, 32)) < 4 * found.error < 0.001


def test_spares_fail_as_well_and_still_help():
    cluster = cost.Cluster(domains=64, gpus_per_domain=8, domains_per_replica=1, widths=(8,))
    found = cost.loss_at(0.02, cluster, "dp-drop", spares=4, samples=1000)
    # Of 68 domains about 68 (1 - availability) are hit; four of them are replaced.
    hit = 68 * (1 - cost.group_availability_of(544, round(0.02 * 544), 8))
    assert found.mean == pytest.approx((hit - 4) / 64, abs=4 * found.error)
    assert found.mean < cost.loss_at(0.02, cluster, "dp-drop", samples=1000).mean - 0.04


def test_a_boost_goes_through_its_points_and_back():
    boost = cost.PowerBoost()
    assert [boost.loss(p) for p in (1, 1.1, 1.2)] == pytest.approx([0, 0.028, 0.065])
    for speed in (1.0, 1.03, 1.122, boost.speed(1.3)):
        assert boost.speed(boost.power_for(speed)) == pytest.approx(speed)
    assert boost.power_for(0.5) == 1
    straight = cost.PowerBoost(points=((1.0, 0.0), (1.2, 0.1)))
    assert straight.loss(1.1) == pytest.approx(0.05) and straight.speed(1.1) == pytest.approx(1.1 * 0.95)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: cost.Cluster(domains=1000, domains_per_replica=16), "domains_per_replica must divide domains=1000"),
        (lambda: cost.Cluster(widths=(32, 0)), r"widths\[1\] .*0"),
        (lambda: cost.Cluster(widths=(30, 28)), r"widths must fall from gpus_per_domain=32.*\(32,\) allows"),
        (lambda: cost.Cluster(widths=(32, 28, 30)), "widths must fall"),
        (lambda: cost.Cluster(speeds=(1, 0.9)), "speeds must be one for each of widths"),
        (lambda: cost.Cluster(speeds=(1, 0.95, 0.8)), "at most width / full"),
        (lambda: cost.Cluster(speeds=(0.9, 0.9, 0.8)), "speeds must begin with 1"),
        (lambda: SMALL.loss([9] + [0] * 11), "9 failures are more than the 8 GPUs of a domain"),
        (lambda: SMALL.width_of(9), "9 failures are more than the 8 GPUs"),
        (lambda: SMALL.loss([-1] + [0] * 11), "whole numbers from 0 on"),
        (lambda: SMALL.loss([0.5] + [0] * 11), "whole numbers from 0 on"),
        (lambda: SMALL.loss([0] * 12, "drop"), "'dp-drop', 'ntp', 'ntp-pw', not 'drop'"),
        (lambda: SMALL.loss([0] * 13, packed=False), "domains=12, not 13: only the resource manager can use spares"),
        (lambda: cost.narrow_speed(0, 8), "not 0: a group without a GPU is lost whole; drop its replica"),
        (lambda: cost.narrow_speed(9, 8), "width must be from 1 to full=8, not 9"),
        (lambda: cost.narrow_speed(7, 8, [(7, 1.0)]), "7 shards are fewer than 8 ranks"),
        (lambda: cost.narrow_speed(7, 8, [(8, 0.5)]), "parts of the work must sum to 1, not 0.5"),
        (lambda: cost.PowerBoost().power_for(1.2), "speed=1.2 is more than 1.156"),
        (lambda: cost.PowerBoost().speed(1.4), "power must be from 1 to 1.3, not 1.4"),
        (lambda: cost.PowerBoost(points=((1.1, 0.0),)), r"points must begin with \(1.0, 0.0\)"),
        (lambda: cost.PowerBoost(limit=3), "lower the limit"),
        (lambda: cost.PowerBoost().domain_power(9, 8), "width=9 must be at most full=8"),
        (lambda: cost.place_failures(65, 64, 8), "from 0 to gpus=64, not 65"),
        (lambda: cost.place_failures(-1, 64, 8), "failures .*-1"),
        (lambda: cost.place_failures(1, 60, 8), "gpus_per_domain must divide gpus=60, and 8 does not; 6 and 10 do"),
        (lambda: cost.place_failures(1, 64, 8, blast=3), "blast must divide gpus_per_domain=8.* 2 and 4"),
        (lambda: cost.loss_at(1.5, SMALL), "fraction .*1.5"),
        (lambda: cost.loss_at(0.1, SMALL, spares=-1), "spares .*-1"),
        (lambda: cost.group_availability_of(64, 65, 8), "failed .*gpus=64, not 65"),
        (lambda: cost.group_availability_of(64, 1, 24), "width must divide gpus=64.* 16 and 32"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_name_and_value(call, named):
    with pytest.raises(ValueError, match=named):
        call()


@given(failed=placements)
def test_only_the_full_width_is_dropping(failed):
    narrow = cost.Cluster(12, 8, 3, (8,), samples=5)
    assert narrow.loss(failed, "ntp") == SMALL.loss(failed, "dp-drop")
