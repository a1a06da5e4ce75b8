"""Keys of chapter 5: slips are told apart, the sources' numbers come out, and formulas agree with runs and sums."""

from __future__ import annotations

import math

import pytest
import torch
from slips import every_draw, letters_have_reasons

import labkit
from labkit import collectives, cost
from labkit.cost.units import GB
from labkit.grading.answers import find_key

CHAPTER = "05_zero_and_fsdp"


STATE = every_draw(billions=[7, 8, 13, 30], N=[8, 16, 32, 64])
LIMITS = every_draw(N=[8, 16, 32, 64], percent=[80, 85, 90, 95])
BYTES = every_draw(gigabytes=[14, 26, 60], N=[4, 8, 16])
WORDS = every_draw(billions=[7, 13, 30, 70], N=[4, 8, 16])
LARGEST = every_draw(memory=[40, 80, 96], rest=[8, 16, 20], N=[4, 8, 16, 32])
SEVEN = every_draw(billions=[7, 8, 10, 12], rest=[6, 10, 14])
UNITS = every_draw(u0=[50, 64], u1=[30, 40], u2=[70, 80, 90], u3=[45, 60], N=[4, 8])
MESSAGES = every_draw(L=[24, 32, 48], P=[40, 50, 60], N=[8, 16, 32], alpha_us=[5, 10, 20], room=[400, 500, 700])
HYBRID = every_draw(gigabytes=[14, 26, 60], k=[4, 8], m=[3, 6, 12])
KEYS = {
    **dict.fromkeys(("gb_stage_1", "gb_stage_2", "gb_stage_3"), STATE),
    **dict.fromkeys(("times_less_1", "times_less_2", "ranks_for_most"), LIMITS),
    **dict.fromkeys(("sent_ddp", "sent_stage_2", "sent_stage_3"), BYTES),
    **dict.fromkeys(("as_described", "as_it_should_be"), WORDS),
    **dict.fromkeys(("largest_ddp", "largest_1", "largest_3"), LARGEST),
    **dict.fromkeys(("short_of", "fewest_ranks_1"), SEVEN),
    **dict.fromkeys(("gathered_alone", "gathered_ahead", "peak_backward"), UNITS),
    **dict.fromkeys(("messages_of_layers", "layers_in_a_unit", "saved_ms"), MESSAGES),
    **dict.fromkeys(("sent_inside", "sent_across", "leaves_a_node", "times_the_state"), HYBRID),
    "sent_accumulating": [{}],
}


@pytest.mark.parametrize("name", sorted(KEYS))
def test_no_slip_is_right_and_each_is_told_apart_by_some_numbers(name):
    """Two slips may meet in the numbers of one student; then the reason is that of one of them."""
    told, known = set(), set()
    for numbers in KEYS[name]:
        key = find_key(CHAPTER, name, **numbers)
        assert key.mark(key.answer).right
        known |= {why for _, why in key.slips}
        for wrong, why in key.slips:
            feedback = key.mark(wrong)
            assert not feedback.right and any(text in feedback.why for _, text in key.slips), (wrong, feedback.why)
            told |= {why} if why in feedback.why else set()
    assert told == known, known - told


def test_letters_have_a_reason_each():
    for name, right, letters in (
        ("what_is_wrong", "b", "abcd"),
        ("unit_of_everything", "c", "abcd"),
        ("what_helps", "bde", "abcdef"),
    ):
        letters_have_reasons(find_key(CHAPTER, name), right, letters)


def test_the_numbers_of_the_sources():
    seven = {"billions": 7, "N": 64}
    for stage, text in ((1, "29.3 GB"), (2, "15.5 GB"), (3, "1.75 GB")):
        assert find_key(CHAPTER, f"gb_stage_{stage}", **seven).mark(text).right
    assert find_key(CHAPTER, "times_less_1", N=64, percent=90).mark(3.82).right
    assert find_key(CHAPTER, "times_less_2", N=64, percent=90).mark(7.21).right
    assert "limit of many ranks" in find_key(CHAPTER, "times_less_1", N=64, percent=90).mark(4).why
    assert "limit of many ranks" in find_key(CHAPTER, "times_less_2", N=64, percent=90).mark(8).why
    assert find_key(CHAPTER, "short_of", billions=7, rest=0).mark("32 GB").right  # 112 GB on an 80 GB GPU
    assert find_key(CHAPTER, "largest_ddp", memory=80, rest=0, N=8).mark(5).right
    words = {"billions": 7, "N": 8}
    described, table = (find_key(CHAPTER, name, **words).answer for name in ("as_described", "as_it_should_be"))
    assert described == pytest.approx(1.5 * table) and table == pytest.approx(2 * 7 / 8 * 14)
    assert find_key(CHAPTER, "as_it_should_be", **words).mark(f"{described} GB").why.endswith("words come to.")


def test_the_fewest_ranks_are_the_fewest():
    for numbers in LIMITS:
        right = find_key(CHAPTER, "ranks_for_most", **numbers).answer
        saved = [16 / (2 + 14 / n) / 8 for n in (right, right - 1)]
        assert saved[0] >= numbers["percent"] / 100 - 1e-12 > saved[1]
    for numbers in SEVEN:
        right = find_key(CHAPTER, "fewest_ranks_1", **numbers).answer
        needs = [
            cost.zero_state_bytes(numbers["billions"] * 1e9, n, 1) / GB + numbers["rest"] for n in (right, right - 1)
        ]
        assert needs[0] <= 80 < needs[1] and right == math.floor(right)


def test_the_largest_model_fits_and_nothing_larger():
    for numbers in LARGEST:
        for name, stage in (("largest_ddp", 0), ("largest_1", 1), ("largest_3", 3)):
            billions = find_key(CHAPTER, name, **numbers).answer
            state = cost.zero_state_bytes(billions * 1e9, numbers["N"], stage) / GB
            assert state + numbers["rest"] == pytest.approx(numbers["memory"])


def test_a_unit_fits_and_one_layer_more_does_not():
    for numbers in MESSAGES:
        layers = find_key(CHAPTER, "layers_in_a_unit", **numbers).answer
        assert layers >= 1 and 3 * layers * numbers["P"] <= numbers["room"] < 3 * (layers + 1) * numbers["P"]


def test_units_by_hand():
    numbers = {"u0": 50, "u1": 40, "u2": 90, "u3": 45, "N": 4}
    assert find_key(CHAPTER, "gathered_alone", **numbers).mark("180 MB").right
    assert find_key(CHAPTER, "gathered_ahead", **numbers).mark("270 MB").right
    assert find_key(CHAPTER, "peak_backward", **numbers).mark(4 * 225 + 270 + 180).right


def passes(group, k, numbers):
    """k passes of ZeRO-3; the gradient is reduce-scattered in the last one."""
    stretch = torch.zeros(numbers // group.size)
    for _ in range(2 * k):
        collectives.all_gather(stretch, group, algorithm="ring")
    collectives.reduce_scatter(torch.zeros(numbers), group, algorithm="ring")


@pytest.mark.ranks
@pytest.mark.parametrize("N, k", [(2, 1), (4, 3)])
def test_accumulated_passes_on_real_ranks(N, k):
    run = labkit.launch(passes, N, k, 24)
    assert run.trace.bytes_sent() == [(2 * k + 1) * (N - 1) / N * 96] * N
    assert find_key(CHAPTER, "sent_accumulating").mark("M*(2*k+1) - M*(2*k+1)/N").right


def nodes(group, k, numbers):
    """A step of hybrid sharding: k ranks a node gather and reduce-scatter, then peers all-reduce their stretches."""
    here = group.rank // k * k
    inside = group.subgroup(range(here, here + k))
    peers = group.subgroup(range(group.rank % k, group.size, k))
    before = torch.zeros(numbers // k)
    for _ in range(2):
        collectives.all_gather(before, inside, algorithm="ring")
    stretch = collectives.reduce_scatter(torch.zeros(numbers), inside, algorithm="ring")
    collectives.all_reduce(stretch, peers, algorithm="ring")


@pytest.mark.ranks
def test_hybrid_on_real_ranks():
    k, m, numbers = 2, 3, 24
    run = labkit.launch(nodes, k * m, k, numbers)
    M = 4 * numbers
    told = {"gigabytes": 1, "k": k, "m": m}
    inside, across = (find_key(CHAPTER, name, **told).answer * M for name in ("sent_inside", "sent_across"))
    between = run.trace.bytes_between()
    for rank, row in enumerate(between):
        own = sum(nbytes for to, nbytes in enumerate(row) if to // k == rank // k)
        assert own == pytest.approx(inside) and sum(row) - own == pytest.approx(across)
    leaves = find_key(CHAPTER, "leaves_a_node", **told).answer
    assert leaves == pytest.approx(3 * (k * m - 1) / (k * m) / (2 * (m - 1) / m))
