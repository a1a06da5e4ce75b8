"""The cost model's closed forms are what the simulator finds, wherever the cost model has one."""

from __future__ import annotations

import itertools

import pytest

import labkit
from labkit import cost
from labkit.parallel.pipeline import (
    Costs,
    gpipe,
    interleaved,
    naive,
    one_f_one_b,
    pipedream,
    simulate,
    v_half,
    validate,
    zb_h1,
    zb_h2,
    zb_v,
)

MAKERS = {f.__name__: f for f in (naive, gpipe, one_f_one_b, interleaved, zb_h1, zb_h2)}


@pytest.mark.parametrize("name", MAKERS)
def test_idle_time_and_step_are_those_of_the_simulator(name):
    chunk_counts = (2, 3) if name == "interleaved" else (1,)
    compared = 0
    for f, b, w in ((1, 1, 1), (1, 2, 1), (2, 1, 1), (1, 1, 3), (3, 1, 2), (2, 4, 3), (5, 3, 0), (1, 3, 2)):
        for p, m, v in itertools.product((1, 2, 3, 4, 8), (1, 2, 3, 4, 7, 8, 12, 16, 19), chunk_counts):
            try:
                idle = cost.pipeline_idle_seconds(name, p, m, f, b, w, v)
            except ValueError:
                continue  # said to have no closed form
            schedule = interleaved(p, m, v) if v > 1 else MAKERS[name](p, m)
            scale = 6e-9 / v  # of a chunk; in nanoseconds that stay whole
            line = simulate(schedule, Costs(f * scale, b * scale, w * scale))
            assert max(line.idle_inside) == pytest.approx(6 * idle), (p, m, v, f, b, w)
            try:
                seconds = cost.pipeline_step_seconds(name, p, m, f, b, w, v)
            except ValueError:
                continue
            assert line.makespan == pytest.approx(6 * seconds), (p, m, v, f, b, w)
            compared += 1
    assert compared > 100


@pytest.mark.parametrize(("stages", "rounds"), [(2, 1), (2, 3), (4, 2), (4, 4), (8, 2), (3, 2), (1, 2)])
def test_messages_that_nothing_hides_are_those_of_the_simulator(stages, rounds):
    """Messages far shorter than a pass: how many of them a step is longer by."""
    m, hop = stages * rounds, 1e-3
    for name, chunks in (("gpipe", 1), ("one_f_one_b", 1), ("interleaved", 2), ("interleaved", 4), ("zb_h1", 1),
                         ("zb_h2", 1), ("naive", 1)):  # fmt: skip
        if (name.startswith("zb") and rounds == 1) or (chunks > 1 and stages == 1):
            continue
        made = interleaved(stages, m, chunks) if chunks > 1 else MAKERS[name](stages, m)
        seconds = Costs(1 / chunks, 1 / chunks, 1 / chunks)
        longer = simulate(made, seconds, labkit.Link(latency=hop)).seconds - simulate(made, seconds).seconds
        assert longer / hop == pytest.approx(cost.pipeline_exposed_hops(name, stages, m, chunks), abs=1e-6), name


def test_bubbles_are_those_of_the_simulator():
    for p, m in itertools.product((1, 2, 4, 8), (1, 4, 8, 16)):
        line = simulate(one_f_one_b(p, m), Costs(1e-9, 1e-9, 1e-9))
        assert line.bubble == pytest.approx(cost.bubble_fraction(p, m))
        assert line.overhead == pytest.approx(cost.bubble_overhead(p, m))
        if m % p == 0:
            line = simulate(interleaved(p, m, 2), Costs(1e-9, 1e-9, 1e-9))
            assert line.bubble == pytest.approx(cost.bubble_fraction(p, m, 2))
            assert line.overhead == pytest.approx(cost.interleaved_bubble(p, m, 2))


def test_activations_in_flight_are_those_of_the_report():
    for p, m in itertools.product(range(1, 9), range(1, 21)):
        for make in (naive, gpipe, one_f_one_b, pipedream, zb_h1, zb_h2, zb_v, v_half):
            said = [mark.total for mark in cost.in_flight_by_rank(make.__name__, p, m)]
            assert said == list(validate(make(p, m)).peak), (make.__name__, p, m)
        for v in (2, 3):
            if m % max(1, m // p) == 0:
                said = [mark.total for mark in cost.in_flight_by_rank("interleaved", p, m, v)]
                assert said == list(validate(interleaved(p, m, v)).peak), (p, m, v)
