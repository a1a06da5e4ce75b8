"""A small fleet that fails by the clock on the wall: its times are read rightly, and real runs come out of it whole."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from labkit.data.runs import FleetTrial, fleet_trials
from labkit.resilience import fleet_trial
from labkit.resilience.fleet_trial import (
    POLICIES,
    Trained,
    Trial,
    TrialJob,
    compared,
    draw_strikes,
    far_apart,
    lacks,
    predict,
    run_trials,
    simulated,
    times_of,
    times_or_recorded,
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


class Scripted(TrialJob):
    """A job whose log is written beforehand: (seconds, replicas) of each commit."""

    def __init__(self, trial, strikes, script=()):
        self.trial, self.strikes, self.script, self.begun = trial, strikes, script, time.monotonic()
        self._job = SimpleNamespace(job=SimpleNamespace(over=False, kill=lambda replica: None))

    def _commits(self):
        return [(self.begun + at, who) for at, who in self.script if self.begun + at <= time.monotonic()]

    def stop(self):
        pass


def test_a_step_that_was_on_its_way_is_not_the_return():
    """The struck replica is in the sum that the others commit just after: the run has to go on until it is back."""
    log = [(0.0, (0, 1)), (0.05, (0, 1)), (0.16, (0, 1)), (0.3, (0,)), (0.5, (0,)), (0.7, (0, 1)), (0.75, (0, 1))]
    run = Scripted(Trial(replicas=2, step=0.01, time=0.2, apart=True), [(0.1, 1)], log).wait()
    assert lacks(run) == "" and run.trial.time > 0.7
    assert times_of(run).recovery == pytest.approx(0.7 - run.usual - run.strikes[0][0], abs=1e-6)


def test_a_run_on_a_busy_computer_is_said_to_lack_what_it_lacks(monkeypatch):
    """No step within its patience; one step; nobody back. None of them raises, and recorded runs take their place."""
    trial = Trial("all wait", step=0.01, time=0.05, apart=True, patience=0.1)
    away = Trained(trial, [(1.01, 1)], commits(0.1, 4.0, [(11, 0.3, (0, 2, 3), 100)]))
    none = Scripted(trial, [(0.01, 1)]).wait()
    one = Scripted(trial, [(0.01, 1)], [(0.0, (0, 1, 2, 3))]).wait()
    told = [lacks(run) for run in (none, one, away, Trained(trial, [], commits(0.1, 4.0)))]
    assert told == ["only 0 steps were committed", "only 1 step was committed",
                    "replica 1, struck at 1.01 s, did not come back within the run", "nobody was struck"]  # fmt: skip
    recorded = fleet_trials().of("all wait")[0]
    for run in (none, one, away):
        with pytest.raises(ValueError, match=lacks(run)):
            times_of(run)
        times, source = times_or_recorded(run)
        assert times.recovery == recorded.recovery and source.endswith(f"here {lacks(run)}")
        assert compared(away, run)[1:] == (recorded.measured, simulated(recorded), f"recorded: here {lacks(run)}")
    good = Trained(trial, [(1.01, 1)], commits(0.1, 4.0, [(11, 0.3, (0, 2, 3), 10)]))
    assert times_or_recorded(good) == (times_of(good), "this run")
    assert compared(one, good)[3] == "recorded: here only 1 step was committed"
    said = predict(trial, times_of(good), [away.strikes] * 2).effective.mean
    assert compared(away, good) == (1, away.effective, said, "this run")
    made = [one, good]  # the second try goes well
    busy = {"__init__": lambda *_: None, "stop": lambda _: None, "wait": lambda _: made.pop(0)}
    monkeypatch.setattr(fleet_trial, "TrialJob", type("Busy", (), busy))
    assert run_trials([(trial, [])], tries=2) == [good] and made == []


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
    apart = long.time / 4  # each at another place of a step: first, second, third and last quarter
    assert [at - n * apart - plan[0][0] for n, (at, _) in enumerate(plan)] == pytest.approx([0, 0.025, 0.05, 0.075])
    assert [replica for _, replica in plan] == [0, 1, 2, 3] and long.step == 0.1 and long.apart


def stored(policy, strikes, **times):
    given = {"usual": 0.2, "recovery": 2.0, "stall": 0.5, "rejoin": 0.25} | times
    return FleetTrial(policy, 0, 0.5, 0.2, 0.0, strikes, 4, 0.2, 1.0, 10.0, 3.0, **given)


def test_where_all_wait_any_failure_stops_the_fleet():
    assert simulated(stored("all wait", ((1.0, 2),), stall=2.0, rejoin=0.0)) == pytest.approx(0.8)
    assert simulated(stored("all wait", ((1.0, 2),), stall=0.5, rejoin=0.0)) == pytest.approx(0.8)  # nobody goes on
    assert simulated(stored("all wait", ((1.0, 2), (2.0, 3)), stall=2.0, rejoin=0.0)) == pytest.approx(0.7)  # 1 to 4


def test_where_others_go_on_it_counts_who_was_struck():
    """Once: .5 s of all, 1.5 s of one in four, .25 s of all. Another replica a second later: two are away."""
    once = 0.5 + 1.5 / 4 + 0.25
    assert simulated(stored("others go on", ((1.0, 2),))) == pytest.approx(1 - once / 10)
    same = 0.5 + 0.5 / 4 + 0.5 + 1.5 / 4 + 0.25  # struck again while it is away: its repair begins anew
    assert simulated(stored("others go on", ((1.0, 2), (2.0, 2)))) == pytest.approx(1 - same / 10)
    both = 0.5 + 0.5 / 4 + 0.5 + 0.5 * 2 / 4 + 0.25 + 0.75 / 4 + 0.25
    assert simulated(stored("others go on", ((1.0, 2), (2.0, 3)))) == pytest.approx(1 - both / 10)


def test_effective_counts_from_the_first_commit_to_the_end_and_in_its_own_step():
    """Steps of .2 s in a trial that was planned with .1: what counts is the step of the run."""
    made = commits(0.2, 5.0)
    assert Trained(Trial(step=0.1, time=4.0), [], made).effective == pytest.approx(1.0)
    assert Trained(Trial(step=0.1, time=3.9), [], made).effective == pytest.approx(19 * 0.2 / 3.9)  # one is cut


@pytest.mark.parametrize("wrong", [{"policy": "hope"}, {"replicas": 1}, {"step": 0}, {"repair": -1}])
def test_what_cannot_be_run_is_refused(wrong):
    with pytest.raises(ValueError):
        Trial(**wrong)


@pytest.mark.ranks
def test_both_policies_really_run_and_the_simulator_knows_the_order():
    """No number of the wall clock is asked for: who waits loses more than who goes on, measured and simulated."""
    trials = [Trial(policy, replicas=3, step=0.05, repair=1.5, time=5.0, apart=True) for policy in POLICIES]
    tight = Trial("others go on", replicas=3, step=0.05, repair=1.5, time=1.0, apart=True)  # too short, so it is longer
    waits, goes_on, apart = run_trials([*((trial, [(1.0, 1)]) for trial in trials), (tight, [(0.3, 1), (0.5, 2)])])
    assert [replica for _, replica in apart.strikes] == [1, 2] and apart.strikes[1][0] > apart.strikes[0][0] + 1.5
    assert apart.trial.time > apart.strikes[1][0] + 1.5 and times_of(apart).recovery > 1.5
    for run in (waits, goes_on):
        assert run.trial.time >= 5.0 and run.strikes[0][0] > 1.0 and run.strikes[0][1] == 1
        assert {who for _, who in run.commits} >= {(0, 1, 2)}  # all of them, before it or after
        back = [at for at, who in run.commits if 1 in who and at > run.strikes[0][0] + 1.0]
        assert back, "the lost replica trains again"
    alone = [who for at, who in goes_on.commits if 1 not in who]
    assert len(alone) > 5  # the others trained without it
    assert len([who for _, who in waits.commits if 1 not in who]) < len(alone)
    said = [predict(run.trial, times_of(run), [run.strikes] * 2).effective.mean for run in (waits, goes_on)]
    assert waits.effective < goes_on.effective and said[0] < said[1]
