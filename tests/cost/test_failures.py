"""Rates, spares, detection, corruption, interventions, restarts: each closed form against counting or drawing."""

from __future__ import annotations

import math
from random import Random
from statistics import NormalDist, fmean

import pytest
from hypothesis import given, strategies as st

from labkit import cost

# Restarts and growth


@pytest.mark.ranks
def test_a_restart_is_the_sum_of_its_parts_and_a_warm_one_saves_the_allocation():
    cold = cost.Restart(allocation=300, connections=200, loading=60, first_step=200)
    assert cold.total == 760
    assert cold.warm().total == 460 and cold.warm(20).total == 480
    assert cold.warm().connections == 200


@given(scale=st.floats(1e-6, 1e3), exponent=st.floats(-2, 3))
def test_a_growth_is_found_again_from_points_that_follow_it(scale, exponent):
    points = [(n, scale * n**exponent) for n in (64, 512, 8192)]
    found = cost.fit_growth(points)
    assert found.exponent == pytest.approx(exponent, abs=1e-9)
    assert found.seconds(100) == pytest.approx(scale * 100**exponent)
    assert found.residual < 1e-9


def test_a_growth_that_no_power_fits_says_how_far_it_is_off():
    assert cost.fit_growth([(1, 1), (10, 100), (100, 100)]).residual > 1


# Rates


@given(rate=st.floats(0.01, 100), gpus=st.integers(8, 10**6))
def test_a_rate_and_its_interval_say_the_same(rate, gpus):
    minutes = cost.minutes_between_interruptions(rate, gpus)
    assert cost.rate_of_interval(minutes, gpus) == pytest.approx(rate)
    days = 10
    interruptions = days * 24 * 60 / minutes
    assert cost.per_thousand_servers_a_day(interruptions, days, gpus) == pytest.approx(rate)


def test_a_table_shares_its_counts():
    table = cost.FailureTable(
        "made up",
        8,
        1,
        (cost.Cause("a", 3, 75.0, True), cost.Cause("b", 1, 24.0, None), cost.Cause("c", 0, 0.0, False)),
    )
    assert table.total == 4 and table.stated_sum == 99.0
    assert table.share("a") == 0.75 and table.share("a", "b") == 1
    assert table.hardware_share() == (0.75, 1.0)
    assert table.misprinted() == {"b": (24.0, 25.0)}


# Checkpoints on storage, and worlds that shrink


def test_the_bytes_of_a_checkpoint_are_those_of_training_without_gradients_and_16_bit_weights():
    parts = cost.state_parts(175e9)
    assert cost.checkpoint_bytes(175e9) == parts.optimizer == parts.total - parts.gradients - parts.parameters
    assert cost.checkpoint_bytes(10, 4) == 40
    assert cost.kept_bytes(5, 3) == 20


def test_the_slower_of_writers_and_storage_sets_the_time():
    assert cost.write_seconds(100, 2, 5) == 10 == cost.write_seconds(100, 2, 5, storage=11)
    assert cost.write_seconds(100, 2, 5, storage=4) == 25
    assert cost.write_seconds(0, 1, 1) == 0


@given(wait=st.floats(0, 100), restart=st.floats(0, 10), write=st.floats(0, 5), sizes=st.data())
def test_going_on_smaller_by_the_clock(wait, restart, write, sizes):
    size = sizes.draw(st.integers(2, 64))
    smaller = sizes.draw(st.integers(1, size - 1))
    end = wait + 100  # both are whole by then
    waits = end - (wait + restart)
    now, goes_on = restart, 0.0
    if now < wait:
        goes_on, now = (wait - now) * smaller / size, wait + write
    goes_on += end - (now + restart)
    assert cost.going_on_smaller(wait, restart, write, smaller, size) == pytest.approx(goes_on - waits, abs=1e-9)
    least = cost.shortest_wait_for_smaller(restart, write, smaller, size)
    assert cost.going_on_smaller(least, restart, write, smaller, size) == pytest.approx(0, abs=1e-9)


# Spares


def test_the_number_in_repair_is_poisson_whatever_repairs_take():
    # 3 failures a day at random; repairs take 1 day or 9, as likely: 15 in repair on average, with the same spread.
    random, day, repairs = Random(0), 0.0, []
    while day < 20_000:
        day += random.expovariate(3)
        repairs.append((day, day + random.choice((1, 9))))
    mean = cost.in_repair(3, {1: 0.5, 9: 0.5})
    assert mean == 15
    looks, i, open_repairs, counts = range(20, 20_000, 5), 0, [], []
    for look in looks:
        while i < len(repairs) and repairs[i][0] <= look:
            open_repairs.append(repairs[i][1])
            i += 1
        open_repairs = [end for end in open_repairs if end > look]
        counts.append(len(open_repairs))
    assert fmean(counts) == pytest.approx(mean, rel=0.02)
    needed = cost.spares_needed(mean, 0.95)
    short = sum(c > needed for c in counts) / len(counts)
    assert short == pytest.approx(cost.poisson_tail(mean, needed), abs=0.012) and short < 0.06


@given(mean=st.floats(0, 5000), enough=st.floats(0.01, 0.9999))
def test_the_spares_needed_are_the_fewest_that_suffice(mean, enough):
    n = cost.spares_needed(mean, enough)
    assert cost.poisson_tail(mean, n) <= 1 - enough + 1e-9
    assert n == 0 or cost.poisson_tail(mean, n - 1) >= 1 - enough - 1e-9


def test_no_failures_no_spares():
    assert cost.spares_needed(0) == 0 == cost.in_repair(0, 5) == cost.poisson_tail(0, 0)
    assert cost.in_repair(4, 2.5) == 10


# Detection


def test_the_time_to_detection_is_that_of_signs_at_a_distance():
    random = Random(1)
    times = []
    for _ in range(20_000):
        death = random.uniform(0, 10)
        last_sign = math.floor(death / 2) * 2
        times.append(last_sign + 5 - death)
    shortest, mean, longest = cost.detection_seconds(5, every=2)
    assert (shortest, mean, longest) == (3, 4, 5)
    assert fmean(times) == pytest.approx(mean, abs=0.02)
    assert shortest <= min(times) < shortest + 0.01 and longest - 0.01 < max(times) <= longest
    assert cost.detection_seconds(60) == (60, 60, 60)


def test_false_alarms_are_those_of_drawn_steps():
    deadline = 3.0
    expected = cost.false_alarms(deadline, mean=1, deviation=0.8, ranks=8, steps=5000)
    random, spread = Random(2), NormalDist(1, 0.8)
    drawn = sum(max(random.gauss(spread.mean, spread.stdev) for _ in range(8)) > deadline for _ in range(5000))
    assert drawn == pytest.approx(expected, rel=0.1)
    assert cost.false_alarms(3, 1, 0, 8) == 0 and cost.false_alarms(3, 4, 0, 8, 7) == 7


@given(ranks=st.integers(1, 10**5), steps=st.integers(1, 10**6), mistakes=st.floats(1e-3, 0.9))
def test_a_deadline_makes_as_many_mistakes_as_it_may(ranks, steps, mistakes):
    deadline = cost.deadline_for(20, 1, ranks, steps, mistakes)
    assert cost.false_alarms(deadline, 20, 1, ranks, steps) == pytest.approx(mistakes, rel=1e-4)


def test_the_bounds_of_a_share():
    low, high = cost.share_interval(50, 100)
    assert (round(low, 3), round(high, 3)) == (0.404, 0.596)  # a textbook example
    assert cost.share_interval(0, 10)[0] == 0 and cost.share_interval(10, 10)[1] == 1
    wide, narrow = (cost.share_interval(9, 10, c) for c in (0.99, 0.5))
    assert wide[0] < narrow[0] < narrow[1] < wide[1]


# Corruption


def test_steps_until_a_bad_machine_is_found_are_those_of_drawing():
    random, found, bad = Random(3), [], []
    for _ in range(4000):
        step = corrupted = 0
        while True:
            step += 1
            wrong = random.random() < 0.2
            corrupted += wrong
            if random.random() < 1 / 4 and wrong and random.random() < 0.5:  # replayed, and it shows
                break
        found.append(step)
        bad.append(corrupted)
    assert fmean(found) == pytest.approx(cost.steps_until_found(0.2, 4, 0.5), rel=0.05)
    assert fmean(bad) == pytest.approx(cost.corrupted_before_found(4, 0.5), rel=0.05)
    assert cost.replay_overhead(4) == 0.25


def test_what_never_shows_is_never_found():
    assert cost.steps_until_found(0.5, 1, 0) == math.inf == cost.steps_until_found(0, 1)
    assert cost.corrupted_before_found(1, 0) == math.inf
    assert cost.steps_until_found(1) == 1 == cost.corrupted_before_found()


@given(chance=st.floats(1e-4, 0.9), sure=st.floats(0.5, 0.999))
def test_clean_runs_that_clear_a_machine_are_the_fewest(chance, sure):
    n = cost.runs_to_clear(chance, sure)
    assert (1 - chance) ** n <= (1 - sure) * (1 + 1e-9)
    assert n == 1 or (1 - chance) ** (n - 1) >= (1 - sure) * (1 - 1e-9)


# Interventions


def test_interventions():
    factors = [cost.intervention_factor(name, 9, 12) for name in ("none", "linear", "sqrt")]
    assert factors == [1, 0.75, math.sqrt(0.75)]
    assert all(cost.intervention_factor(name, 12, 12) == 1 for name in cost.INTERVENTIONS)


def test_the_noise_of_a_step_is_that_of_drawn_gradients():
    random = Random(4)

    def steps(healthy, rate):
        return [rate * fmean(random.gauss(1, 5) for _ in range(healthy)) for _ in range(8000)]

    def deviation(values):
        mean = fmean(values)
        return math.sqrt(fmean((v - mean) ** 2 for v in values))

    full = deviation(steps(12, 1.0))
    for name in cost.INTERVENTIONS:
        part = deviation(steps(3, cost.intervention_factor(name, 3, 12)))
        assert part / full == pytest.approx(cost.step_noise_factor(name, 3, 12), rel=0.04)
    assert cost.step_noise_factor("sqrt", 3, 12) == pytest.approx(1)


def test_samples_lost_by_counting():
    missing = sum(3 for step in range(1000) if 100 <= step < 250 or 600 <= step < 750)
    assert cost.samples_lost(2, 150, 3, 12, 1000) == missing / 12_000


# The all-reduce


def test_partitions_and_rounds():
    chunk = 8 * cost.units.MB
    assert cost.ftar_partitions(256 * cost.units.MB, 16) == 2  # 16 ranks times a chunk of 8 MB are 128 MB
    assert cost.ftar_partitions(256 * cost.units.MB + 1, 16) == 3
    assert cost.ftar_partitions(0, 4) == 0
    assert cost.ftar_in_flight_bytes(chunk, 4) == 4 * chunk
    assert cost.ftar_rounds(256 * cost.units.MB, 16) == 2 * 30
    assert cost.ftar_rounds(10, 4, 1, 1) == 3 * 6


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: cost.Restart(allocation=-1), "allocation .*-1"),
        (lambda: cost.fit_growth([(8, 1), (8, 2)]), "two sizes"),
        (lambda: cost.fit_growth([(8, 0), (9, 2)]), "seconds .*0"),
        (lambda: cost.kill_stall_seconds(["the weather"]), "the weather"),
        (lambda: cost.LLAMA3_FAILURES.share("Gremlins"), "Gremlins"),
        (lambda: cost.per_thousand_servers_a_day(1, 0, 8), "days .*0"),
        (lambda: cost.minutes_between_interruptions(0, 8), "rate .*0"),
        (lambda: cost.rate_of_interval(1, 0), "gpus .*0"),
        (lambda: cost.checkpoint_bytes(-1), "params .*-1"),
        (lambda: cost.write_seconds(1, 0, 1), "writers .*0"),
        (lambda: cost.write_seconds(1, 1, 1, 0), "storage .*0"),
        (lambda: cost.kept_bytes(1, 0), "keep .*0"),
        (lambda: cost.going_on_smaller(1, 1, 1, 8, 8), "smaller=8 .*size=8"),
        (lambda: cost.shortest_wait_for_smaller(-1, 0, 7, 8), "restart .*-1"),
        (lambda: cost.in_repair(1, {1: 0.5}), "sum to 1"),
        (lambda: cost.in_repair(-1, 1), "failures_a_day .*-1"),
        (lambda: cost.spares_needed(1, 1), "enough .*1"),
        (lambda: cost.poisson_tail(1, -1), "count .*-1"),
        (lambda: cost.detection_seconds(1, 1), "deadline=1 .*every=1"),
        (lambda: cost.false_alarms(1, 1, -1, 1), "deviation .*-1"),
        (lambda: cost.deadline_for(1, 1, 1, 1, 1), "mistakes=1"),
        (lambda: cost.share_interval(3, 2), "right .*cases=2, not 3"),
        (lambda: cost.share_interval(1, 2, 1), "confidence .*1"),
        (lambda: cost.replay_overhead(0), "every .*0"),
        (lambda: cost.steps_until_found(2), "chance .*2"),
        (lambda: cost.corrupted_before_found(1, -1), "caught .*-1"),
        (lambda: cost.runs_to_clear(1), "chance=1"),
        (lambda: cost.interruptions_per_host(1, 0), "hosts .*0"),
        (lambda: cost.intervention_factor("cubic", 1, 2), "'none', 'linear', 'sqrt', not 'cubic'"),
        (lambda: cost.intervention_factor("sqrt", 3, 2), "healthy=3 .*total=2"),
        (lambda: cost.intervention_factor("sqrt", 0, 2), "healthy .*0"),
        (lambda: cost.samples_lost(3, 4, 1, 2, 10), "failures=3 of 4"),
        (lambda: cost.samples_lost(1, 4, 3, 2, 10), "lost=3 .*total=2"),
        (lambda: cost.ftar_partitions(1, 0), "ranks .*0"),
    ],
)
def test_what_cannot_be_is_refused_by_name_and_value(call, named):
    with pytest.raises(ValueError, match=named):
        call()
