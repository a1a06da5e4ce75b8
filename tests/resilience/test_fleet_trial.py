"""A small fleet that fails by the clock on the wall: its times are read rightly, and real runs come out of it whole."""

from __future__ import annotations

import pytest

from labkit.resilience.fleet_trial import (
    POLICIES,
    Trained,
    Trial,
    draw_strikes,
    far_apart,
    predict,
    run_trials,
    times_of,
)


def commits(usual, until, gaps=()):
    """Steps of `usual` s of replicas 0 to 3; a gap is (from step, extra seconds, replicas meanwhile, steps)."""
    now, found, step = 0.0, [(0.0, (0, 1, 2, 3))], 0
    while now < until:
        step += 1
        extra, who = 0.0, (0, 1, 2, 3)
        for first, more, others, steps in gaps:
            extra += more if step == first else 0
            who = others if first <= step < first + steps else who
        now += usual + extra
        found.append((round(now, 6), who))
    return found


def test_times_are_read_from_a_run_with_failures_far_apart():
    """Replica 1 fails at 1.0 s, all stand still for .3 s, it is back after ten steps, for which they wait .1 s."""
    trial = Trial(step=0.1, time=4.0)
    made = commits(0.1, 4.0, [(11, 0.3, (0, 2, 3), 10), (21, 0.1, (0, 1, 2, 3), 1)])
    times = times_of(Trained(trial, [(1.01, 1)], made))
    assert times.usual == pytest.approx(0.1) and times.stall == pytest.approx(0.3, abs=1e-6)
    assert times.recovery == pytest.approx(2.4 - 1.01, abs=1e-6) and times.rejoin == pytest.approx(0.1, abs=1e-6)


def test_who_does_not_come_back_is_named():
    made = commits(0.1, 4.0, [(11, 0.3, (0, 2, 3), 100)])
    with pytest.raises(ValueError, match="replica 1"):
        times_of(Trained(Trial(time=4.0), [(1.01, 1)], made))


def test_effective_counts_replicas_and_steps():
    """Half of 4 s with three of four, no standstill: 7/8, but for the step at the end."""
    run = Trained(Trial(step=0.1, time=4.0), [], commits(0.1, 4.0, [(1, 0.0, (0, 2, 3), 20)]))
    assert run.effective == pytest.approx(7 / 8, abs=0.01)


def test_failures_are_those_of_the_rate_and_the_seed():
    trial = Trial(time=2000.0)
    strikes = draw_strikes(trial, 2.0, seed=3)
    assert strikes == draw_strikes(trial, 2.0, seed=3) != draw_strikes(trial, 2.0, seed=4)
    assert 900 < len(strikes) < 1100 and {replica for _, replica in strikes} == {0, 1, 2, 3}
    long, plan = far_apart(Trial(step=0.1, repair=1.0), 4)
    gaps = [b - a for (a, _), (b, _) in zip(plan, plan[1:], strict=False)]
    assert min(gaps) > 1.0 + 5 * 0.1 and plan[-1][0] + 1.0 < long.time


@pytest.mark.parametrize("wrong", [{"policy": "hope"}, {"replicas": 1}, {"step": 0}, {"repair": -1}])
def test_what_cannot_be_run_is_refused(wrong):
    with pytest.raises(ValueError):
        Trial(**wrong)


def test_both_policies_really_run_and_the_simulator_knows_the_order():
    """No number of the wall clock is asked for: who waits loses more than who goes on, measured and simulated."""
    trials = [Trial(policy, replicas=3, step=0.05, repair=1.5, time=5.0) for policy in POLICIES]
    waits, goes_on = run_trials([(trial, [(1.0, 1)]) for trial in trials])
    for run in (waits, goes_on):
        assert run.strikes[0][0] == pytest.approx(1.0, abs=0.5) and run.strikes[0][1] == 1
        assert {who for _, who in run.commits} >= {(0, 1, 2)}  # all of them, before it or after
        back = [at for at, who in run.commits if 1 in who and at > run.strikes[0][0] + 1.0]
        assert back, "the lost replica trains again"
    alone = [who for at, who in goes_on.commits if 1 not in who]
    assert len(alone) > 5  # the others trained without it
    assert len([who for _, who in waits.commits if 1 not in who]) < len(alone)
    said = [predict(run.trial, times_of(run), [run.strikes] * 2).effective.mean for run in (waits, goes_on)]
    assert waits.effective < goes_on.effective and said[0] < said[1]
