"""Fleets that fail, drawn many at once: every closed form that there is comes out as a special case."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, strategies as st

from labkit import cost


@given(
    every=st.floats(1, 50), recovery=st.floats(0, 1), stall=st.floats(0, 1), rejoin=st.floats(0, 0.5),
    replicas=st.integers(1, 20),
)  # fmt: skip
def test_by_the_clock_it_is_the_closed_form(every, recovery, stall, rejoin, replicas):
    recovery *= every / 2
    stall, rejoin = (recovery, 0.0) if replicas == 1 else (stall * recovery, rejoin * every)
    drawn = cost.simulate_fleet(
        every, recovery, stall, replicas, rejoin, spacing="clock", time=40 * every, samples=2, seed=1
    )
    closed = cost.fault_tolerant_effective_time(every, recovery, stall, replicas, rejoin, rejoin_within_recovery=False)
    assert drawn.effective.mean == pytest.approx(closed, abs=1e-9) and drawn.failures == 40


@pytest.mark.parametrize(
    ("every", "recovery", "stall", "replicas", "rejoin"),
    [(18, 10, 3, 12, 0), (18, 10, 3, 12, 100 / 60), (18, 10, 10, 1, 0), (5, 20, 0.5, 4, 2), (5, 20, 0, 3, 0)],
)
def test_at_random_it_is_the_closed_form(every, recovery, stall, replicas, rejoin):
    drawn = cost.simulate_fleet(every, recovery, stall, replicas, rejoin, time=1000 * every, samples=60, seed=2)
    exact = cost.random_fault_tolerant_effective_time(every, recovery, stall, replicas, rejoin)
    assert abs(drawn.effective.mean - exact) < 3.5 * drawn.effective.error + 1 / 1000  # it begins with all there
    assert drawn.effective.error < 0.004
    assert drawn.failures == pytest.approx(1000, rel=0.02)


def test_it_agrees_with_the_simulator_of_one_run_at_a_time():
    fast = cost.simulate_fleet(18, 10, 3, 12, 2, time=3000, samples=40, seed=1)
    slow = cost.simulate_replicas(18, 10, 3, 12, 2, time=3000, runs=20, seed=1)
    assert abs(fast.effective.mean - slow.effective) < 4 * math.hypot(fast.effective.error, slow.error)
    assert fast.parts["stalled"] == pytest.approx(slow.stalled, abs=0.01)


@pytest.mark.parametrize(
    ("interval", "write", "mtbf", "restart"), [(10, 1, 30, 2), (6, 1.5, 18, 10), (50, 2, 20, 0), (1, 0, 5, 0.5)]
)
def test_one_replica_is_checkpoint_and_restart(interval, write, mtbf, restart):
    drawn = cost.simulate_fleet(
        mtbf, restart, restart, interval=interval, write=write, time=500 * mtbf, samples=80, seed=3
    )
    exact = cost.checkpoint_tax(interval, write, mtbf, restart).goodput
    assert abs(drawn.effective.mean - exact) < 4 * drawn.effective.error + 1 / 500
    assert drawn.losses == drawn.failures


def test_the_best_interval_of_one_replica_is_youngs_and_dalys():
    mtbf, write = 200.0, 1.0
    best = cost.best_interval(write, mtbf)
    at = {
        factor: cost.simulate_fleet(
            mtbf, 5, 5, interval=factor * best, write=write, time=100 * mtbf, samples=200, seed=4
        ).effective.mean
        for factor in (0.3, 1, 3)
    }
    assert at[1] > max(at[0.3], at[3]) + 0.01
    assert cost.young_interval(write, mtbf) == pytest.approx(best, rel=0.05)


@given(
    recovery=st.floats(0, 40), stall=st.floats(0, 5), rejoin=st.floats(0, 5), replicas=st.integers(1, 5),
    interval=st.one_of(st.none(), st.floats(1, 30)), spacing=st.sampled_from(["random", "clock"]),
)  # fmt: skip
def test_time_adds_up(recovery, stall, rejoin, replicas, interval, spacing):
    drawn = cost.simulate_fleet(
        10, recovery, stall, replicas, rejoin, interval=interval, write=0.5 if interval else 0, spacing=spacing,
        time=200, samples=3,
    )  # fmt: skip
    assert math.fsum(drawn.parts.values()) == pytest.approx(1)
    assert min(drawn.parts.values()) >= -1e-12
    assert drawn.parts["useful"] == pytest.approx(drawn.effective.mean)
    assert drawn.losses <= drawn.failures
    if interval is None:
        assert drawn.parts["repeated"] == drawn.parts["writing"] == 0


def test_only_the_loss_of_all_replicas_sends_the_fleet_back():
    many = cost.simulate_fleet(18, 10, 3, 12, interval=30, time=5000, samples=10)
    assert many.losses == 0 and many.parts["repeated"] == 0
    two = cost.simulate_fleet(18, 10, 3, 2, interval=30, time=5000, samples=10)
    assert 0 < two.losses < two.failures / 2 and two.parts["repeated"] > 0.05
    # The same failures with nothing to lose: what is repeated is all the difference.
    kept = cost.simulate_fleet(18, 10, 3, 2, time=5000, samples=10)
    assert two.effective.mean < kept.effective.mean
    assert two.effective.mean + two.parts["repeated"] == pytest.approx(kept.effective.mean, abs=0.02)


def test_an_interval_is_time_of_training_however_many_replicas_train():
    # Nine intervals of 10, each with a write of 1, and the begin of a tenth; for half of the time one replica is away.
    drawn = cost.simulate_fleet(100, 50, 0, 2, interval=10, write=1, spacing="clock", time=100, samples=2)
    assert drawn.parts["writing"] == pytest.approx(0.09)
    assert drawn.parts["missing"] == pytest.approx((50 - 4) / 2 / 100)


def test_without_failures_all_is_useful_but_for_the_writing():
    assert cost.simulate_fleet(1e12, 10, 3, 4, time=10, samples=2).effective.mean == 1
    written = cost.simulate_fleet(1e12, 10, 10, interval=9, write=1, time=1000, samples=2)
    assert written.effective.mean == pytest.approx(0.9) and written.parts["writing"] == pytest.approx(0.1)


def test_drawing_is_seeded():
    one, again, other = (cost.simulate_fleet(18, 10, 3, 4, time=1000, samples=3, seed=s) for s in (1, 1, 2))
    assert one == again != other


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: cost.simulate_fleet(0, 1), "every .*0"),
        (lambda: cost.simulate_fleet(-18, 1), "every .*-18"),
        (lambda: cost.simulate_fleet(18, -1), "recovery .*-1"),
        (lambda: cost.simulate_fleet(18, 10, -3), "stall .*-3"),
        (lambda: cost.simulate_fleet(18, 10, 3, 0), "replicas .*0"),
        (lambda: cost.simulate_fleet(18, 10, interval=0), "interval .*0"),
        (lambda: cost.simulate_fleet(18, 10, write=1), "write=1 needs an interval"),
        (lambda: cost.simulate_fleet(18, 10, spacing="even"), "'random', 'clock', not 'even'"),
        (lambda: cost.simulate_fleet(18, 10, samples=1), "at least 2 samples, not 1"),
    ],
)
def test_what_cannot_be_is_refused_by_name_and_value(call, named):
    with pytest.raises(ValueError, match=named):
        call()


def test_failures_may_be_given():
    """Two samples with failures of their own. The first by hand: 3 of stall, then 7 with one of four away, twice."""
    apart = [(10.0, 0), (40.0, 3)]
    nested = [(10.0, 0), (15.0, 0)]  # the recovery begins anew: away until 25, and stalled for 3 twice
    found = cost.simulate_fleet(1.0, 10, 3, 4, time=100, strikes=[apart, nested])
    first, second = 100 - 2 * (3 + 7 / 4), 100 - (2 * 3 + 9 / 4)
    assert found.effective.highest == pytest.approx(second / 100) and found.effective.lowest == pytest.approx(
        first / 100
    )
    assert found.failures == 2
    alone = cost.simulate_fleet(1.0, 10, 10, time=100, strikes=[[(10, 0), (15, 0)]] * 2)
    assert alone.effective.mean == pytest.approx(0.85)  # 10 to 25
    other = cost.simulate_fleet(1.0, 10, 3, 4, time=100, strikes=[[(10.0, 0), (15.0, 1)]] * 2)  # two are away at once
    assert other.effective.mean == pytest.approx((100 - (3 + 2 / 4 + 3 + 2 * 2 / 4 + 5 / 4)) / 100)
    none = cost.simulate_fleet(1.0, 10, 3, 4, time=100, strikes=[[], []])
    assert none.effective.mean == 1 and none.failures == 0


@pytest.mark.parametrize(
    ("strikes", "words"),
    [([[(5, 0), (3, 0)]] * 2, "rising order"), ([[(-1, 0)]] * 2, "rising order"), ([[(1, 4)]] * 2, "no replica 4")],
)
def test_failures_that_cannot_be_are_refused(strikes, words):
    with pytest.raises(ValueError, match=words):
        cost.simulate_fleet(18, 10, 3, 4, time=100, strikes=strikes)
