"""The fleet law, its regimes and its ceilings, against the textbook's numbers and against themselves."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from labkit import cost
from labkit.cost import textbook
from labkit.cost.units import DAY, GB, TB

seconds = st.floats(1e-6, 1e4)
devices = st.integers(1, 100_000)


@given(compute=seconds, size=devices, communication=seconds, synchronization=seconds, hidden=st.floats(0, 1))
def test_the_law_is_its_four_terms(compute, size, communication, synchronization, hidden):
    overlap = hidden * min(communication, compute / size)
    terms = compute, size, communication, synchronization, overlap
    step = cost.step_seconds(*terms)
    assert step == pytest.approx(compute / size + communication + synchronization - overlap)
    assert cost.speedup(*terms) == pytest.approx(compute / step)
    assert cost.scaling_efficiency(*terms) == pytest.approx(cost.speedup(*terms) / size)
    # The textbook's second form of the efficiency.
    lost = size * (communication + synchronization - overlap) / compute
    assert cost.scaling_efficiency(*terms) == pytest.approx(1 / (1 + lost))


def test_gpt2_on_eight_and_on_thirty_two_gpus():
    inside = textbook.ring_at(textbook.GPT2_GRADIENT, 8, textbook.NVLINK_ONE_DIRECTION).seconds
    assert round(cost.step_seconds(8 * 1.8, 8, inside), 4) == 1.8117
    assert round(100 * cost.scaling_efficiency(8 * 1.8, 8, inside), 2) == 99.36  # from rounded 1.8117: 99.35
    both = inside + textbook.ring_at(textbook.GPT2_GRADIENT, 32, textbook.TEN_GIGABIT).seconds
    assert round(cost.step_seconds(32 * 1.8, 32, both), 4) == 6.4617
    assert round(100 * cost.scaling_efficiency(32 * 1.8, 32, both), 2) == 27.86
    assert round(cost.speedup(32 * 1.8, 32, both), 2) == 8.91
    assert round(25 / cost.speedup(32 * 1.8, 32, both), 2) == 2.80
    assert cost.regime(1.8, inside) == "compute-bound" and cost.regime(1.8, both) == "communication-bound"


def test_the_textbook_hides_more_than_there_is_to_hide_behind():
    compute, raw = 2.1, 2 * 1023 / 1024 * 350 / 50
    assert round(raw, 1) == 14.0
    with pytest.raises(ValueError, match="overlap=10.5 s: at most 2.1 s"):
        cost.step_seconds(1024 * compute, 1024, 14.0, overlap=10.5)
    assert round(compute / (compute + 14.0 - 10.5), 3) == 0.375  # what it states
    backward = compute * 2 / 3
    assert round(100 * cost.scaling_efficiency(1024 * compute, 1024, 14.0, overlap=backward)) == 14


def test_like_for_like_without_overlap():
    assert round(100 * cost.scaling_efficiency(1024 * 2.1, 1024, 14.0), 1) == 13.0
    assert round(100 * cost.scaling_efficiency(1024 * 2.1, 1024, 1.75), 1) == 54.5


def test_one_device_has_nothing_to_communicate():
    assert cost.step_seconds(3, 1) == 3 and cost.speedup(3, 1) == cost.scaling_efficiency(3, 1) == 1


def test_the_ratio_of_the_law():
    assert cost.communication_ratio(8, 4, 2) == 1
    assert cost.communication_ratio(8, 8, 2) == 2


@pytest.mark.parametrize(
    ("terms", "name"),
    [
        ((3, 1, 1), "compute-bound"),
        ((1, 3, 1), "communication-bound"),
        ((1, 1, 3), "coordination-bound"),
        ((1, 1, 1), "compute-bound"),
        ((0, 1, 1), "communication-bound"),
    ],
)
def test_the_largest_term_names_the_regime(terms, name):
    assert cost.regime(*terms) == name


def test_thirty_percent_of_a_step_is_no_ceiling_of_three():
    assert cost.amdahl_ceiling(0.30) == pytest.approx(1 / 0.3)
    assert cost.communication_ceiling(0.30, 8) == pytest.approx(18.67, abs=0.01)
    # The step itself: 8 devices, 0.7 of it computing, 0.3 communicating.
    assert cost.speedup(8 * 0.7, 8, 0.3) == pytest.approx(5.6) and 5.6 > cost.amdahl_ceiling(0.30)


@given(fraction=st.floats(0.01, 0.9), size=st.integers(1, 1000))
def test_the_ceiling_is_what_the_speedup_tends_to(fraction, size):
    compute = size * (1 - fraction)  # of a step of one second
    assert cost.speedup(compute, 10**12, fraction) == pytest.approx(
        cost.communication_ceiling(fraction, size), rel=1e-6
    )
    # Amdahl: one device has the serial part too.
    assert (compute + fraction) / fraction == pytest.approx(cost.communication_ceiling(fraction, size) + 1)


def test_the_compute_of_a_step_of_the_textbook():
    assert cost.training_flops(175e9, 2e6) == pytest.approx(2.1e18)
    assert round(cost.training_seconds(175e9, 2e6, 1979e12 / 2, 1024), 1) == 2.1


def test_devices_for_a_deadline():
    assert [cost.devices_for(c, 10) for c in (0, 10, 10.1, 1000)] == [1, 1, 2, 100]


def test_the_three_signals():
    job, machine = cost.Training, cost.Machine()
    assert cost.distribution_signals(job(1e8, 1e9, 10 * GB)) == ()
    assert cost.distribution_signals(job(7e9, 1e9, 10 * GB)) == ("does not fit",)
    assert cost.distribution_signals(job(3e9, 1e12, 3 * TB)) == ("takes too long",)
    assert cost.distribution_signals(job(1e8, 1e9, 50 * TB)) == ("has too much data",)
    assert cost.distribution_signals(job(175e9, 300e9, 50 * TB)) == cost.SIGNALS
    assert cost.distribution_signals(job(4e9, 1, 1)) == () != cost.distribution_signals(job(4e9, 1, 1, 17 * GB))
    seconds = cost.training_seconds(1e9, 1e11, machine.flops_per_second)
    assert cost.distribution_signals(job(1e9, 1e11, 1), patience=1.01 * seconds) == ()
    assert cost.distribution_signals(job(1e9, 1e11, 1), patience=0.99 * seconds) == (cost.SIGNALS[1],)
    assert 30 * DAY > cost.training_seconds(1e9, 1e11, machine.flops_per_second)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: cost.step_seconds(0, 1), "compute .*0"),
        (lambda: cost.step_seconds(1, 0), "size .*0"),
        (lambda: cost.step_seconds(1, 2, -1), "communication .*-1"),
        (lambda: cost.step_seconds(1, 2, 0.1, 0, 0.2), r"overlap=0.2 s: at most 0.1 s .* computes for 0.5 s"),
        (lambda: cost.step_seconds(1, 2, 0.8, 0, 0.6), "at most 0.5 s"),
        (lambda: cost.amdahl_ceiling(0), "serial_fraction .*0"),
        (lambda: cost.communication_ceiling(1.5, 8), "fraction .*1.5"),
        (lambda: cost.regime(1, float("inf")), "communication .*inf"),
        (lambda: cost.devices_for(1, 0), "deadline .*0"),
        (lambda: cost.training_seconds(1, 1, 0), "flops_per_second .*0"),
        (lambda: cost.Machine(memory=0), "memory .*0"),
        (lambda: cost.Training(1, -2, 3), "tokens .*-2"),
        (lambda: cost.distribution_signals(cost.Training(1, 1, 1), patience=0), "patience .*0"),
    ],
)
def test_what_cannot_be_is_refused_by_name_and_value(call, named):
    with pytest.raises(ValueError, match=named):
        call()
