"""Energy of moved bytes and the price of a run, with the textbook's numbers, right and wrong."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from labkit import cost
from labkit.cost import textbook
from labkit.cost.units import GB, HOUR

KW = 1000.0


@given(nbytes=st.floats(0, 1e15), picojoules=st.floats(0.1, 100), size=st.integers(1, 10**5))
def test_bits_times_picojoules(nbytes, picojoules, size):
    joules = cost.movement_joules(nbytes, picojoules)
    assert joules == pytest.approx(8 * nbytes * picojoules / 1e12)
    assert cost.movement_watts(nbytes, picojoules, size) == pytest.approx(size * joules)


def test_ten_thousand_gpus():
    assert 10_000 * 900 * GB == 9e15 and 10_000 * 50 * GB == 500e12  # "9 PB/s", "500 TB/s"
    nvlink = cost.movement_watts(900 * GB, cost.NVLINK_PICOJOULES, 10_000)
    infiniband = cost.movement_watts(50 * GB, cost.INFINIBAND_PICOJOULES, 10_000)
    assert nvlink == pytest.approx(540 * KW) and infiniband == pytest.approx(140 * KW)
    # 900 GB/s is both directions of NVLink, 50 GB/s one direction of NDR: like for like 270 and 140, or 540 and 280.
    assert 900 * GB == 2 * textbook.NVLINK_ONE_DIRECTION
    assert cost.movement_watts(textbook.NVLINK_ONE_DIRECTION, 7.5, 10_000) == pytest.approx(270 * KW)
    assert cost.movement_watts(2 * 50 * GB, 35, 10_000) == pytest.approx(280 * KW)


def test_a_gradient_of_gpt2():
    sent = cost.ring_all_reduce_bytes(textbook.GPT2_GRADIENT, 8)
    assert round(cost.movement_joules(sent, cost.NVLINK_PICOJOULES), 3) == 0.315
    assert round(cost.movement_joules(sent, cost.INFINIBAND_PICOJOULES), 2) == 1.47


# Napkin math 1.2 and 1.3: 32 GPUs on a slow network, or 8 that accumulate

STEPS = 50_000 / 32  # of 512 samples, for as many samples as 50,000 steps of 16
SCALED_OUT = STEPS * (1.8 + 5.25 / 450 + 5.8125 / 1.25)
ACCUMULATED = STEPS * cost.accumulated_step_seconds(1.8, 5.25 / 450, 4)


def test_both_runs_see_512_samples_a_step():
    assert cost.global_batch(16, 32) == cost.global_batch(16, 8, 4) == 512 and cost.global_batch(16, 8) == 128
    assert 50_000 * 1.8 == 25 * HOUR
    assert round(SCALED_OUT / HOUR, 2) == 2.80 and round(ACCUMULATED / HOUR, 2) == 3.13
    assert round(25 / 8, 1) == 3.1


def test_the_overhead_of_accumulation_is_twice_what_it_says():
    # "5.8 ms / (4 x 1800 ms) = 0.081 percent": 5.25 GB over 900 GB/s, both directions. Before that it had 11.7 ms.
    assert round(1000 * 5.25 / 900, 1) == 5.8 and round(1000 * 5.25 / 450, 1) == 11.7
    assert round(100 * 0.0058 / (4 * 1.8), 3) == 0.081
    assert round(100 * cost.accumulation_overhead(1.8, 5.25 / 450, 4), 3) == 0.162


def test_the_saving_does_not_follow_from_its_prices():
    accumulated, scaled_out = cost.price(25 / 8 * HOUR, 1, 128), cost.price(SCALED_OUT, 4, 128)
    assert accumulated == 400 and round(scaled_out) == 1436
    assert round(scaled_out - accumulated) == 1036 and round(1 - accumulated / scaled_out, 2) == 0.72
    # "Saves $2,621 (86.7 percent)": of $3,021, for which four nodes would have to run 5.9 h, and not 2.8.
    assert round(2621 / 0.867, -1) == 3020 and round(1 - 400 / 3021, 3) == 0.868
    assert round(3021 / (4 * 128), 1) == 5.9
    # The dearer run is the faster one, by a tenth.
    assert round(1 - SCALED_OUT / ACCUMULATED, 3) == 0.104


def test_five_prices_of_a_gpu_hour():
    # $13,638 a day for checkpoints every 15 minutes on 1,024 GPUs: 33.6 against 5.8 percent of the time.
    minutes, write = 60 * cost.mtbf_of(50_000, 1024), 5
    often, best = write / 15 + 15 / (2 * minutes), (2 * write / minutes) ** 0.5
    assert [round(100 * tax, 1) for tax in (often, best)] == [33.6, 5.8]
    checkpoints = 13_638 / ((often - best) * 24 * 1024)
    runs = [cost.price_per_gpu_hour(45_000, 18 * HOUR, 1024), cost.price_per_gpu_hour(22_000, 19 * HOUR, 512)]
    per_gpu = [128 / 8, 3, *runs, checkpoints]
    assert [round(dollars, 2) for dollars in per_gpu] == [16, 3, 2.44, 2.26, 2.0]


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: cost.movement_joules(-1, 7.5), "nbytes .*-1"),
        (lambda: cost.movement_joules(1, 0), "picojoules_per_bit .*0"),
        (lambda: cost.movement_watts(1, 7.5, 0), "size .*0"),
        (lambda: cost.movement_watts(-1, 7.5), "bytes_per_second .*-1"),
        (lambda: cost.price(-1, 1, 1), "seconds .*-1"),
        (lambda: cost.price(1, 0, 1), "nodes .*0"),
        (lambda: cost.price(1, 1, -2), "per_node_hour .*-2"),
        (lambda: cost.price_per_gpu_hour(1, 0, 1), "seconds .*0"),
    ],
)
def test_what_cannot_be_is_refused_by_name_and_value(call, named):
    with pytest.raises(ValueError, match=named):
        call()
