"""Keys of chapter 21: a second way to each number, slips that are right for nobody, and a run that adds up."""

from __future__ import annotations

import ast
import math
from pathlib import Path

import nbformat
import numpy as np
import pytest
from slices import LONG
from slips import every_draw, letters_have_reasons, tell_apart

from labkit import cost
from labkit.chapters.c21_hundred_thousand_gpus import keys
from labkit.chapters.c21_hundred_thousand_gpus.checks import ACCOUNTS, DAYS, expected_out, own_cluster
from labkit.grading.answers import find_key

CHAPTER = "21_hundred_thousand_gpus"


def answer(name, **given):
    return find_key(CHAPTER, name, **given).answer


FAILED = every_draw(gpus=[64, 80, 96], failed=[4, 6, 7])
KEPT = every_draw(every=[18, 20, 24], restart=[8, 10], interval=[3, 5], write=[24, 36])
WHOLE = every_draw(width=[26, 28, 30], samples=[6, 9, 10, 12], replicas=[64, 96], narrow=[5, 14], below=[3, 5])
POWER = every_draw(gpus=[32, 36, 72], failed=[2, 3], power=[110, 120], samples=[8, 12, 16])
OWN = [
    {"repair": repair, "samples": samples, "drawings": 30 + 10 * (repair - 3), "seed": 17 * repair + samples}
    for repair in (3, 4, 5)
    for samples in (8, 10, 12)
]
DERIVED = [
    *((name, g) for name in ("exact_whole", "each_whole", "apart_in_large", "lost_with_wide") for g in FAILED),
    *((name, g) for name in ("clock_kept", "random_kept", "clock_best", "random_at_clock_best", "most_at_random",
                             "as_rare") for g in KEPT),
    *((name, g) for name in ("lost_if_all_wait", "lost_with_fewer", "same_batch_step", "first_batch", "always_batch")
      for g in WHOLE),
    *((name, g) for name in ("constant_part", "power_each", "power_domain", "speed_in_budget", "samples_in_budget",
                             "least_constant") for g in POWER),
]  # fmt: skip
NAMES = sorted({name for name, _ in DERIVED})


def test_these_are_the_numbers_that_students_get():
    notebook = nbformat.read(Path(__file__).parents[2] / "solutions" / f"{CHAPTER}.ipynb", 4)
    (setup,) = (cell.source for cell in notebook.cells if cell.id == "setup")
    calls = [node for node in ast.walk(ast.parse(setup)) if isinstance(node, ast.Call)]
    (given,) = (call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "given")
    drawn = {keyword.arg: ast.literal_eval(keyword.value) for keyword in given.keywords}
    for exercise, numbers in (("exactly_so_many", FAILED), ("sharp_or_at_random", KEPT), ("whole_samples_only", WHOLE),
                              ("borrowed_power", POWER)):  # fmt: skip
        assert every_draw(**drawn[exercise]) == numbers
    own = drawn["a_cluster_of_your_own"]
    assert all(given[name] in own[name] for given in OWN for name in ("repair", "samples", "drawings"))


@pytest.mark.parametrize("name", NAMES)
def test_no_slip_is_right_and_each_is_told_apart_by_some_numbers(name):
    tell_apart(find_key(CHAPTER, name, **numbers) for same, numbers in DERIVED if same == name)


@pytest.mark.parametrize("name", NAMES)
def test_every_slip_is_outside_of_the_tolerance_for_all_numbers(name):
    """None is left out where two ways meet, as `Number.of` would: students' numbers are chosen so that none meet."""
    counts = set()
    for same, numbers in DERIVED:
        if same == name:
            key = find_key(CHAPTER, name, **numbers)
            counts.add(len(key.slips))
            assert all(abs(wrong - key.answer) > 1.5 * key.tolerance * abs(key.answer) for wrong, _ in key.slips)
    assert len(counts) == 1 and counts != {0}


@pytest.mark.parametrize(
    "name, right, letters",
    [
        ("why_not_squared", "b", "abcd"),
        ("why_44", "c", "abcd"),
        ("when_it_suffices", "b", "abcd"),
        ("what_it_supports", "ace", "abcde"),
    ],
)
def test_letters_have_a_reason_each(name, right, letters):
    letters_have_reasons(find_key(CHAPTER, name), right, letters)


# Exactly so many -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", FAILED[::2], ids=str)
def test_shares_of_whole_domains_are_those_of_the_library_and_of_drawings(given):
    gpus, failed = given["gpus"], given["failed"]
    exact = cost.group_availability_of(gpus, failed, 8)
    assert answer("exact_whole", **given) == pytest.approx(100 * exact)
    assert answer("exact_whole", **given) == pytest.approx(100 * math.comb(gpus - 8, failed) / math.comb(gpus, failed))
    assert answer("each_whole", **given) == pytest.approx(100 * cost.group_availability(failed / gpus, 8))
    large = cost.group_availability(failed / gpus, 8) - cost.group_availability_of(1000 * gpus, 1000 * failed, 8)
    assert answer("apart_in_large", **given) == pytest.approx(100 * large, rel=1e-5)
    assert answer("apart_in_large", **given) < 0.0025 < 0.9 < answer("each_whole", **given) - 100 * exact
    hit = cost.place_failures(failed, gpus, 16, 4000, seed=1) > 0
    lost = cost.Estimate.of(16 * hit.sum(1))
    assert abs(answer("lost_with_wide", **given) - lost.mean) < 4 * lost.error
    assert exact**2 > cost.group_availability_of(gpus, failed, 16)  # the letter: the square is too high


# By the clock, or at random ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", KEPT[::5], ids=str)
def test_what_is_kept_is_what_the_library_keeps(given):
    every, restart, interval, write = given["every"], given["restart"], given["interval"], given["write"] / 60
    best = answer("clock_best", **given)
    for name, minutes in (("random_kept", interval), ("random_at_clock_best", best)):
        assert answer(name, **given) == pytest.approx(100 * cost.checkpoint_tax(minutes, write, every, restart).goodput)
    assert answer("most_at_random", **given) == pytest.approx(
        100 * cost.random_synchronous_effective_time(every, restart)
    )

    def by_clock(minutes):
        """Of the ninth gap: at the end of a run more is counted, which no failure destroys any more."""
        kept = [
            gaps * cost.simulate_fleet(every, restart, restart, interval=minutes, write=write, spacing="clock",
                                       time=gaps * every, samples=2).effective.mean for gaps in (8, 9)
        ]  # fmt: skip
        return 100 * (kept[1] - kept[0])

    assert answer("clock_kept", **given) == pytest.approx(by_clock(interval))
    top = by_clock(best - 1e-6)
    assert top == pytest.approx(100 * best / every, rel=1e-5)
    assert all(by_clock(best * part) <= top + 1e-6 for part in np.linspace(0.05, 0.99, 12))
    assert by_clock(best + 0.05) == pytest.approx(0, abs=1e-6)
    part = cost.fault_tolerant_effective_time(every, restart, 3, 12, 100 / 60)
    assert cost.synchronous_effective_time(answer("as_rare", **given), restart) == pytest.approx(part)


def test_what_is_kept_at_random_is_what_is_drawn():
    for given in KEPT[:: 11 if LONG else 33]:
        drawn = cost.simulate_fleet(given["every"], given["restart"], given["restart"], interval=given["interval"],
                                    write=given["write"] / 60, samples=25, seed=2).effective  # fmt: skip
        assert abs(100 * drawn.mean - answer("random_kept", **given)) < 400 * drawn.error


def test_44_percent_is_no_limit_of_what_is_kept_at_random():
    """The letter: some students' numbers keep more than that, and a long interval keeps less."""
    paper = {"every": 18, "restart": 10, "interval": 3, "write": 24}
    assert answer("most_at_random", **paper) == pytest.approx(57.4, abs=0.05)
    assert answer("random_kept", **paper) > 100 * 8 / 18 > 100 * cost.checkpoint_tax(100 / 3, 0.4, 18, 10).goodput
    assert answer("as_rare", **paper) == pytest.approx(10 / 0.284, abs=0.01)


# Whole samples -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", WHOLE[::7], ids=str)
def test_whole_samples_by_the_cluster_of_the_library_and_by_trying(given):
    width, samples, replicas, narrow = (given[name] for name in ("width", "samples", "replicas", "narrow"))
    cluster = cost.Cluster(replicas, 32, 1, (32, 30, 28, 26), samples)
    failed = np.array([32 - width] * narrow + [0] * (replicas - narrow))
    assert answer("lost_with_fewer", **given) == pytest.approx(100 * float(cluster.loss(failed)))
    assert answer("lost_if_all_wait", **given) == pytest.approx(100 * (1 - cost.narrow_speed(width, 32)))
    steps = []
    for kept in range(samples + 1):  # of each narrow replica; the rest is dealt out evenly to the others
        others = math.ceil((replicas * samples - narrow * kept) / (replicas - narrow))
        steps.append((max(kept * 32 / width, others), kept == samples))
    shortest, all_kept = min(steps)
    assert answer("same_batch_step", **given) == pytest.approx(shortest / samples)
    letter = find_key(CHAPTER, "who_is_last", **given)
    letters_have_reasons(letter, "a" if all_kept else "b", "abcd")
    good = [count * width / 32 % 1 / (count * width / 32) < given["below"] / 100 for count in range(1, 400)]
    assert answer("first_batch", **given) == 1 + good.index(True)
    assert answer("always_batch", **given) == 1 + max(i for i, holds in enumerate(good) if not holds) + 1


def test_both_are_the_last_for_some_students():
    assert {find_key(CHAPTER, "who_is_last", **given).right for given in WHOLE} == {"a", "b"}


# Borrowed power ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", POWER[::5], ids=str)
def test_borrowed_power_by_bisection(given):
    q, x = answer("constant_part", **given) / 100, given["gpus"] / (given["gpus"] - given["failed"])
    boost = cost.PowerBoost()
    at = given["power"] / 100
    assert q + (1 - q) * boost.speed(at) ** 3 == pytest.approx(at)

    def fastest(power, part):
        low, high = 0.0, 3.0
        for _ in range(80):
            middle = (low + high) / 2
            low, high = (low, middle) if part + (1 - part) * middle**3 > power else (middle, high)
        return low

    assert fastest(answer("power_each", **given), q) == pytest.approx(x)
    assert answer("power_domain", **given) * given["gpus"] == pytest.approx(
        answer("power_each", **given) * (given["gpus"] - given["failed"])
    )
    assert answer("speed_in_budget", **given) == pytest.approx(100 * fastest(x, q) / x)
    could = given["samples"] * answer("speed_in_budget", **given) / 100
    assert answer("samples_in_budget", **given) <= could < answer("samples_in_budget", **given) + 1
    least = answer("least_constant", **given) / 100
    assert fastest(x, least) == pytest.approx(x) and fastest(x, least - 0.01) < x < fastest(x, least + 0.01)


def test_the_law_meets_the_articles_rack():
    """001: 30 of 32 draw 1.027 of the budget by the chapter's parabola, and as much by this law within a thousandth."""
    paper = {"gpus": 32, "failed": 2, "power": 110, "samples": 8}
    assert answer("power_domain", **paper) == pytest.approx(cost.PowerBoost().domain_power(30, 32), abs=1e-3)
    assert answer("power_domain", **paper) == pytest.approx(1.027, abs=1e-3)
    assert answer("samples_in_budget", **paper) == 8 * 30 // 32 == 7  # the boost within the budget gains no sample
    assert {p: 1 - cost.PowerBoost().speed(p / 100) / (p / 100) for p in keys.POINTS} == pytest.approx(keys.POINTS)


# A cluster of your own -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", OWN[::2], ids=str)
def test_gpu_days_add_up_and_what_is_too_many_is_power(given):
    found = own_cluster(**given)
    for method in ("dp-drop", "ntp"):
        assert sum(found.by_method[method].gpu_days[name] for name in ACCOUNTS) == pytest.approx(found.gpu_days)
    listing = find_key(CHAPTER, "own_accounts", **given)
    assert sum(key.answer for key in listing.keys) == pytest.approx(32_768 * DAYS)
    five = sum(found.by_method["ntp-pw"].gpu_days[name] for name in ACCOUNTS)
    assert five - found.gpu_days == pytest.approx(answer("from_power", **given)) and five > found.gpu_days
    assert found.out.mean == pytest.approx(found.by_method["ntp"].gpu_days["failed"])
    drop, ntp = (key.answer for key in find_key(CHAPTER, "own_losses", **given).keys)
    for method, lost in (("dp-drop", drop), ("ntp", ntp)):
        useful = found.by_method[method].gpu_days["useful"]
        assert 100 * (1 - useful / found.gpu_days) == pytest.approx(lost)
    assert 5 * ntp < drop


@pytest.mark.parametrize("given", OWN[::4], ids=str)
def test_errors_and_accounts_of_the_own_run_are_those_of_its_drawings(given):
    cluster = cost.Cluster(samples=given["samples"])
    kinds = cost.llama3_kinds(given["repair"])
    trace = cost.draw_failures(cluster.gpus, DAYS, given["drawings"], given["seed"], kinds=kinds)
    history = cost.domain_history(trace, cluster)
    losses = 100 * history.mean(cluster.use_of(history.values, "dp-drop").loss)
    assert answer("one_drawing", **given) == pytest.approx(float(losses.std(ddof=1)))
    narrow = cluster.use_of(history.values, "ntp")
    mine = [float(history.mean(getattr(narrow, name)).mean()) * DAYS for name in ACCOUNTS]
    assert [key.answer for key in find_key(CHAPTER, "own_accounts", **given).keys] == pytest.approx(mine)
    needed = answer("drawings_needed", **given)
    assert losses.std(ddof=1) / math.sqrt(needed) == pytest.approx(0.01)


@pytest.mark.parametrize("repair", [3, 4, 5])
def test_the_formula_is_the_integral_of_the_libraries_and_what_many_drawings_say(repair):
    kinds, parts = cost.llama3_kinds(repair), 500
    at = [cost.mean_failed(32_768, kinds, after_days=(i + 0.5) / parts * DAYS) for i in range(parts)]
    assert sum(at) / parts * DAYS == pytest.approx(expected_out(repair), rel=0.002)
    drawn = own_cluster(repair, 8, 300, 5).out
    assert abs(drawn.mean - expected_out(repair)) < 3 * drawn.error
    key = find_key(CHAPTER, "out_by_formula", repair=repair, samples=8, drawings=300, seed=5)
    assert key.mark(sum(at) / parts * DAYS).right and "later on" in key.mark(key.slips[1][0]).why
    assert "repaired as fail" in key.mark(key.slips[0][0]).why


def test_other_runs_than_the_own_one_are_not_right():
    mine, others = OWN[0], OWN[0] | {"seed": 4711}
    for name in ("own_losses", "own_accounts"):
        theirs = [key.answer for key in find_key(CHAPTER, name, **others).keys]
        assert not find_key(CHAPTER, name, **mine).mark(theirs).right
    key = find_key(CHAPTER, "one_drawing", **mine)
    assert "*mean* is known" in key.mark(key.answer / math.sqrt(mine["drawings"])).why
    losses = find_key(CHAPTER, "own_losses", **mine)
    assert not losses.mark([key.answer for key in losses.keys][::-1]).right
