"""Keys of chapter 14: slips are told apart, and numbers are those of listed formats, real sums and real casts."""

from __future__ import annotations

import pytest
import torch
from slips import every_draw, letters_have_reasons, tell_apart

from labkit import cost
from labkit.grading.answers import find_key
from labkit.optim.precision import E4M3, E5M2, Format, from_parts, quantize, round_to

CHAPTER = "14_low_precision"


def answer(name, **numbers):
    return find_key(CHAPTER, name, **numbers).answer


FORMAT = every_draw(e=[4, 5, 6], m=[2, 3, 4, 5])
WORTH = every_draw(P=[7, 13, 70], B=[32, 64, 128], a=[45, 55, 60], c=[10, 15, 20])
WINDOW = every_draw(a=[30, 60, 200], r=[1, 2, 3], g=[2, 4])
STILL = every_draw(p=[8, 11, 14], t=[3, 5, 6, 7, 12], L=[20, 50, 100], d=[3, 4, 5], k=[3, 4, 5, 7])
BYTES = every_draw(N=[4, 8, 16], n=[1, 2, 4], B=[32, 64, 128], us=[5, 10, 20], G=[25, 50], k=[20, 40])
KEYS = {
    "largest smallest how_many largest_with_one_nan whole_numbers": FORMAT,
    "held_gb step_percent times_as_many times_at_most percent_needed": WORTH,
    "highest_power lowest_power powers_of_e5m2 off_percent": WINDOW,
    "stands_at lost_percent largest_chunk updates_until": STILL,
    "sent_in_bf16 sent_in_fp8 times_faster even_bandwidth": BYTES,
}
NAMED = [(name, draws) for names, draws in KEYS.items() for name in names.split()]


@pytest.mark.parametrize("name, draws", NAMED, ids=[name for name, _ in NAMED])
def test_no_slip_is_right_and_each_is_told_apart_by_some_numbers(name, draws):
    tell_apart(find_key(CHAPTER, name, **numbers) for numbers in draws)


def test_letters_have_a_reason_each():
    letters_have_reasons(find_key(CHAPTER, "what_helps"), "ac", "abcde")


@pytest.mark.parametrize("numbers", FORMAT)
def test_a_format_has_the_numbers_that_its_codes_mean(numbers):
    for specials, last in (("ieee", "largest"), ("nan", "largest_with_one_nan")):
        values = Format("", numbers["e"], numbers["m"], specials).values().double()
        finite = values[values.isfinite()]
        assert answer(last, **numbers) == finite.max()
        if specials == "ieee":
            assert answer("smallest", **numbers) == finite[finite > 0].min()
            assert answer("how_many", **numbers) == len(finite.unique())
        whole = set(finite.tolist())
        assert answer("whole_numbers", **numbers) == next(n for n in range(10**6) if n + 1 not in whole)


@pytest.mark.parametrize("numbers", WINDOW)
def test_both_ends_of_the_window_do_and_the_next_powers_do_not(numbers):
    amax, small = numbers["a"] * 1e-6, numbers["a"] * 1e-6 / (1e3 * numbers["r"])

    def does(p, format):
        return amax * numbers["g"] * 2.0**p <= format.max and small * 2.0**p >= format.smallest_normal

    powers = [p for p in range(-60, 60) if does(p, E4M3)]
    assert powers == list(range(answer("lowest_power", **numbers), answer("highest_power", **numbers) + 1))
    assert len([p for p in range(-60, 60) if does(p, E5M2)]) == answer("powers_of_e5m2", **numbers)


@pytest.mark.parametrize("numbers", WINDOW)
def test_no_number_of_that_size_is_further_off(numbers):
    scale = 2.0 ** answer("highest_power", **numbers)
    x = numbers["a"] * 1e-6 / (1.6e4 * numbers["r"]) * scale
    assert x < E4M3.smallest_normal
    step = E4M3.smallest
    halfway = torch.arange(0.5, 9) * step  # the worst numbers: just between two
    worst = (round_to(halfway, E4M3) - halfway).abs().max().item()
    assert answer("off_percent", **numbers) == pytest.approx(100 * worst / x)


@pytest.mark.parametrize("p, t", [(p, t) for p in (8, 11) for t in (3, 5, 6, 7, 12)])
def test_a_sum_that_is_added_up_stands_still_there(p, t):
    mine = Format("", 8, p - 1)
    total, before = torch.tensor(float(t)), torch.tensor(0.0)
    while total != before:
        total, before = round_to(total + t, mine), total
    assert total == answer("stands_at", p=p, t=t, L=20, d=3, k=3)


@pytest.mark.parametrize("p, d", [(8, 3), (8, 5), (11, 4)])
def test_a_small_term_is_kept_after_so_many_large_ones_and_lost_after_one_more(p, d):
    mine = Format("", 8, p - 1)
    most = answer("largest_chunk", p=p, t=3, L=20, d=d, k=3)
    for terms, kept in ((most, True), (most + 1, False)):
        total = torch.tensor(0.0)
        for _ in range(terms - 1):
            total = round_to(total + 2.0**d, mine)
        assert (round_to(total + 1.0, mine) != total) == kept


@pytest.mark.parametrize("k", [3, 4, 5, 7])
def test_the_cast_of_the_master_changes_after_so_many_updates(k):
    master, count = torch.tensor(1.0), 0
    while master.bfloat16() == 1:
        master, count = master + k * 1e-4, count + 1
    assert count == answer("updates_until", p=8, t=3, L=20, d=3, k=k)


def test_a_long_sum_of_ones_loses_so_much():
    total = torch.tensor(0.0)
    for _ in range(2000):  # after 256 nothing changes
        total = round_to(total + 1.0, Format("", 8, 7))
    assert answer("lost_percent", p=8, t=3, L=20, d=3, k=3) == pytest.approx(100 * (1 - total.item() / 20_000))


def test_bytes_of_a_part_are_those_of_a_packed_tensor_and_times_those_of_the_ring():
    numbers = {"N": 4, "n": 1, "B": 64, "us": 5, "G": 25, "k": 20}
    part = torch.randn(640, generator=torch.Generator().manual_seed(1))
    packed = quantize(part, E4M3, 64)
    assert torch.equal(from_parts(packed.parts(), E4M3, part.shape, 64, "float32").wide(), packed.wide())
    share = packed.nbytes / 640
    assert answer("sent_in_fp8", **numbers) == pytest.approx(6 * 1e6 / 4 * share / 1e6)
    assert answer("held_gb", P=7, B=64, a=45, c=10) == pytest.approx(7 * (7 + 2 * share))
    times = [cost.ring_all_reduce_time(1e6 * each, 4, 5e-6, 1 / 25e9) for each in (2, share)]
    assert answer("times_faster", **numbers) == pytest.approx(times[0] / times[1])
    even = 1 / (answer("even_bandwidth", **numbers) * 1e9)
    wide, narrow = (cost.ring_all_reduce_time(1e6 * each, 4, 5e-6, even) for each in (2, share))
    assert wide == pytest.approx(narrow + 20e-6)


@pytest.mark.parametrize("numbers", WORTH[::5])
def test_a_step_is_the_sum_of_what_is_left_of_its_parts(numbers):
    a, c = numbers["a"], numbers["c"]

    def step(products, messages, faster=2.0):
        return products / faster + messages / 2 + 100 - products - messages

    assert answer("step_percent", **numbers) == pytest.approx(step(a, c))
    assert answer("times_as_many", **numbers) == pytest.approx(100 / step(a, c))
    assert answer("times_at_most", **numbers) == pytest.approx(100 / step(a, c, float("inf")))
    assert 100 / step(answer("percent_needed", **numbers), c) == pytest.approx(1.5)
