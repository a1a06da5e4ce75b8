"""Checkpoint intervals and what they cost: the closed forms against each other, and against drawn failures."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, strategies as st

from labkit import cost

ratios = st.floats(1e-8, 5.0)  # write over mtbf


def least(function, low, high):
    """Where a function with one minimum is least, by golden sections."""
    g = (math.sqrt(5) - 1) / 2
    a, b = low, high
    while b - a > 1e-12 * high:
        c, d = b - g * (b - a), a + g * (b - a)
        a, b = (a, d) if function(c) < function(d) else (c, b)
    return (a + b) / 2


@pytest.mark.parametrize("write", [1e-4, 0.01, 0.3, 1, 4])
@pytest.mark.parametrize("restart", [0, 0.5])
def test_the_best_interval_is_where_the_exact_tax_is_least(write, restart):
    found = least(lambda x: cost.checkpoint_tax(x, write, 1, restart).of_useful, 1e-6, 1 + 5 * write)
    assert cost.best_interval(write, 1) == pytest.approx(found, rel=1e-5)  # also with a restart: it moves nothing


@given(write=ratios, mtbf=st.floats(1e-3, 1e6))
def test_the_best_interval_solves_its_equation_and_scales(write, mtbf):
    x = cost.best_interval(write * mtbf, mtbf) / mtbf
    assert 0 < x < 1
    assert 1 - x == pytest.approx(math.exp(-x - write), rel=1e-9)
    assert x == pytest.approx(cost.best_interval(write, 1), rel=1e-6)


@pytest.mark.parametrize(("write", "apart"), [(1e-4, 1e-7), (0.01, 2e-5), (0.1, 5e-4), (0.5, 6e-3), (1.9, 0.06)])
def test_the_series_of_daly_is_close_to_the_exact_interval(write, apart):
    off = abs(cost.daly_higher_order_interval(write, 1) / cost.best_interval(write, 1) - 1)
    assert apart / 10 < off < apart
    assert off < abs(cost.young_interval(write, 1) / cost.best_interval(write, 1) - 1)  # better than first order


def test_daly_for_a_write_longer_than_the_time_between_failures():
    assert cost.daly_higher_order_interval(2, 1) == 1 == cost.daly_higher_order_interval(50, 1)
    assert cost.best_interval(50, 1) == pytest.approx(1)


@given(write=ratios, mtbf=st.floats(1e-3, 1e6), restart=st.floats(0, 10))
def test_young_is_the_minimum_of_the_first_order_and_dalys_first_order_is_young_without_restart(write, mtbf, restart):
    young = cost.young_interval(write * mtbf, mtbf)
    there = cost.first_order_tax(young, write * mtbf, mtbf)
    assert there.of_useful == pytest.approx(math.sqrt(2 * write))  # both terms are equal
    for factor in (0.99, 1.01):
        assert cost.first_order_tax(factor * young, write * mtbf, mtbf).of_useful > there.of_useful
    assert cost.daly_interval(write * mtbf, mtbf) == young
    assert cost.daly_interval(write * mtbf, mtbf, restart) >= young


def test_dalys_first_order_has_the_restart_in_it():
    assert cost.daly_interval(5, 90, 10) == cost.young_interval(5, 100)


def test_the_exact_tax_tends_to_the_first_order_and_is_above_it():
    for scale, apart in ((1, 0.5), (0.01, 0.04), (1e-4, 4e-3)):
        interval = cost.young_interval(0.1 * scale, 1)
        exact = cost.checkpoint_tax(interval, 0.1 * scale, 1, 0.05 * scale).of_useful
        first = cost.first_order_tax(interval, 0.1 * scale, 1, 0.05 * scale).of_useful
        assert 1 < exact / first < 1 + apart


def test_nothing_to_write_and_hardly_a_failure():
    assert cost.checkpoint_tax(1, 0, 1e12).of_useful == pytest.approx(5e-13, rel=1e-3)
    assert cost.checkpoint_tax(1, 0.5, 1e12).of_useful == pytest.approx(0.5)


def test_a_tax_of_useful_and_of_elapsed_time():
    tax = cost.Tax(1.0)
    assert (tax.of_elapsed, tax.goodput) == (0.5, 0.5)
    assert (cost.Tax(math.inf).of_elapsed, cost.Tax(math.inf).goodput) == (1, 0)
    assert (cost.Tax(0).of_elapsed, cost.Tax(0).goodput) == (0, 1)
    for u in (0.01, 0.336, 7):
        assert cost.Tax(u).of_elapsed + cost.Tax(u).goodput == pytest.approx(1)
    assert cost.checkpoint_tax(1e6, 1, 1).goodput == 0  # more than a float holds: it never gets there


@given(interval=st.floats(1e-6, 1e6))
def test_a_failure_loses_half_a_short_interval_and_never_more_than_the_time_between_failures(interval):
    lost = cost.lost_work(interval, 1)
    assert 0 < lost <= min(interval / 2, 1)
    assert cost.lost_work(interval, 1e9 * interval) == pytest.approx(interval / 2)
    assert cost.lost_work(1e9 * interval, interval) == pytest.approx(interval)


def test_lost_work_has_no_seam():
    below, above = cost.lost_work(0.9999e-3, 1), cost.lost_work(1.0001e-3, 1)
    assert above / below == pytest.approx(1.0001 / 0.9999, rel=1e-6)


@pytest.mark.parametrize(
    ("interval", "write", "mtbf", "restart"), [(49, 5, 240, 0), (49, 5, 240, 30), (30, 1, 20, 5), (171, 5, 2930, 60)]
)
def test_drawn_failures_agree_with_the_exact_form(interval, write, mtbf, restart):
    drawn = cost.simulate_checkpoints(interval, write, mtbf, restart, intervals=200, runs=300, seed=4)
    exact = cost.checkpoint_tax(interval, write, mtbf, restart).of_useful
    assert abs(drawn.tax.of_useful - exact) < 3.5 * drawn.error
    assert drawn.error < 0.03 * (1 + exact)
    per_run = 200 * interval * (1 + exact) / mtbf
    assert drawn.failures == pytest.approx(per_run, rel=0.05)


def test_drawing_is_seeded():
    one, again, other = (cost.simulate_checkpoints(10, 1, 50, runs=5, seed=s) for s in (1, 1, 2))
    assert one == again != other


def test_drawn_runs_find_the_interval_of_the_closed_forms():
    mtbf, write = 60.0, 6.0
    best = cost.best_interval(write, mtbf)
    work = 600 * best

    def drawn(interval):
        return cost.simulate_checkpoints(interval, write, mtbf, intervals=round(work / interval), runs=100, seed=1)

    there, short, long = drawn(best), drawn(best / 2.5), drawn(2.5 * best)
    for other in (short, long):
        assert other.tax.of_useful - there.tax.of_useful > 4 * math.hypot(other.error, there.error)


def test_an_asynchronous_checkpoint_by_the_first_order_and_drawn():
    interval, stall, write, mtbf = 20.0, 0.5, 10.0, 5000.0
    drawn = cost.simulate_checkpoints(interval, stall, mtbf, 5.0, background=write, intervals=500, runs=400, seed=3)
    first = cost.asynchronous_tax(interval, stall, write, mtbf, 5.0)
    assert abs(drawn.tax.of_useful - first.of_useful) < 4 * drawn.error + 0.03 * first.of_useful
    # The writing in the background counts: without it the form would be too low by more than the error.
    without = cost.asynchronous_tax(interval, stall, 0, mtbf, 5.0)
    assert drawn.tax.of_useful - without.of_useful > 5 * drawn.error
    # Synchronous, the same state costs much more.
    synchronous = cost.simulate_checkpoints(interval, stall + write, mtbf, 5.0, intervals=500, runs=50, seed=3)
    assert synchronous.tax.of_useful > 10 * drawn.tax.of_useful


def test_writings_in_the_background_wait_for_each_other():
    # Without failures: an interval of 1, a stall of 0.5 and a writing of 3 make each round 3.5, and the last one ends.
    slow = cost.simulate_checkpoints(1, 0.5, 1e15, background=3, intervals=10, runs=2)
    assert slow.tax.of_useful == pytest.approx((10 * 3.5 + 1 - 10) / 10)
    quick = cost.simulate_checkpoints(4, 0.5, 1e15, background=3, intervals=10, runs=2)
    assert quick.tax.of_useful == pytest.approx((10 * 4.5 + 3 - 40) / 40)


def test_a_tenth_of_the_stall():
    mtbf = 2930.0
    best = cost.asynchronous_interval(0.5, 5, mtbf)
    assert best == pytest.approx(cost.young_interval(5, mtbf) / math.sqrt(10))
    assert cost.asynchronous_interval(0.5, 100, mtbf) == 100  # a writing does not begin before the one before it ends
    taxes = [cost.asynchronous_tax(x, 0.5, 5, mtbf).of_useful for x in (0.9 * best, best, 1.1 * best)]
    assert taxes[1] == min(taxes)
    assert taxes[1] < 0.4 * cost.first_order_tax(cost.young_interval(5, mtbf), 5, mtbf).of_useful


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: cost.young_interval(0, 1), "write .*0"),
        (lambda: cost.young_interval(1, -2), "mtbf .*-2"),
        (lambda: cost.daly_interval(1, 1, -1), "restart .*-1"),
        (lambda: cost.daly_higher_order_interval(math.nan, 1), "write .*nan"),
        (lambda: cost.best_interval(1, 0), "mtbf .*0"),
        (lambda: cost.checkpoint_tax(0, 1, 1), "interval .*0"),
        (lambda: cost.checkpoint_tax(1, 1, 1, -1), "restart .*-1"),
        (lambda: cost.first_order_tax(1, 0, 1), "write .*0"),
        (lambda: cost.lost_work(1, math.inf), "mtbf .*inf"),
        (lambda: cost.Tax(-0.1), "of_useful .*-0.1"),
        (lambda: cost.Tax(math.nan), "of_useful .*nan"),
        (lambda: cost.simulate_checkpoints(1, -1, 1), "stall .*-1"),
        (lambda: cost.simulate_checkpoints(1, 1, 1, background=-1), "background .*-1"),
        (lambda: cost.simulate_checkpoints(1, 1, 1, runs=1), "runs must be at least 2"),
        (lambda: cost.simulate_checkpoints(1, 1, 1, intervals=0), "intervals .*0"),
        (lambda: cost.asynchronous_tax(5, 1, 6, 100), "interval=5 .*write=6"),
        (lambda: cost.asynchronous_interval(0, 1, 1), "stall .*0"),
        (lambda: cost.copy_seconds(1, 0), "bandwidth .*0"),
    ],
)
def test_what_cannot_be_is_refused_by_name_and_value(call, named):
    with pytest.raises(ValueError, match=named):
        call()
