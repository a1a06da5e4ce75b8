"""Keys of chapter 10 and what its checks compare with: slips are told apart, the sources' numbers come out, and
formulas agree with schedules that are validated and simulated."""

from __future__ import annotations

import itertools

import pytest
import torch
from slips import every_draw, letters_have_reasons, tell_apart

from labkit import cost
from labkit.chapters.c10_pipeline_parallelism import checks as reference, keys, runs
from labkit.grading.answers import find_key
from labkit.parallel.pipeline import (
    Costs,
    gpipe,
    interleaved,
    labels,
    one_f_one_b,
    simulate,
    validate,
    zb_h1,
    zb_h2,
)

CHAPTER = "10_pipeline_parallelism"
MS = 10**6


def answer(name, **numbers):
    return find_key(CHAPTER, name, **numbers).answer


BUBBLE = every_draw(p=[4, 6, 8, 12], m=[9, 14, 18, 24])
MORE = every_draw(p=[8, 12, 16], percent=[4, 5, 10])
WARMUP = every_draw(p=[6, 8, 12], r=[1, 2], few=[2, 3])
BYTES = every_draw(p=[8, 12, 16], m=[24, 32, 48], b=[1, 2])
ALL = every_draw(p=[4, 8, 16], m=[32, 64, 128])
CHUNKS = every_draw(p=[4, 6, 8], rounds=[2, 3], v=[2, 3, 4])
HALVES = every_draw(F=[12, 14], B=[13, 15, 17], W=[8, 9, 11], p=[4, 6, 8])
ZERO = every_draw(h=[4096, 5120, 8192], s=[4096, 8192, 16384])
MFU = every_draw(p=[6, 8, 12], m=[1, 2, 4], percent=[40, 45, 50])
UNEQUAL = every_draw(layers=[32, 40, 48], head=[3, 5, 6], m=[8, 12, 16])
DEPTH = every_draw(billions=[13, 20, 30], gigabytes=[10, 20, 30], batch=[128, 256, 512])
KEYS = [
    *((name, g) for name in ("bubble_alone", "bubble_cut", "speedup") for g in BUBBLE),
    *((name, g) for name in ("bubble_now", "microbatches_for", "times_gpipe", "times_1f1b") for g in MORE),
    *((name, g) for name in ("as_the_comment_says", "really_held", "held_of_few") for g in WARMUP),
    *((name, g) for name in ("one_in_flight", "first_rank_1f1b", "first_rank_gpipe") for g in BYTES),
    *(("first_rank_checkpointed", g) for g in BYTES),
    *((name, g) for name in ("all_stages_gpipe", "all_stages_1f1b", "times_less_of_the_claim") for g in ALL),
    *(("times_less_of_rank_0", g) for g in ALL),
    *((name, g) for name in ("bubble_of_ideal", "bubble_of_step", "messages_of_all") for g in CHUNKS),
    *(("times_more_memory", g) for g in CHUNKS),
    *((name, g) for name in ("idle_1f1b", "idle_h1", "idle_h2", "times_the_activations") for g in HALVES),
    *((name, g) for name in ("weight_share", "percent_h1", "percent_h2") for g in ZERO),
    *((name, g) for name in ("as_projected", "as_it_is", "enough_microbatches") for g in MFU),
    *((name, g) for name in ("step_of_equal_counts", "slowest_stage", "step_of_best_cut") for g in UNEQUAL),
    *((name, g) for name in ("fewest_stages", "bubble_shallow", "bubble_deep") for g in DEPTH),
]  # fmt: skip


@pytest.mark.parametrize("name", sorted({name for name, _ in KEYS}))
def test_no_slip_is_right_and_each_is_told_apart_by_some_numbers(name):
    tell_apart(find_key(CHAPTER, name, **numbers) for same, numbers in KEYS if same == name)


@pytest.mark.parametrize(
    "name, right, letters",
    [("why_one_more", "b", "abcd"), ("what_near_zero_takes", "bce", "abcde"), ("what_depth_changes", "ac", "abcde")],
)
def test_letters_have_a_reason_each(name, right, letters):
    letters_have_reasons(find_key(CHAPTER, name), right, letters)


def test_the_numbers_of_the_sources():
    for p, m, percent in ((4, 4, 42.9), (4, 8, 27.3), (4, 32, 8.57), (8, 32, 17.95), (16, 16, 48.4), (16, 32, 31.9)):
        assert find_key(CHAPTER, "bubble_cut", p=p, m=m).mark(f"{percent} %").right
    assert find_key(CHAPTER, "bubble_alone", p=4, m=32).mark("75 %").right
    assert "idle time with work" in find_key(CHAPTER, "bubble_cut", p=4, m=32).mark("9.4 %").why
    assert find_key(CHAPTER, "bubble_now", p=8, percent=5).mark("17.9 %").right
    assert answer("microbatches_for", p=8, percent=5) == 133
    assert find_key(CHAPTER, "as_it_is", p=8, m=1, percent=50).mark("6.25 %").right
    assert answer("as_projected", p=8, m=1, percent=50) == pytest.approx(
        26.67, rel=1e-3
    )  # 25.9 with what else it loses
    whole = 8 * answer("one_in_flight", p=8, m=32, b=4)
    assert whole == pytest.approx(1102, rel=1e-3)  # GB at 4 sequences of 2,048
    assert answer("first_rank_1f1b", p=8, m=32, b=4) == answer("first_rank_1f1b", p=16, m=32, b=4)
    assert answer("really_held", p=4, r=1, few=2) == answer("as_the_comment_says", p=4, r=1, few=2) + 1 == 3


def bubble(schedule):
    return 100 * simulate(schedule, Costs(1, 1, 1)).bubble


@pytest.mark.parametrize("numbers", BUBBLE[::3])
def test_bubbles_are_those_of_the_simulator(numbers):
    p, m = numbers["p"], numbers["m"]
    for make in (gpipe, one_f_one_b):
        assert bubble(make(p, m)) == pytest.approx(answer("bubble_cut", p=p, m=m))
        assert bubble(make(p, 1)) == pytest.approx(answer("bubble_alone", p=p, m=m))
    step = simulate(one_f_one_b(p, m), Costs(1, 1, 1)).seconds
    assert 3 * m * p / step == pytest.approx(answer("speedup", p=p, m=m))


def test_the_fewest_microbatches_are_the_fewest():
    for numbers in MORE:
        p, percent = numbers["p"], numbers["percent"]
        right = answer("microbatches_for", **numbers)
        assert cost.bubble_fraction(p, right) <= percent / 100 + 1e-12 < cost.bubble_fraction(p, right - 1)
    for numbers in MFU:
        p, right = numbers["p"], answer("enough_microbatches", **numbers)
        projected = answer("as_projected", **numbers) / numbers["percent"]
        left = [1 - cost.bubble_fraction(p, m) for m in (right, right - 1)]
        assert left[0] >= projected - 1e-12 > left[1]


def test_activations_are_those_that_validate_counts():
    for numbers in WARMUP:
        p, r, few = (numbers[name] for name in ("p", "r", "few"))
        assert answer("really_held", **numbers) == validate(one_f_one_b(p, 4 * p)).peak[r]
        assert answer("held_of_few", **numbers) == validate(one_f_one_b(p, few)).peak[r]
    for p, m in ((4, 32), (8, 32)):
        assert answer("all_stages_gpipe", p=p, m=m) == sum(validate(gpipe(p, m)).peak)
        assert answer("all_stages_1f1b", p=p, m=m) == sum(validate(one_f_one_b(p, m)).peak)
        held = [max(validate(make(p, m)).peak) for make in (gpipe, one_f_one_b)]
        assert answer("times_less_of_rank_0", p=p, m=m) == held[0] / held[1]


@pytest.mark.parametrize("numbers", CHUNKS[::5])
def test_interleaved_numbers_are_those_of_the_schedule(numbers):
    p, v = numbers["p"], numbers["v"]
    m = p * numbers["rounds"]
    schedule = interleaved(p, m, v)
    line = simulate(schedule, Costs(1, 1, 1))
    assert 100 * line.overhead == pytest.approx(answer("bubble_of_ideal", **numbers))
    assert 100 * line.bubble == pytest.approx(answer("bubble_of_step", **numbers))
    assert len(line.messages) == answer("messages_of_all", **numbers)
    assert validate(schedule).peak[0] / v / p == pytest.approx(answer("times_more_memory", **numbers))


@pytest.mark.parametrize("numbers", HALVES[::5])
def test_idle_times_are_those_of_the_simulator(numbers):
    p, m = numbers["p"], 3 * numbers["p"]
    costs = Costs(*(numbers[name] / 1000 for name in "FBW"))
    for name, make in (("idle_1f1b", one_f_one_b), ("idle_h1", zb_h1), ("idle_h2", zb_h2)):
        assert max(simulate(make(p, m), costs).idle_inside) / MS == pytest.approx(answer(name, **numbers))
    held = [validate(make(p, m)).peak[0] for make in (zb_h2, one_f_one_b)]
    assert answer("times_the_activations", **numbers) == held[0] / held[1]


def test_the_textbooks_pipeline_is_not_near_zero():
    for numbers in ZERO:
        layer = cost.layer_flops(1, numbers["s"], numbers["h"])
        costs = Costs(*(1e-9 * n for n in (layer.forward, layer.input_gradient, layer.weight_gradient)))
        assert layer.weight_gradient / layer.forward == pytest.approx(answer("weight_share", **numbers))
        for name, make in (("percent_h1", zb_h1), ("percent_h2", zb_h2)):
            line = simulate(make(*keys.CASE), costs)
            waits = max(range(4), key=lambda rank: line.idle_inside[rank])
            idle = line.idle_inside[waits]
            assert 100 * idle / (idle + line.busy[waits]) == pytest.approx(answer(name, **numbers), rel=1e-4)


@pytest.mark.parametrize("numbers", UNEQUAL[::4])
def test_unequal_stages_are_simulated_and_no_cut_is_better(numbers):
    layers, head, m = (numbers[name] for name in ("layers", "head", "m"))

    def step(stages):
        half = [t / 1000 for t in stages]
        return simulate(gpipe(4, m), Costs(half, half, half)).makespan / MS

    each = layers // 4
    assert step([each, each, each, each + head]) == pytest.approx(answer("step_of_equal_counts", **numbers))
    best = keys.best_cut(layers, head)
    assert sum(best) == layers + head and step(best) == pytest.approx(answer("step_of_best_cut", **numbers))
    cuts = itertools.product(range(each - 2, each + 4), repeat=3)
    slowest = min(max(*cut, layers - sum(cut) + head) for cut in cuts if sum(cut) <= layers)
    assert slowest == max(best) == answer("slowest_stage", **numbers)


def test_the_fewest_stages_fit_and_half_as_many_do_not():
    for numbers in DEPTH:
        p = answer("fewest_stages", **numbers)
        needs = [16 * numbers["billions"] / stages + numbers["gigabytes"] for stages in (p, p / 2)]
        assert needs[0] <= 80 < needs[1] and 64 % (4 * p) == 0
        rows = [
            cost.depth_tradeoff(cost.SHAPES["175B"], [stages], numbers["batch"], 1e15, gpus=64)[0]
            for stages in (p, 4 * p) if stages <= 96 and 96 % stages == 0
        ]  # fmt: skip
        for row, name in zip(rows, ("bubble_shallow", "bubble_deep"), strict=False):
            assert 100 * row.bubble == pytest.approx(answer(name, **numbers))


# What programs are compared with -----------------------------------------------------------------------------------


@pytest.mark.parametrize("p, m", [(1, 3), (3, 2), (4, 9), (5, 7)])
def test_1f1b_in_a_room_keeps_it_and_gets_faster_with_more(p, m):
    steps = []
    for room in range(1, p + 2):
        schedule = reference.limited_1f1b(p, m, room)
        assert list(validate(schedule, limit=room).peak) == [min(p - r, room, m) for r in range(p)]
        steps.append(reference.step_ms(schedule, *reference.UNITS))
    assert steps == sorted(steps, reverse=True)
    assert reference.step_ms(one_f_one_b(p, m), *reference.UNITS) == steps[p - 1] == steps[p]


def test_what_memory_buys_goes_from_h1_to_h2():
    for p, (f, b, w) in itertools.product((3, 4, 5), ((1, 1, 1), (3, 4, 2), (2, 2, 1))):
        for room, name in ((p, "zb_h1"), (2 * p - 1, "zb_h2")):
            idle = cost.pipeline_idle_seconds(name, p, 3 * p, f, b, w)
            assert reference.limited_idle(p, room, f, b, w) == pytest.approx(idle)


@pytest.mark.parametrize("make", [gpipe, one_f_one_b, zb_h1, zb_h2])
def test_clocks_without_a_mistake_are_the_simulators_and_with_one_they_are_not(make):
    rows = labels(make(4, 6))
    us = [{"F": 10 + rank, "B": 20 + 3 * rank, "I": 10 + 2 * rank, "W": 10 + rank} for rank in range(4)]
    timeline = runs.clocked(rows, us, 5)
    right = [runs.boxes(timeline, rank) for rank in range(4)]
    own = runs.mistaken(rows, us, 5, "none")
    assert all(torch.equal(a, b) for a, b in zip(own, right, strict=True))
    for mistake in runs.MISTAKES:
        wrong = runs.mistaken(rows, us, 5, mistake)
        assert not all(torch.equal(a, b) for a, b in zip(wrong, right, strict=True)), mistake


def test_what_must_have_come_follows_from_the_list():
    schedule = one_f_one_b(3, 4)
    first = list(runs.needs(schedule, 0))  # 0F0 0F1 0F2 0B0 0F3 ...: the fourth activation leaves after a gradient
    assert [(to, number) for to, number, _ in first] == [(1, k) for k in range(4)]
    assert [before for *_, before in first] == [[], [], [], [(1, 0)]]
    last = list(runs.needs(schedule, 2))
    assert last == [(1, k, [(1, k)]) for k in range(4)]
    middle = dict(((to, number), before) for to, number, before in runs.needs(schedule, 1))
    assert middle[0, 0] == [(0, 1), (2, 0)] and middle[2, 2] == [(0, 2), (2, 0)]
