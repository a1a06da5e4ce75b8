"""Keys of chapter 16: slips are told apart, and numbers are those of caches, pools and rows that are counted out."""

from __future__ import annotations

import itertools
import math

import pytest
from slips import every_draw, tell_apart

from labkit import cost
from labkit.grading.answers import find_key

CHAPTER = "16_alignment"


def answer(name, **numbers):
    return find_key(CHAPTER, name, **numbers).answer


MODELS = every_draw(P=[34, 70, 180], R=[7, 13], b=[1, 2], free=[20, 30, 40])
CACHE = every_draw(n=[1024, 2048, 4096], B=[128, 256, 512], t=[4, 8], p=[2, 4])
DECODING = every_draw(F=[495, 989], W=[2.0, 3.35, 4.8], n=[256, 512], G=[4, 8, 16])
POOLS = every_draw(g=[65, 75, 85, 90], N=[16, 32, 64])
ROWS = every_draw(a=[3, 4, 6], b=[3, 5, 7], c=[20, 26, 31], P=[50, 70, 90])
KEYS = {
    "ppo_gb dpo_less_percent least_gpus gpus_of_four_pools": MODELS,
    "cache_gb gpu_gb wide_gpu_gb most_sequences": CACHE,
    "balance batch_in_eight_bits batch_with_context longest_context tokens_a_second": DECODING,
    "best_part best_utilization utilization_if_split_by_work longest_swap": [{}],
    "generators": POOLS,
    "padded_waste_percent bound_of_rows rows_of_whole_sequences packed_waste_percent half_is_attention": ROWS,
}
NAMED = [(name, draws) for names, draws in KEYS.items() for name in names.split()]


@pytest.mark.parametrize("name, draws", NAMED, ids=[name for name, _ in NAMED])
def test_no_slip_is_right_and_each_is_told_apart_by_some_numbers(name, draws):
    tell_apart(find_key(CHAPTER, name, **numbers) for numbers in draws)


@pytest.mark.parametrize("numbers", MODELS)
def test_that_many_gpus_hold_the_models_and_one_less_does_not(numbers):
    P, R, b = numbers["P"], numbers["R"], numbers["b"]
    models = [16 * P, b * P, b * R, 16 * R]
    assert answer("ppo_gb", **numbers) == pytest.approx(sum(models))
    each = 80 * (100 - numbers["free"]) / 100
    gpus = answer("least_gpus", **numbers)
    assert (gpus - 1) * each < sum(models) <= gpus * each
    least = [next(g for g in itertools.count(1) if g * each >= held) for held in models]
    assert answer("gpus_of_four_pools", **numbers) == sum(least)
    less = answer("dpo_less_percent", **numbers)
    assert sum(models) * (1 - less / 100) == pytest.approx(sum(models[:2]))


def test_a_cache_has_a_number_for_each_of_its_axes():
    numbers = {"n": 1024, "B": 256, "t": 8, "p": 4}
    assert answer("cache_gb", **numbers) == pytest.approx(2 * 80 * 8 * 128 * 1024 * 256 * 2 / 1e9)
    assert answer("gpu_gb", **numbers) == pytest.approx(answer("cache_gb", **numbers) / 32)
    assert answer("wide_gpu_gb", **numbers) == pytest.approx(answer("cache_gb", **numbers) / 8)


@pytest.mark.parametrize("numbers", CACHE[::5])
def test_that_many_sequences_fit_and_one_more_does_not(numbers):
    most, gpus = answer("most_sequences", **numbers), numbers["t"] * numbers["p"]

    def held(sequences):
        return 140e9 / gpus + 2 * 80 * 8 * 128 * numbers["n"] * sequences * 2 / gpus

    assert held(most) <= 80e9 < held(most + 1)


@pytest.mark.parametrize("numbers", DECODING)
def test_from_there_on_decoding_is_bound_by_computing(numbers):
    F, W, n = numbers["F"] * 1e12, numbers["W"] * 1e12, numbers["n"]

    def waits(batch, context, itemsize):
        computing = cost.decoding_flops(70e9, batch, context, 80, 8192) / F
        return cost.decoding_bytes(70e9, batch, context, 80, 1024, itemsize) / W > computing

    for batch, context, itemsize in (
        (answer("batch_in_eight_bits", **numbers), 0, 1), (answer("batch_with_context", **numbers), n, 2),
    ):  # fmt: skip
        assert waits(math.floor(batch * 0.999), context, itemsize)
        assert not waits(math.ceil(batch * 1.001), context, itemsize)
    longest = answer("longest_context", **numbers)
    assert not waits(10**6, int(longest * 0.99), 2) and waits(10**9, int(longest * 1.01), 2)
    assert answer("tokens_a_second", **numbers) == pytest.approx(numbers["G"] * W / 140e9)


@pytest.mark.parametrize("G, T, N", [(6, 4, 12), (9, 1, 32), (5, 5, 8)])
def test_formulas_of_pools_are_those_of_their_times(G, T, N):
    def value(name):
        text = answer(name).replace("^", "**")
        return eval(text, {"sqrt": math.sqrt, "G": G, "T": T, "N": N})

    def seconds(part):
        return G / (N * part) + T / (N * (1 - part))

    best = value("best_part")
    assert seconds(best) < min(seconds(best - 1e-3), seconds(best + 1e-3))
    assert value("best_utilization") == pytest.approx((G + T) / (N * seconds(best)))
    assert value("best_utilization") == pytest.approx(cost.separate_utilization_limit(G / (G + T)))
    assert value("utilization_if_split_by_work") == pytest.approx((G + T) / (N * seconds(G / (G + T))))
    assert cost.colocated_seconds(G, T, N, value("longest_swap")) == pytest.approx(seconds(best))


@pytest.mark.parametrize("numbers", POOLS)
def test_no_other_whole_number_of_generators_is_faster(numbers):
    g, N = numbers["g"], numbers["N"]
    assert answer("generators", **numbers) == min(range(1, N), key=lambda x: g / x + (100 - g) / (N - x))


@pytest.mark.parametrize("numbers", ROWS[::3])
def test_whole_sequences_fit_into_that_many_rows_and_not_into_one_less(numbers):
    counts = (numbers["a"], numbers["b"], numbers["c"])
    full = [
        (x, y, z) for x in range(2) for y in range(3) for z in range(7)
        if 1200 * x + 900 * y + 300 * z <= 2048 and 1200 * x + 900 * y + 300 * (z + 1) > 2048
    ]  # fmt: skip
    reached, rows = {counts}, 0  # what may be left after so many rows
    while (0, 0, 0) not in reached:
        reached = {tuple(max(0, left - took) for left, took in zip(one, row, strict=True)) for one in reached
                   for row in full}  # fmt: skip
        rows += 1
    assert answer("rows_of_whole_sequences", **numbers) == rows
    tokens = sum(length * count for length, count in zip((1200, 900, 300), counts, strict=True))
    bound = answer("bound_of_rows", **numbers)
    assert (bound - 1) * 2048 < tokens <= bound * 2048 and bound <= rows
    assert answer("packed_waste_percent", **numbers) == pytest.approx(100 - 100 * tokens / (2048 * rows))
    assert answer("padded_waste_percent", **numbers) == pytest.approx(100 - 100 * tokens / (1200 * sum(counts)))


@pytest.mark.parametrize("P", [50, 70, 90])
def test_there_attention_takes_half(P):
    n = answer("half_is_attention", a=3, b=3, c=20, P=P)
    assert cost.sequence_flops(n, P * 1e9, 80, 8192) == pytest.approx(2 * 6 * P * 1e9 * n)
