"""Failures drawn for a cluster: against closed forms, against counting, and what holds whatever is drawn."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from labkit import cost
from labkit.cost import FailureKind, llama3_kinds

MIXED = (FailureKind("one", 0.5, 1.5), FailureKind("tray", 0.3, 0.5, 4), FailureKind("brief", 0.2, 0.05, 2))


def within(estimate: cost.Estimate, value: float, errors: float = 4) -> bool:
    return abs(estimate.mean - value) <= errors * estimate.error


@pytest.mark.parametrize("start", ["empty", "steady"])
@pytest.mark.parametrize("days", [3, 5])
def test_time_above_agrees_with_the_closed_form(start, days):
    kinds = llama3_kinds(days)
    trace = cost.draw_failures(32_768, 15, 400, seed=3, kinds=kinds, start=start)
    assert within(trace.time_above(0.001), cost.time_above(0.001, 32_768, 15, kinds, start=start)) or (
        start == "steady" and days == 5 and trace.time_above(0.001).mean > 0.9997
    )


def test_the_number_in_repair_grows_from_an_empty_start_and_is_level_from_a_steady_one():
    kinds = llama3_kinds(5)
    empty, steady = (cost.draw_failures(32_768, 15, 400, 1, kinds=kinds, start=s) for s in ("empty", "steady"))
    for day in (0.1, 2, 4, 7, 14):
        growing = cost.Estimate.of(empty.failed_at(day))
        assert within(growing, cost.mean_failed(32_768, kinds, after_days=day)), day
        assert within(cost.Estimate.of(steady.failed_at(day)), cost.mean_failed(32_768, kinds)), day
    assert cost.mean_failed(32_768, kinds, after_days=5) == pytest.approx(cost.mean_failed(32_768, kinds))


def test_a_gpu_in_repair_does_not_fail():
    # Each GPU works for a day, then is repaired for half a day: a third is out, not the half of rate * repair.
    kinds = (FailureKind("all", 1.0, 0.5),)
    trace = cost.draw_failures(500, 60, 10, kinds=kinds, rate=1.0)
    lost = trace.gpu_days()["all"].mean / (500 * 60)
    assert lost == pytest.approx(cost.mean_failed(500, kinds, 1.0) / 500, rel=0.01) == pytest.approx(1 / 3, rel=0.01)
    assert trace.struck.mean() == pytest.approx(500 * 60 * (1 - lost), rel=0.01)  # only who works can fail


@given(seed=st.integers(0, 10**6), rate=st.floats(0, 3), start=st.sampled_from(["empty", "steady"]))
def test_no_gpu_is_out_twice_and_gpu_days_add_up(seed, rate, start):
    trace = cost.draw_failures(48, 4, 3, seed, rate=rate, kinds=MIXED, start=start)
    order = np.lexsort((trace.start, trace.gpu, trace.sample))
    sample, gpu, begin, end = (getattr(trace, name)[order] for name in ("sample", "gpu", "start", "end"))
    same = (sample[1:] == sample[:-1]) & (gpu[1:] == gpu[:-1])
    assert (begin[1:] >= end[:-1])[same].all()
    assert (begin < end).all() and (begin < 4).all() and (end > 0).all() and (0 <= gpu).all() and (gpu < 48).all()
    history = trace.history()
    np.testing.assert_allclose(np.bincount(history.sample, history.days, 3), 4)
    spent = {name: estimate.mean for name, estimate in trace.gpu_days().items()}
    assert math.fsum(spent.values()) == pytest.approx(48 * 4)
    assert history.mean(history.values).mean() * 4 == pytest.approx(48 * 4 - spent["healthy"])
    assert 0 <= history.values.min() and history.values.max() <= 48


@pytest.mark.parametrize("day", [0, 0.77, 2.5, 3.999])
def test_the_history_counts_what_the_rows_say(day):
    trace = cost.draw_failures(48, 4, 20, 5, rate=0.3, kinds=MIXED, start="steady")
    history = trace.history()
    at = (history.start <= day) & (day < history.start + history.days)
    assert history.values[at].tolist() == trace.failed_at(day).tolist()
    by_domain = trace.failed_by_domain(day, 8)
    assert by_domain.shape == (20, 6) and by_domain.sum(1).tolist() == trace.failed_at(day).tolist()
    assert by_domain.max() <= 8
    rows = zip(trace.sample, trace.gpu, trace.start, trace.end, strict=True)
    out = {gpu for sample, gpu, begin, end in rows if sample == 7 and begin <= day < end}
    slow = [sum(gpu // 8 == domain for gpu in out) for domain in range(6)]
    assert by_domain[7].tolist() == slow


def test_who_is_back_at_a_time_is_not_out_at_it():
    trace = cost.draw_failures(48, 4, 20, 5, rate=0.3, kinds=MIXED)
    history = trace.history()
    for sample, day in [(s, e) for s, e in zip(trace.sample, trace.end, strict=True) if e < 4][:20]:
        at = (history.sample == sample) & (history.start <= day) & (day < history.start + history.days)
        assert history.values[at].tolist() == [trace.failed_at(day)[sample]]


def test_failures_before_a_steady_start_are_not_counted_among_those_of_the_days():
    trace = cost.draw_failures(4096, 15, 50, start="steady")
    expected = (4096 - cost.mean_failed(4096, llama3_kinds())) * cost.LLAMA3_RATE * 15
    assert within(cost.Estimate.of(trace.struck), expected)


def test_a_blast_takes_the_neighbours_and_brings_them_back_together():
    kinds = (FailureKind("tray", 1.0, 0.5, 4),)
    trace = cost.draw_failures(64, 5, 30, rate=0.05, kinds=kinds)
    assert len(trace.gpu) == 4 * trace.struck.sum() > 0
    events: dict[tuple[int, float], list[int]] = {}
    for sample, gpu, start in zip(trace.sample, trace.gpu, trace.start, strict=True):
        events.setdefault((sample, start), []).append(int(gpu))
    for gpus in events.values():
        assert sorted(gpus) == list(range(min(gpus), min(gpus) + 4)) and min(gpus) % 4 == 0


def test_a_longer_repair_of_a_neighbour_keeps_a_gpu_out():
    # A brief failure of one GPU, then its tray: that GPU's second row begins when its first one ends.
    trace = cost.draw_failures(
        8, 200, 2, 4, rate=0.2, kinds=(FailureKind("a", 0.7, 3.0), FailureKind("b", 0.3, 4.0, 4))
    )
    order = np.lexsort((trace.start, trace.gpu, trace.sample))
    touching = trace.start[order][1:] == trace.end[order][:-1]
    assert touching.any()
    assert set(trace.kind[order][1:][touching]) == {1}  # only a neighbour's failure can strike a GPU in repair


def test_drawing_is_seeded_and_kinds_have_their_shares():
    one, again, other = (cost.draw_failures(4096, 15, 50, seed=s) for s in (1, 1, 2))
    assert one.start.tolist() == again.start.tolist() != other.start.tolist()
    assert (one.kind == 0).mean() == pytest.approx(0.78, abs=0.02)
    repair = one.end - one.start
    assert repair[one.kind == 0] == pytest.approx(5) and repair[one.kind == 1] == pytest.approx(1 / 8)


def test_nothing_fails_at_a_rate_of_nothing():
    trace = cost.draw_failures(64, 3, 4, rate=0)
    assert len(trace.gpu) == 0 and trace.peak().mean == 0 and trace.time_above(0).mean == 0
    assert trace.gpu_days()["healthy"].mean == 64 * 3
    assert cost.time_above(0, 64, 3, llama3_kinds(), rate=0) == 0


def test_an_estimate_is_the_mean_with_its_standard_error():
    found = cost.Estimate.of([1, 2, 3, 6])
    assert (found.mean, found.lowest, found.highest, found.samples) == (3, 1, 6, 4)
    assert found.error == pytest.approx(math.sqrt(14 / 3 / 4)) and found.deviation == pytest.approx(math.sqrt(14 / 3))
    assert str(found) == "3 ± 1 (1 to 6)"


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: cost.draw_failures(rate=-1), "rate .*-1"),
        (lambda: cost.draw_failures(gpus=0), "gpus .*0"),
        (lambda: cost.draw_failures(days=0), "days .*0"),
        (lambda: cost.draw_failures(samples=0), "samples .*0"),
        (lambda: cost.draw_failures(start="warm"), "'empty', 'steady', not 'warm'"),
        (lambda: cost.draw_failures(kinds=(FailureKind("a", 0.5, 1),)), "sum to 1, not 0.5"),
        (
            lambda: cost.draw_failures(gpus=30, kinds=(FailureKind("a", 1, 1, 4),)),
            "blast must divide gpus=30.* 3 and 5",
        ),
        (
            lambda: cost.draw_failures(gpus=24, kinds=(FailureKind("a", 0.5, 1, 4), FailureKind("b", 0.5, 1, 6))),
            "blast must divide largest_blast=6, and 4 does not; 3 and 6 do",
        ),
        (lambda: FailureKind("a", 1.5, 1), "share .*1.5"),
        (lambda: FailureKind("a", 1, -2), "repair_days .*-2"),
        (lambda: FailureKind("a", 1, 1, 0), "blast .*0"),
        (lambda: cost.mean_failed(8, llama3_kinds(blast=4)), "'hardware', 'software'.* draw_failures"),
        (lambda: cost.draw_failures(64, 2, 2).failed_at(2), "day=2 must be below days=2"),
        (
            lambda: cost.draw_failures(64, 2, 2).failed_by_domain(1, 24),
            "gpus_per_domain must divide gpus=64.*16 and 32",
        ),
        (lambda: cost.draw_failures(64, 2, 2).time_above(2), "fraction .*2"),
        (lambda: cost.draw_failures(64, 2, 1).peak(), "at least 2 samples, not 1"),
    ],
)
def test_what_cannot_be_is_refused_by_name_and_value(call, named):
    with pytest.raises(ValueError, match=named):
        call()
