"""The time that trains when all stop, and when one replica does: closed forms, and the same by drawing failures."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, strategies as st

from labkit import cost

parts = st.floats(0, 1)


@given(every=st.floats(0.1, 1e4), recovery=parts, stall=parts, replicas=st.integers(1, 50))
def test_by_the_clock(every, recovery, stall, replicas):
    recovery = recovery * every
    stall = stall * recovery
    found = cost.fault_tolerant_effective_time(every, recovery, stall, replicas)
    synchronous = cost.synchronous_effective_time(every, recovery)
    assert synchronous - 1e-12 <= found <= 1 - stall / every + 1e-12
    # One replica alone has nobody to go on, and a stall as long as the recovery stops everyone.
    assert cost.fault_tolerant_effective_time(every, recovery, stall, 1) == pytest.approx(synchronous)
    assert cost.fault_tolerant_effective_time(every, recovery, recovery, replicas) == pytest.approx(synchronous)


def test_a_rejoin_costs_more_when_all_are_there_for_it():
    inside = cost.fault_tolerant_effective_time(18, 10, 3, 12, 1)
    outside = cost.fault_tolerant_effective_time(18, 10, 3, 12, 1, rejoin_within_recovery=False)
    without = cost.fault_tolerant_effective_time(18, 10, 3, 12)
    assert without - inside == pytest.approx(11 / 12 / 18)
    assert without - outside == pytest.approx(1 / 18)


def test_at_random_a_fleet_that_stops_keeps_more_than_by_the_clock():
    for every, recovery in ((18, 10), (100, 1), (5, 5)):
        assert cost.random_synchronous_effective_time(every, recovery) > cost.synchronous_effective_time(
            every, recovery
        )
    # One replica that stalls as long as it recovers is a fleet that stops.
    same = cost.random_fault_tolerant_effective_time(18, 10, 10, 1)
    assert same == pytest.approx(cost.random_synchronous_effective_time(18, 10))


@pytest.mark.parametrize(
    ("every", "recovery", "stall", "replicas", "rejoin"),
    [(18, 10, 3, 12, 0), (18, 10, 3, 12, 100 / 60), (18, 10, 10, 1, 0), (5, 20, 0.5, 4, 2), (5, 20, 0, 3, 0)],
)
def test_drawn_failures_agree_with_the_exact_form(every, recovery, stall, replicas, rejoin):
    drawn = cost.simulate_replicas(every, recovery, stall, replicas, rejoin, time=4000 * every, seed=2)
    exact = cost.random_fault_tolerant_effective_time(every, recovery, stall, replicas, rejoin)
    assert abs(drawn.effective - exact) < 3.5 * drawn.error + 1 / 4000  # a run begins with all replicas there
    assert drawn.error < 0.006
    assert drawn.failures == pytest.approx(4000, rel=0.02)
    assert sum(drawn.by_missing) == pytest.approx(1)


def test_drawn_stalls_and_missing_replicas():
    drawn = cost.simulate_replicas(18, 10, 3, 12, time=18 * 5000, seed=5)
    assert drawn.stalled == pytest.approx(1 - math.exp(-3 / 18), abs=0.01)
    assert drawn.by_missing[0] == pytest.approx(math.exp(-10 / 18), abs=0.01)  # none in the last ten minutes
    assert drawn.effective < 1 - drawn.stalled
    # Two at once is no rare case: the paper's sum has none of it.
    assert sum(drawn.by_missing[2:]) > 0.08


def test_a_failure_of_what_recovers_begins_its_recovery_again():
    # One replica, recovery far longer than the time between failures: it is hardly ever there.
    drawn = cost.simulate_replicas(1, 5, 0, 1, time=20_000, runs=5, seed=0)
    assert drawn.effective == pytest.approx(math.exp(-5), rel=0.25)


def test_drawing_is_seeded():
    one, again, other = (cost.simulate_replicas(18, 10, 3, 4, time=1000, runs=3, seed=s) for s in (1, 1, 2))
    assert one == again != other


def test_a_run_without_failures_is_whole():
    quiet = cost.simulate_replicas(1e12, 10, 3, 4, time=10, runs=2)
    assert quiet.effective == 1 and quiet.error == 0 and quiet.by_missing[0] == 1


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: cost.synchronous_effective_time(18, 20), "recovery=20 .*every=18"),
        (lambda: cost.synchronous_effective_time(0, 0), "every .*0"),
        (lambda: cost.fault_tolerant_effective_time(18, 10, 11, 12), "stall=11 .*recovery=10"),
        (lambda: cost.fault_tolerant_effective_time(18, 10, 3, 12, 8), "rejoin=8"),
        (lambda: cost.fault_tolerant_effective_time(18, 10, 3, 12, 9, False), "rejoin=9"),
        (lambda: cost.fault_tolerant_effective_time(18, 10, 3, 0), "replicas .*0"),
        (lambda: cost.random_synchronous_effective_time(18, -1), "recovery .*-1"),
        (lambda: cost.random_fault_tolerant_effective_time(18, 1, 3, 12), "stall=3 .*recovery=1"),
        (lambda: cost.simulate_replicas(18, 10, 3, 12, runs=1), "runs must be at least 2"),
        (lambda: cost.simulate_replicas(18, 10, 3, 12, time=0), "time .*0"),
        (lambda: cost.simulate_replicas(18, 10, 3, True), "replicas .*True"),
    ],
)
def test_what_cannot_be_is_refused_by_name_and_value(call, named):
    with pytest.raises(ValueError, match=named):
        call()
