"""How often large jobs fail: the sources' numbers, and the two ways to say the same."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, strategies as st

from labkit import cost


def test_a_hundred_nodes_of_the_textbook():
    assert round(100 * (1 - cost.survival(0.999, 100)), 2) == 9.52
    assert round(cost.mtbf_from_survival(0.999, 100), 3) == 9.995


def test_a_thousand_and_twenty_four_gpus():
    assert round(cost.mtbf_of(50_000, 1024), 2) == 48.83


def test_the_interruptions_of_llama_3():
    every = cost.observed_mtbf(419, 54 * 24)
    assert round(every, 2) == 3.09
    assert round(cost.unit_mtbf_of(every, 16_384)) == 50_677  # as good as the textbook's 50,000 h
    assert round(60 * cost.mtbf_of(cost.unit_mtbf_of(every, 16_384), 100_000), 1) == 30.4


def test_eighteen_minutes_at_a_hundred_thousand_gpus_does_not_follow_from_the_papers_own_rate():
    per_day = 2.3 / 1000 * 100_000 / 8  # 2.3 interruptions a day for 1,000 servers of 8 GPUs
    assert round(24 * 60 / per_day, 1) == 50.1


@given(p=st.floats(0.9, 0.999999), size=st.integers(1, 10_000), hours=st.floats(0, 100))
def test_survival_and_time_between_failures_say_the_same(p, size, hours):
    mtbf = cost.mtbf_from_survival(p, size)
    assert cost.survival_hours(mtbf, hours) == pytest.approx(cost.survival(p, size, hours), rel=1e-6)
    assert mtbf == pytest.approx(cost.mtbf_of(cost.mtbf_from_survival(p), size))
    assert cost.unit_mtbf_of(mtbf, size) == pytest.approx(cost.mtbf_from_survival(p))


def test_the_ends():
    assert cost.survival(1, 10**6) == 1 and cost.mtbf_from_survival(1, 10**6) == math.inf
    assert cost.survival(0, 1) == 0 == cost.mtbf_from_survival(0)
    assert cost.survival(0.5, 3, hours=0) == 1 == cost.survival_hours(10, 0)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: cost.survival(1.1, 2), "unit_survival .*1.1"),
        (lambda: cost.survival(0.9, 2, -1), "hours .*-1"),
        (lambda: cost.mtbf_of(0, 2), "unit_mtbf .*0"),
        (lambda: cost.mtbf_of(1, 0), "size .*0"),
        (lambda: cost.mtbf_from_survival(-0.1), "unit_survival .*-0.1"),
        (lambda: cost.survival_hours(math.nan, 1), "mtbf .*nan"),
        (lambda: cost.observed_mtbf(0, 24), "interruptions .*0"),
        (lambda: cost.unit_mtbf_of(1, 1.5), "size .*1.5"),
    ],
)
def test_what_cannot_be_is_refused_by_name_and_value(call, named):
    with pytest.raises(ValueError, match=named):
        call()
