"""Keys of chapter 15: slips are told apart, known numbers come out, and the questions ask what they say."""

from __future__ import annotations

import itertools
import math

import pytest
from slips import every_draw, letters_have_reasons, tell_apart

from labkit import cost
from labkit.cost import planner
from labkit.grading.answers import find_key
from labkit.parallel import Layout

CHAPTER = "15_hybrid_parallelism"


def answer(name, **numbers):
    return find_key(CHAPTER, name, **numbers).answer


MESH = every_draw(dp=[8, 16], pp=[4, 8], cp=[2, 4], tp=[4, 8], rank=[165, 203, 238])
STAGE = every_draw(p=[5, 8, 10], d=[8, 16, 32], b=[4, 6])
USE = every_draw(seconds=[20, 22, 25], share=[70, 80], trillions=[2, 5, 15])
BYTES = every_draw(h=[4096, 5120, 6144], layers=[32, 40, 48], batch=[32, 64, 128])
PLANS = every_draw(gpus=[384, 768, 1536], heads=[40, 64, 96], layers=[48, 60, 96], batch=[512, 640, 896])
BY_NUMBERS = (
    (MESH, ("next_stage", "gradient_ranks", "gradient_groups")),
    (STAGE, ("state_gb", "activations_gb", "with_twice_the_stages")),
    (USE, ("mfu", "hfu", "mfu_if_kept", "days")),
    (BYTES, ("bytes_of_data", "bytes_of_both", "times_as_long", "sequences_where_equal")),
    (PLANS, ("all_products", "cuts_that_divide", "cuts_that_share", "plans_in_all")),
)


@pytest.mark.parametrize("name, draws", [(name, draws) for draws, names in BY_NUMBERS for name in names])
def test_no_slip_is_right_and_each_is_told_apart_by_some_numbers(name, draws):
    tell_apart(find_key(CHAPTER, name, **numbers) for numbers in draws)


@pytest.mark.parametrize("place", range(4))
def test_each_coordinate_has_its_slips(place):
    keys = [find_key(CHAPTER, "coordinates", **numbers).keys[place] for numbers in MESH]
    assert all(key.mark(key.answer).right for key in keys)
    assert not any(key.mark(wrong).right for key in keys for wrong, _ in key.slips)


def test_letters_have_a_reason_each():
    letters_have_reasons(find_key(CHAPTER, "which_make_it_fit"), "bd", "abcde")


@pytest.mark.parametrize("numbers", MESH[::5])
def test_a_rank_is_found_again(numbers):
    layout = Layout({axis: numbers[axis] for axis in ("dp", "pp", "cp", "tp")})
    assert numbers["rank"] < layout.size
    right = [layout.coordinates(numbers["rank"])[axis] for axis in layout.axes]
    assert find_key(CHAPTER, "coordinates", **numbers).mark(right).right
    assert answer("gradient_ranks", **numbers) == len(layout.group_of(numbers["rank"], "dp", "cp"))
    assert answer("gradient_groups", **numbers) == len(layout.groups("dp", "cp"))


@pytest.mark.parametrize("numbers", STAGE)
def test_what_makes_it_fit_does_and_the_others_do_not(numbers):
    p, d, b = (numbers[name] for name in "pdb")
    state, kept = answer("state_gb", **numbers), answer("activations_gb", **numbers)
    layer = kept / 80
    after = {
        "a": answer("with_twice_the_stages", **numbers), "b": state + kept / 2, "c": 16 * 70 / (8 * p * d) + kept,
        "d": state + kept * 2 / 34 + layer, "e": answer("state_gb", p=p, d=2 * d, b=b) + kept,
    }  # fmt: skip
    assert state + kept > 80
    assert "".join(letter for letter, held in after.items() if held <= 80) == "bd"


def test_the_planner_counts_operations_alike():
    model = planner.Model("70B", 80, 8192, 64, vocabulary=1, sequence=8192)
    each = model.step_flops(1) - 6 * model.active_params
    assert 12 * 80 * 8192 * 8192 == each
    assert answer("mfu", seconds=20, share=70, trillions=2) == pytest.approx(40.1, abs=0.05)


@pytest.mark.parametrize("numbers", BYTES[::4])
def test_fewer_bytes_take_longer_and_at_the_crossing_equally_long(numbers):
    data, both = answer("bytes_of_data", **numbers), answer("bytes_of_both", **numbers)
    assert answer("times_as_long", **numbers) > 1
    assert data < both or numbers["batch"] == 32
    equal = answer("sequences_where_equal", **numbers)
    assert equal > numbers["batch"]
    own = 2 * 7 / 8 * 2 * 12 * numbers["layers"] * numbers["h"] ** 2 / 8 / 1e9
    assert data / 50 == pytest.approx(own / 50 + (both - own) * equal / numbers["batch"] / 450)
    assert cost.ring_all_reduce_bytes(own, 1) == 0


@pytest.mark.parametrize("gpus", [384, 768, 1536])
def test_products_are_those_of_the_formula(gpus):
    twos = round(math.log2(gpus / 3))
    told = {"gpus": gpus, "heads": 64, "layers": 96, "batch": 640}
    assert answer("all_products", **told) == math.comb(twos + 2, 2) * 3
    counts = [answer(name, **told) for name in ("all_products", "cuts_that_divide", "cuts_that_share")]
    assert counts[0] > counts[1] > counts[2] > 0
    assert answer("plans_in_all", **told) % 6 == 0
    assert all(a != b for a, b in itertools.pairwise(counts))
