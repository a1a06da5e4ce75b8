"""Keys of chapter 17 and what its checks compare with: slips are told apart, the sources' numbers come out, and what is
simulated has the culprits that were put in."""

from __future__ import annotations

import itertools

import pytest
import torch
from slips import every_draw, tell_apart

from labkit import cost
from labkit.chapters.c17_when_things_break import checks as reference, keys, numbers
from labkit.grading.answers import find_key
from labkit.resilience.diagnose import find_slow

CHAPTER = "17_when_things_break"

FLEET = every_draw(gpus=[8192, 16384, 24576], failures=[310, 419, 560], days=[30, 40, 54])
BUY = every_draw(joined=[2, 3], count=[4, 5], ping=[6, 7], calls=[8, 9], percent=[75, 80, 90])
LIMIT = every_draw(step=[16, 18, 20], deviation=[1, 2], ranks=[8192, 16384, 32768])
TEST = every_draw(one_in=[2000, 5000, 10000], steps=[1000, 1500], every=[20, 25, 50])
RADIUS = every_draw(dp=[8, 12, 16], pp=[4, 8, 16], failures=[6, 8, 12], minutes=[8, 10, 15])
NAMES = {
    ("between_failures", "of_one_server", "clean_day", "most_gpus"): FLEET,
    ("cheapest_first", "in_hindsight", "fair_plan", "guess_below"): BUY,
    ("alarms_a_week", "limit_for_one", "price_of_sixty", "limit_for_smoother"): LIMIT,
    ("passes_test", "steps_to_clear", "steps_by_then", "corrupted_by_then"): TEST,
    ("before_averaging", "hours_of_all", "percent_lost", "percent_alone"): RADIUS,
}
KEYS = [(name, draws) for names, draws in NAMES.items() for name in names]


def answer(name, **given):
    return find_key(CHAPTER, name, **given).answer


@pytest.mark.parametrize("name, draws", KEYS, ids=[name for name, _ in KEYS])
def test_no_slip_is_right_and_each_is_told_apart_by_some_numbers(name, draws):
    tell_apart(find_key(CHAPTER, name, **given) for given in draws)


def test_the_numbers_of_the_sources():
    llama = dict(gpus=16_384, failures=419, days=54)
    assert find_key(CHAPTER, "between_failures", **llama).mark("3.09 h").right
    assert find_key(CHAPTER, "of_one_server", **llama).mark(50_676 / 8 / 24 / 365.25).right
    assert answer("most_gpus", **llama) / 100_000 == pytest.approx(30.41 / 30, rel=1e-3)
    assert answer("clean_day", **llama) == pytest.approx(100 * 2.718281828 ** (-419 / 54))
    largest = dict(dp=12, pp=1024, failures=8, minutes=10)  # 98,304 GPUs
    assert answer("before_averaging", **largest) == 8192 and answer("hours_of_all", **largest) == 16_384
    assert answer("percent_lost", **largest) == pytest.approx(12 * answer("percent_alone", **largest)) == 100 / 18
    power = find_key(CHAPTER, "limit_for_smoother", step=20, deviation=1, ranks=16_384)
    assert power.answer > 60 and "declared dead" in power.mark("60 s").why


def test_plans_are_those_of_all_orders():
    """The best plan is found again by trying, for each first piece, the best second one of each half."""
    for given in BUY:
        prices = {name: given[name] for name in keys.SPLITS}

        def least(causes, left, prices=prices):
            if len(causes) == 1:
                return 0.0
            best = float("inf")
            for id in left:
                parts = [causes & keys.SPLITS[id], causes - keys.SPLITS[id]]
                if all(parts):
                    rest = [least(part, left - {id}) for part in parts]
                    best = min(best, prices[id] * len(causes) + sum(rest))
            return best

        assert answer("fair_plan", **given) == least(set(keys.CAUSES), set(prices)) / 4
        hindsight = answer("in_hindsight", **given)
        assert hindsight < answer("fair_plan", **given) < answer("cheapest_first", **given)
        chance = 1 - given["percent"] / 100
        assert answer("guess_below", **given) * chance == pytest.approx(given["ping"])


def test_limits_have_the_false_alarms_that_they_promise():
    for given in LIMIT:
        step, deviation, ranks = given["step"], given["deviation"], given["ranks"]
        steps = round(7 * 24 * 3600 / step)
        alarms = cost.false_alarms(answer("limit_for_one", **given), step, deviation, ranks, steps)
        assert alarms == pytest.approx(1, rel=1e-3)
        late = cost.false_alarms(answer("limit_for_smoother", **given), step + 45, deviation, ranks, steps)
        assert late == pytest.approx(1, rel=1e-3)


def test_a_test_that_clears_lets_one_in_a_hundred_pass():
    for given in TEST:
        right = answer("steps_to_clear", **given)
        assert (1 - 1 / given["one_in"]) ** right <= 0.01 < (1 - 1 / given["one_in"]) ** (right - 1)
        assert answer("steps_by_then", **given) / given["one_in"] == answer("corrupted_by_then", **given)


# What programs are compared with ------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [4, 6, 8])
@pytest.mark.parametrize("within", [False, True])
def test_who_was_stopped_is_at_fault(n, within):
    for rank, call, seed in itertools.product(range(n), range(1, 8), (1, 2)):
        if within and (rank % 2 == 0 or call == 4) and call in (1, 4, 5):
            continue  # the first of a chain leaves at once, and its partner is not held up in the call before
        still = reference.stand_still(n, {rank: (call, within)}, seed)
        assert still.culprits == [rank], (rank, call)
        assert (still.looks[rank]["inside"] >= 0) == within


@pytest.mark.parametrize("n", [4, 6])
def test_what_students_get_differs_and_has_the_culprits_that_it_says(n):
    seen = set()
    for seed in range(30):
        for hidden in (False, True):
            for what, still in reference.some_looks(n, seed, hidden):
                several = 2 if what.startswith("two") else 0 if "order" in what else 1
                assert len(still.culprits) == several, (seed, what)
                seen.add((what, tuple(still.culprits)))
                innocent = [r for r, look in enumerate(still.looks) if look["inside"] < 0 and r not in still.culprits]
                assert bool(innocent) == (what == "replicas that share nothing")
                circle = {tuple(edge) for edge in still.waits}
                assert ("order" in what) == any((b, a) in circle for a, b in circle)
    assert len(seen) > 5 * n


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6])
def test_the_slow_ranks_are_those_that_the_library_finds(n):
    for seed in range(10):
        for hidden in (False, True):
            for what, factors in reference.some_crawls(n, seed, hidden):
                tables = reference.crawl(n, factors, seed)
                own = [table[table[:, 0] == 0] for table in tables]
                spent = {r: float((t[:, 3] - t[:, 2]).sum()) for r, t in enumerate(own)}
                window = max(float(t[:, 3].max() - t[:, 2].min()) for t in own)
                slow = reference.slow_ranks(tables)
                if n > 3:
                    assert slow == list(find_slow(spent, window).slow), (what, seed)
                if what == "one slow rank":
                    assert slow == list(factors)
                if "no rank" in what:
                    assert slow == [] and (n < 4 or reference.slow_ranks(tables, levels=(0, 1)) != [])
                if what == "two slow ranks" and n > 3:
                    assert slow == sorted(factors)


def test_what_is_wrong_with_samples_makes_gradients_that_are_not_finite():
    for kind in ("label", "sample", "exact"):
        x, y = torch.ones(5, 3, 4, dtype=torch.float64), torch.full((5, 3), 0.5, dtype=torch.float64)
        weights = torch.ones(4, dtype=torch.float64)
        data = [{"x": x.clone(), "y": y.clone(), "weights": weights} for _ in range(2)]
        numbers.spoil(data[1], 2, kind)
        again, left_out = numbers.trained(data, 0.1)
        assert left_out == [[2, [1]]] and torch.isfinite(again).all()
        loss = (data[1]["x"][2] @ weights - data[1]["y"][2]).square().mean()
        assert bool(torch.isfinite(loss)) == (kind == "exact")
        gradient = numbers.gradient_of(data[1]["x"][2], data[1]["y"][2], weights)
        assert bool(torch.isnan(gradient).any()) == (kind != "sample")
        for mistake in ("without them", "zeros"):
            assert not torch.allclose(numbers.trained(data, 0.1, mistake)[0], again)


def sums(x, masks, way, attempt):
    """What each rank holds after the given lines of "Do it again"."""
    n = len(x)
    line = list(range(n)) if way == 0 else list(range(n))[::-1]

    def sent(value, rank, phase):
        value = value.clone()
        value[0] ^= masks[rank][way, attempt, phase]
        return value

    held = x[line[0]].clone()
    for before, rank in itertools.pairwise(line):
        held = sent(held, before, 0) + x[rank]
    got = {line[-1]: held}
    for place in range(n - 1):
        before = line[place - 1]
        got[line[place]] = sent(got[before], before, 1)
    return [got[rank] for rank in range(n)]


@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize("kind", ["clean", "transient", "persistent"])
@pytest.mark.parametrize("phase", [0, 1])
def test_flips_are_seen_where_they_should_be(n, kind, phase):
    for seed in range(20):
        masks, way = numbers.flips(n, kind, phase, seed)
        x = [torch.arange(3) + rank for rank in range(n)]
        right = torch.stack(x).sum(0)
        wrong = [
            [any(not torch.equal(got, right) for got in sums(x, masks, w, attempt)) for w in (0, 1)]
            for attempt in (0, 1)
        ]
        assert wrong[0] == [way == 0, way == 1]
        if kind != "clean":
            assert wrong[1] == (wrong[0] if kind == "persistent" else [False, False])
        if phase == 0 and kind != "clean":  # the whole job has the same wrong sum
            assert all(not torch.equal(got, right) for got in sums(x, masks, way, 0))
        assert all((mask[:, 2] != 0).all() for mask in masks)


def test_what_is_broken_and_what_happens_once_are_in_different_ways():
    for n, seed in itertools.product((2, 4), range(6)):
        ways = [numbers.flips(n, kind, 0, seed)[1] for kind in ("transient", "persistent")]
        assert sorted(ways) == [0, 1]


def test_bytes_of_sums_are_those_of_a_line_and_back():
    for n in (2, 3, 5):
        assert sum(numbers.bytes_of_sums(n, 8, 1)) == 2 * 8 * 2 * (n - 1)
