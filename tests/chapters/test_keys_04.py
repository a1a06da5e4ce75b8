"""Keys of chapter 4: slips are told apart, the sources' numbers come out, and formulas agree with runs and sums."""

from __future__ import annotations

import math

import pytest
import torch
from slips import every_draw, tell_apart

import labkit
from labkit import collectives, cost
from labkit.cost.units import GB, MS
from labkit.grading.answers import find_key

CHAPTER = "04_data_parallelism"


UNEQUAL = every_draw(b0=[10, 12, 14], b1=[4, 5], b2=[1, 2], g0=[2, 3], g1=[7, 8], g2=[20, 30, 40])
BATCHES = every_draw(N=[16, 24, 32], b=[4, 8], k=[3, 5, 6], D=[100_000, 250_000], P=[2, 4])
SENT = every_draw(L=[160, 290, 400], M=[330, 510, 690], N=[8, 16, 32], B=[25, 40], alpha_us=[5, 10, 20])
SLOW = every_draw(N=[32, 48, 64, 96], percent=[1, 2], times=[2, 3])
PIECES = every_draw(k=[2, 4, 8], percent=[15, 20, 25, 30])
HIDDEN = every_draw(first=[8, 12, 16], others=[18, 20, 22])
COPIES = every_draw(billions=[7, 8, 13, 34], N=[16, 32, 64])
KEYS = [
    *((name, g) for name in ("right_gradient", "factor") for g in UNEQUAL),
    *((name, g) for name in ("global_batch", "updates", "passes_elsewhere") for g in BATCHES),
    *(("gigabytes_per_rank", g) for g in COPIES),
    *((name, g) for name in ("messages_one_by_one", "messages_in_buckets", "megabytes_sent", "saved_ms") for g in SENT),
    *(("exposed_ms", g) for g in HIDDEN),
    *((name, {"billions": b}) for name in ("scaled_ms", "share_percent") for b in (7, 13, 30, 70)),
    *((name, g) for name in ("messages_percent", "fewest_pieces") for g in PIECES),
    *((name, g) for name in ("slow_steps", "mean_step") for g in SLOW),
    *((name, {}) for name in ("ends_at", "times_faster")),
]


@pytest.mark.parametrize("name", sorted({name for name, _ in KEYS}))
def test_no_slip_is_right_and_each_is_told_apart_by_some_numbers(name):
    tell_apart(find_key(CHAPTER, name, **numbers) for same, numbers in KEYS if same == name)


def test_letters_have_a_reason_each():
    for name, right in (("same_everywhere", "abdg"), ("what_it_costs", "bc"), ("half_the_ranks", "c")):
        key = find_key(CHAPTER, name)
        assert key.mark(right).right
        for letter in set("abcdefg"[: max(map(ord, (*key.why, *right))) - ord("a") + 1]):
            wrong = letter if name == "half_the_ranks" else "".join(sorted(set(right) ^ {letter}))
            feedback = key.mark(wrong)
            assert feedback.right == (wrong == right) and feedback.why, (name, wrong)


def test_the_numbers_of_the_sources():
    assert find_key(CHAPTER, "gigabytes_per_rank", billions=7, N=64).mark("112 GB").right
    assert "is copied to every rank" in find_key(CHAPTER, "gigabytes_per_rank", billions=7, N=64).mark("1.75 GB").why
    assert find_key(CHAPTER, "scaled_ms", billions=70).mark("1.75 s").right
    assert "textbook's number" in find_key(CHAPTER, "scaled_ms", billions=70).mark("180 ms").why
    assert find_key(CHAPTER, "share_percent", billions=70).mark("42.2 %").right
    assert "textbook's share" in find_key(CHAPTER, "share_percent", billions=70).mark("7 %").why
    assert find_key(CHAPTER, "times_faster").mark(9.72).right
    stated = cost.textbook.ring_at(cost.textbook.GPT2_GRADIENT, 32, cost.textbook.TEN_GIGABIT)
    assert stated.seconds / MS == pytest.approx(4650) and stated.nbytes / GB == pytest.approx(5.8125)
    share = find_key(CHAPTER, "messages_percent", k=1, percent=15)
    assert share.answer == pytest.approx(100 * 4650 / 6450)  # and the step of the textbook is 11.7 ms longer
    expected = find_key(CHAPTER, "slow_steps", N=1000, percent=1, times=2)
    assert expected.answer == pytest.approx(99.9957, abs=1e-4)  # "roughly 10 GPUs straggle every step"


def step(group, ready, takes):
    """Buckets of `takes` ms each, on links of 1 GB/s without latency; they become ready at `ready` ms."""
    before, handles = 0, []
    for now, long in zip(ready, takes, strict=True):
        group.compute((now - before) * MS)
        before = now
        x = torch.zeros(round(long * 125_000 * group.size / (group.size - 1)))
        handles.append(collectives.all_reduce(x, group, "sum", algorithm="ring", async_op=True))
    for handle in handles:
        handle.wait()


FREE = labkit.Network(intra=labkit.Link(bandwidth=1 * GB, latency=0))


@pytest.mark.ranks
@pytest.mark.parametrize("numbers", HIDDEN[::4])
def test_what_sticks_out_on_the_virtual_clock(numbers):
    first, others = numbers["first"], numbers["others"]
    run = labkit.launch(step, 3, [10, 30, 45, 60], [first, others, others, others], clock="virtual", network=FREE)
    assert find_key(CHAPTER, "exposed_ms", **numbers).mark((run.trace.duration / MS) - 60).right


@pytest.mark.ranks
@pytest.mark.parametrize("T, B, c", [(40, 4, 3), (40, 4, 15), (40, 4, 10), (30, 5, 8)])
def test_the_end_of_equal_buckets_on_the_virtual_clock(T, B, c):
    run = labkit.launch(step, 4, [T / B * (i + 1) for i in range(B)], [c] * B, clock="virtual", network=FREE)
    assert run.trace.duration / MS == pytest.approx(max(T + c, T / B + B * c), rel=1e-4)
    assert find_key(CHAPTER, "ends_at").mark("T/B + c + (B-1)*max(T/B, c)").right


def test_a_slow_rank_in_many_drawn_steps():
    torch.manual_seed(1)
    for numbers in SLOW[::7]:
        slow = (torch.rand(20_000, numbers["N"]) < numbers["percent"] / 100).any(1).double().mean().item()
        assert 100 * slow == pytest.approx(find_key(CHAPTER, "slow_steps", **numbers).answer, abs=1.5)
        mean = 1 + slow * (numbers["times"] - 1)
        assert mean == pytest.approx(find_key(CHAPTER, "mean_step", **numbers).answer, abs=0.03)


def test_the_factor_makes_a_plain_average_right():
    for numbers in UNEQUAL[::7]:
        b, g = ([numbers[f"{x}{r}"] for r in range(3)] for x in "bg")
        average = sum(3 * size / sum(b) * mean for size, mean in zip(b, g, strict=True)) / 3
        assert average == pytest.approx(find_key(CHAPTER, "right_gradient", **numbers).answer)
        assert find_key(CHAPTER, "factor", **numbers).answer == pytest.approx(3 * b[0] / sum(b))


def test_fewest_pieces_is_the_fewest():
    for numbers in PIECES:
        pieces = find_key(CHAPTER, "fewest_pieces", **numbers).answer
        share = [100 * 4650 / (4650 + k * 1800) for k in (pieces, pieces - 1)]
        assert share[0] <= numbers["percent"] < share[1] and pieces == math.floor(pieces)
