"""The shipped runs of the accuracy experiment: whole, with their provenance, made again in part; and what they show."""

from __future__ import annotations

from statistics import fmean

import pytest

from labkit.data.runs import FOLDER, recovery_accuracy
from labkit.resilience.accuracy import experiment as accuracy
from labkit.resilience.accuracy.claims import at_end, during, flattened, shift
from labkit.resilience.accuracy.experiment import LONG, REPLICAS, SHORT, STEPS, Setting, settings, train

runs = recovery_accuracy()
SETTINGS = [(k, n, how) for n in (SHORT, LONG) for k in (1, 3) for how in ("none", "linear", "sqrt")]


def of(measure, against, lost, length, how="none", order=0):
    return shift(runs.runs, measure, against, lost=lost, length=length, intervention=how, order=order)


def test_the_file_is_small_says_where_it_comes_from_and_has_every_run():
    assert (FOLDER / "recovery_accuracy.json").stat().st_size < 120_000
    assert runs.provenance.command.startswith("labkit bench recovery-accuracy")
    assert {"python", "torch"} <= set(runs.provenance.versions) and runs.provenance.date in str(runs.provenance)
    seeds = {row.seed for row in runs.runs}
    assert len(seeds) >= 20
    assert f"--seeds {len(seeds)} " in runs.provenance.command
    found = sorted((Setting(r.lost, r.length, r.intervention, r.order).name, r.seed) for r in runs.runs)
    assert found == sorted((s.name, seed) for s in settings() for seed in seeds)
    assert (runs.replicas, runs.planned) == (REPLICAS, STEPS)
    for row in runs.runs:
        setting = Setting(row.lost, row.length, row.intervention, row.order)
        assert len(row.steps) == len(row.samples) == len(row.losses)
        assert row.steps[-1] == setting.steps and row.samples[-1] == STEPS * REPLICAS * accuracy.BATCH


def test_the_rate_is_the_best_of_the_tuning_and_not_at_its_edge():
    means = {rate: fmean(losses) for rate, losses in runs.tuning.items()}
    assert runs.rate == accuracy.RATE == min(means, key=means.__getitem__)
    assert min(means) < runs.rate < max(means)


@pytest.mark.parametrize("setting", [Setting(), Setting(3, LONG, "sqrt"), Setting(1, LONG, "linear")])
def test_a_run_made_again_begins_as_the_shipped_one(setting):
    which = (setting.lost, setting.length, setting.intervention, setting.order)
    (row,) = [r for r in runs.runs if r.seed == 5 and (r.lost, r.length, r.intervention, r.order) == which]
    again = train(setting, [5], until=200)  # half of it in the first long outage
    assert [look.step for look in again] == list(row.steps[:4])
    assert [look.samples for look in again] == list(row.samples[:4])
    assert [look.losses[0] for look in again] == pytest.approx(row.losses[:4], abs=2e-3)


# What the paper says, in small


def test_two_runs_that_should_not_differ_do_not_and_show_how_far_apart_seeds_are():
    twin = of(at_end, "samples", 0, 0, order=1)
    assert not twin.clear and 0.01 < twin.spread < 0.06


@pytest.mark.parametrize("length", [SHORT, LONG])
def test_three_replicas_away_disturb_more_than_one(length):
    one, three = of(during, "steps", 1, length), of(during, "steps", 3, length)
    assert three.clear and three.mean > 2 * abs(one.mean)


@pytest.mark.parametrize("length", [SHORT, LONG])
def test_the_square_root_flattens_what_three_replicas_away_do(length):
    found = flattened(runs.runs, 3, length)
    assert found.clear and found.mean > 0.3 * of(during, "steps", 3, length).mean


def test_against_samples_the_square_root_is_the_flattest_of_the_three_in_a_short_outage():
    away = {how: of(during, "samples", 3, SHORT, how) for how in ("none", "linear", "sqrt")}
    assert away["none"].clear and away["none"].mean > 0 > away["linear"].mean and away["linear"].clear
    assert not away["sqrt"].clear
    assert abs(away["sqrt"].mean) < min(abs(away["none"].mean), abs(away["linear"].mean))


def test_against_samples_a_long_outage_looks_the_other_way_round():
    # After equally many samples these runs are further down the schedule of the rate, which goes by steps.
    for how in ("linear", "sqrt"):
        away = of(during, "samples", 3, LONG, how)
        assert away.clear and away.mean < 0
    assert flattened(runs.runs, 3, LONG, against="samples").mean < 0


def test_linear_is_no_worse_than_the_square_root_here():
    # "sqrt performs better than linear in our experiments in general": not in this one, against steps.
    for length in (SHORT, LONG):
        assert abs(of(during, "steps", 3, length, "linear").mean) < abs(of(during, "steps", 3, length, "sqrt").mean)


def test_the_quality_at_the_end_is_the_same_after_equally_many_samples_but_for_one_setting():
    ends = {which: of(at_end, "samples", *which) for which in SETTINGS}
    assert {which for which, end in ends.items() if end.clear} == {(3, LONG, "none")}
    assert ends[3, LONG, "none"].mean > 0  # the most aggressive, with the rate left as it is
    assert abs(ends[3, LONG, "sqrt"].mean) < ends[3, LONG, "none"].mean / 2


def test_after_equally_many_steps_a_long_outage_of_three_has_trained_less_and_is_behind():
    for how in ("none", "linear", "sqrt"):
        end = of(at_end, "steps", 3, LONG, how)
        assert end.clear and end.mean > 0
        assert end.mean > of(at_end, "samples", 3, LONG, how).mean
