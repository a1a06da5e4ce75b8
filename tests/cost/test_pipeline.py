"""Time and memory of pipelines: closed forms against schedules that are run, instruction by instruction."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from labkit import cost
from labkit.cost.units import MiB

from .pipelines import ORDERS, held, run

ranks = st.integers(1, 7)
microbatches = st.integers(1, 20)
seconds = st.integers(1, 9)
each = pytest.mark.parametrize("schedule", cost.PIPELINE_SCHEDULES)


def sizes(data, schedule):
    p, m, v = data.draw(ranks, label="p"), data.draw(microbatches, label="m"), 1
    if schedule == "interleaved":
        m, v = p * data.draw(st.integers(1, 4), label="rounds"), data.draw(st.integers(2, 4), label="v")
    return p, m, v


@each
@given(data=st.data(), f=seconds, b=seconds, w=seconds)
def test_idle_time_of_every_schedule(schedule, data, f, b, w):
    p, m, v = sizes(data, schedule)
    outcome = run(ORDERS[schedule](p, m, v), f, b, w, v)
    if schedule == "zb_h2" and m < 2 * p - 1 and w > b:
        with pytest.raises(ValueError, match=f"from {2 * p - 1} microbatches on, not for {m}: simulate it"):
            cost.pipeline_idle_seconds(schedule, p, m, f, b, w)
        return
    assert cost.pipeline_idle_seconds(schedule, p, m, f, b, w, v) == pytest.approx(max(outcome.idle))


@each
@given(data=st.data(), f=seconds, b=seconds, w=seconds)
def test_step_time_of_every_schedule(schedule, data, f, b, w):
    p, m, v = sizes(data, schedule)
    fewest = {"zb_h1": p if w > b else 1, "zb_h2": 2 * p - 1}.get(schedule, 1)
    if m < fewest:
        with pytest.raises(ValueError, match=f"from {fewest} microbatches on, not for {m}: simulate it"):
            cost.pipeline_step_seconds(schedule, p, m, f, b, w)
        return
    outcome = run(ORDERS[schedule](p, m, v), f, b, w, v)
    assert cost.pipeline_step_seconds(schedule, p, m, f, b, w, v) == pytest.approx(outcome.seconds)


@each
@given(data=st.data())
def test_what_every_rank_holds(schedule, data):
    p, m, v = sizes(data, schedule)
    marks = cost.in_flight_by_rank(schedule, p, m, v)
    assert [(mark.activations, mark.total) for mark in marks] == [held(order) for order in ORDERS[schedule](p, m, v)]


@pytest.mark.parametrize("name", cost.pipeline_memory.MEMORY_SCHEDULES)
def test_what_every_rank_of_the_schedules_that_run_holds(name):
    from labkit.parallel import pipeline

    for p, m in ((1, 3), (2, 1), (3, 2), (4, 4), (4, 5), (4, 7), (4, 12)):
        if name == "interleaved":
            if m % max(1, m // p) == 0:
                peak = pipeline.validate(pipeline.interleaved(p, m, 3)).peak
                assert [mark.total for mark in cost.in_flight_by_rank(name, p, m, 3)] == list(peak)
            continue
        peak = pipeline.validate(getattr(pipeline, name)(p, m)).peak
        assert [mark.total for mark in cost.in_flight_by_rank(name, p, m)] == list(peak)


@given(p=ranks, m=microbatches, v=st.integers(1, 4))
def test_a_fraction_of_the_step_and_of_the_work(p, m, v):
    part = cost.bubble_fraction(p, m, v)
    assert cost.interleaved_bubble(p, m, v) == pytest.approx(part / (1 - part))
    assert cost.bubble_overhead(p, m) == cost.interleaved_bubble(p, m, 1)
    assert cost.naive_bubble_fraction(p) == cost.bubble_fraction(p, 1) == pytest.approx(1 - 1 / p)
    step = cost.pipeline_step_seconds("gpipe", p, m, 1, 1, 1)
    assert 1 - 3 * m / step == pytest.approx(cost.bubble_fraction(p, m))


@given(p=ranks, v=st.integers(1, 4), bubble=st.floats(0.001, 0.999))
def test_microbatches_for_a_bubble(p, v, bubble):
    m = cost.microbatches_for(p, bubble, v)
    assert cost.bubble_fraction(p, m, v) <= bubble * (1 + 1e-9)
    assert m == 1 or cost.bubble_fraction(p, m - 1, v) > bubble * (1 - 1e-9)


def test_microbatches_for_a_bubble_that_is_met_exactly():
    assert cost.bubble_fraction(16, 135) == pytest.approx(0.1) and cost.microbatches_for(16, 0.1) == 135
    assert cost.microbatches_for(4, 1.0) == 1 and cost.microbatches_for(1, 0.01) == 1


def test_zero_bubble_fractions():
    assert cost.zero_bubble_fraction("zb_h1", 4, 8) == pytest.approx(1 / 9)
    assert cost.zero_bubble_fraction("zb_h2", 4, 8) == 0
    assert cost.zero_bubble_fraction("zb_h2", 4, 8, 2, 3, 1) > 0  # unequal passes leave a bubble
    assert cost.pipeline_idle_seconds("zb_h2", 3, 9, 2, 1, 2) == 0  # and none is below zero


def test_no_step_is_shorter_than_its_last_rank():
    # Where all ranks wait for each other after a step, zb_h2 with equal passes is not faster than zb_h1.
    equal = [cost.pipeline_step_seconds(schedule, 4, 8, 1, 1, 1) for schedule in ("zb_h1", "zb_h2")]
    assert equal == [27, 27]
    assert cost.pipeline_step_seconds("one_f_one_b", 4, 8, 1, 1, 1) == 33
    # With a long input gradient it is.
    assert cost.pipeline_step_seconds("zb_h1", 4, 8, 2, 3, 1) > cost.pipeline_step_seconds("zb_h2", 4, 8, 2, 3, 1)


def test_in_microbatches_of_a_whole_rank():
    assert cost.in_flight_microbatches("one_f_one_b", 4, 8) == [4, 3, 2, 1]
    assert cost.in_flight_microbatches("gpipe", 4, 8) == [8] * 4
    assert cost.in_flight_microbatches("zb_h1", 4, 8) == [4] * 4
    assert cost.in_flight_microbatches("zb_h2", 4, 8) == [7] * 4
    assert cost.in_flight_microbatches("zb_v", 4, 8) == [4] * 4
    assert cost.in_flight_microbatches("interleaved", 4, 8, 2) == [5.5, 4.5, 3.5, 2.5]
    for v in (1, 2, 3):  # p (1 + (p-1) / (p v)) on the first rank (Narayanan et al. 2021)
        first = cost.in_flight_microbatches("interleaved", 4, 16, v)[0]
        assert first == (pytest.approx(4 * (1 + 3 / (4 * v))) if v > 1 else 7)
    assert cost.weight_versions_by_rank(4, 8) == [4, 3, 2, 1]


SMALL = cost.Shape(1e6, 8, 64, 4, 32)


def test_bytes_of_what_is_held():
    layer = cost.tensor_parallel_activation_bytes(2, 32, 64, 1, 4)
    assert layer == cost.activation_bytes(2, 32, 64, 1, 4)
    held_by = cost.pipeline_activation_bytes_by_rank
    assert held_by(SMALL, "one_f_one_b", 4, 8, 2) == [n * 2 * layer for n in (4, 3, 2, 1)]
    assert held_by(SMALL, "gpipe", 4, 8, 2) == [16 * layer] * 4
    waits = cost.weight_gradient_activation_bytes(2, 32, 64, 1)
    assert held_by(SMALL, "zb_h1", 4, 8, 2) == [2 * ((4 - r) * layer + r * waits) for r in range(4)]
    assert held_by(SMALL, "zb_h2", 4, 8, 2)[3] == 2 * (layer + 6 * waits)
    assert held_by(SMALL, "interleaved", 4, 8, 2, chunks=2) == [n * layer for n in (11, 9, 7, 5)]
    assert held_by(SMALL, "zb_v", 4, 8, 2) == [8 * layer] * 4
    thin = held_by(SMALL, "one_f_one_b", 4, 8, 2, tensor=2, sequence_parallel=True, strategy="full")
    assert thin[0] == 8 * 2 * 2 * 32 * 64 / 2


@given(p=st.sampled_from([1, 2, 4, 8]), m=st.integers(8, 30))
def test_the_first_rank_of_1f1b_holds_as_much_at_any_depth(p, m):
    deep = cost.pipeline_activation_bytes_by_rank(SMALL, "one_f_one_b", p, m)
    assert deep[0] == cost.activation_bytes(1, 32, 64, 8, 4)  # one microbatch's, of all layers


def test_messages_and_bytes():
    assert cost.pipeline_messages_by_rank(4, 8) == [8, 16, 16, 8]
    assert cost.pipeline_messages_by_rank(4, 8, passes="forward") == [8, 8, 8, 0]
    assert cost.pipeline_messages_by_rank(4, 8, passes="backward") == [0, 8, 8, 8]
    assert cost.pipeline_messages_by_rank(4, 8, 2) == [24, 32, 32, 24]
    # Down and up again: the two stages in the middle of the model are on one rank.
    assert cost.pipeline_messages_by_rank(4, 8, 2, placement="v") == [16, 32, 32, 16]
    assert cost.pipeline_messages_by_rank(1, 8, 3) == [0]
    assert cost.pipeline_bytes_by_rank(1, 2048, 8192, 2, 1) == [32 * MiB, 32 * MiB]
    assert cost.pipeline_bytes_by_rank(2, 3, 5, 3, 7, itemsize=4) == [7 * 120, 14 * 120, 7 * 120]
    assert cost.tied_embedding_bytes(50257, 1600, 4) == 50257 * 1600 * 4


@given(p=ranks, m=microbatches, v=st.integers(1, 4), placement=st.sampled_from(["loop", "v"]))
def test_every_boundary_is_crossed_both_ways(p, m, v, placement):
    sent = cost.pipeline_messages_by_rank(p, m, v, placement=placement)
    there = [cost.pipeline_messages_by_rank(p, m, v, placement=placement, passes=w) for w in ("forward", "backward")]
    assert sent == [a + b for a, b in zip(*there, strict=True)] and sum(there[0]) == sum(there[1])
    inside = (v - 1 if placement == "v" or p == 1 else 0) + (v * (p - 1) if p == 1 else 0)
    assert sum(there[0]) == m * (p * v - 1 - inside)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: cost.bubble_fraction(0, 4), "stages .*0"),
        (lambda: cost.bubble_fraction(4, 0), "microbatches .*0"),
        (lambda: cost.bubble_fraction(4, 4.0), "microbatches .*4.0"),
        (lambda: cost.interleaved_bubble(4, 4, 0), "chunks .*0"),
        (lambda: cost.microbatches_for(4, 0), "bubble .*0"),
        (lambda: cost.pipeline_step_seconds("1f1b", 4, 8, 1, 1, 1), "one of 'naive', 'gpipe', .*'1f1b'"),
        (lambda: cost.pipeline_step_seconds("gpipe", 4, 8, -1, 1, 1), "forward .*-1"),
        (lambda: cost.pipeline_step_seconds("gpipe", 4, 8, 0, 0, 0), "above 0, not 0"),
        (lambda: cost.pipeline_step_seconds("gpipe", 4, 8, 1, 1, 1, 2), "chunks must be 1 for gpipe, not 2"),
        (lambda: cost.pipeline_step_seconds("interleaved", 4, 6, 1, 1, 1, 2), "and 6 is not: choose 4 or 8"),
        (lambda: cost.pipeline_step_seconds("interleaved", 4, 3, 1, 1, 1, 2), "and 3 is not: choose 4"),
        (lambda: cost.zero_bubble_fraction("gpipe", 4, 8), "one of 'zb_h1', 'zb_h2', not 'gpipe'"),
        (lambda: cost.in_flight_by_rank("zb", 4, 8), "schedule must be one of"),
        (lambda: cost.in_flight_by_rank("zb_h1", 4, 8, 2), "chunks cannot be chosen for zb_h1, and is 2"),
        (lambda: cost.in_flight_by_rank("interleaved", 3, 7, 2), "and 7 do not: take a multiple of 3"),
        (lambda: cost.pipeline_messages_by_rank(4, 8, placement="u"), "'loop', 'v', not 'u'"),
        (lambda: cost.pipeline_messages_by_rank(4, 8, passes="all"), "'both', not 'all'"),
        (lambda: cost.pipeline_bytes_by_rank(1, 0, 8, 4, 8), "sequence .*0"),
        (
            lambda: cost.pipeline_activation_bytes_by_rank(SMALL, "gpipe", 2, 2, tensor=3),
            "tensor must divide heads=4, and 3 .* 2 and 4 do",
        ),
        (lambda: cost.pipeline_activation_bytes_by_rank(SMALL, "gpipe", 2, 2, strategy="some"), "'some'"),
    ],
)
def test_what_cannot_be_is_refused_by_name_and_value(call, named):
    with pytest.raises(ValueError, match=named):
        call()
