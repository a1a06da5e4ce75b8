"""What a schedule takes: the closed forms where messages are free, and the virtual clock of a real run where not."""

from __future__ import annotations

import itertools

import pytest
import torch

import labkit
from labkit import Link, Network
from labkit.parallel.pipeline import (
    Costs,
    Message,
    gpipe,
    interleaved,
    naive,
    one_f_one_b,
    pipedream,
    simulate,
    v_half,
    validate,
    with_messages,
    zb_h1,
    zb_h2,
    zb_v,
)
from labkit.parallel.pipeline.traffic import carried, made_by, needed_by, sends
from labkit.wire.errors import RefusedError

STAGES, MICROBATCHES = range(1, 9), range(1, 21)


def costs(f, b, w, update=0):
    """In nanoseconds."""
    return Costs(f * 1e-9, b * 1e-9, w * 1e-9, update * 1e-9)


# -- closed forms ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("f, b", [(1, 2), (5, 3)])
def test_one_at_a_time_gpipe_and_1f1b_take_what_the_closed_forms_say(f, b):
    for p, m in itertools.product(STAGES, MICROBATCHES):
        assert simulate(naive(p, m), costs(f, b, 0)).makespan == m * p * (f + b)
        for make in (gpipe, one_f_one_b):
            line = simulate(make(p, m), costs(f, b - 1, 1))
            assert line.makespan == (m + p - 1) * (f + b)
            assert line.idle == ((p - 1) * (f + b),) * p
            assert line.idle_inside == tuple((p - 1 - r) * (f + b) for r in range(p))
            assert line.bubble == pytest.approx((p - 1) / (m + p - 1), abs=1e-12)
            assert line.overhead == pytest.approx((p - 1) / m, abs=1e-12)
            assert line.peak == validate(line.schedule).peak


def test_interleaving_divides_the_bubble_by_the_chunks():
    for p, m, v in itertools.product(STAGES, MICROBATCHES, (1, 2, 3, 4)):
        if v > 1 and m % max(1, m // p):
            continue
        f, b = 2, 3  # of a chunk
        line = simulate(interleaved(p, m, v), costs(f, b, 0))
        short = (v - 1) * max(0, p - m)
        assert line.makespan == (m * v + p - 1 + short) * (f + b), (p, m, v)
        if m >= p:
            assert line.overhead == pytest.approx((p - 1) / (v * m), abs=1e-12)


def test_zero_bubble_schedules_are_idle_for_what_their_docstrings_say_and_only_under_those_conditions():
    for f, b, w in itertools.product((1, 2, 3, 4), repeat=3):
        for p, m in itertools.product((2, 3, 5), (1, 2, 3, 5, 9, 13)):
            work = m * (f + b + w)
            line = simulate(zb_h1(p, m), costs(f, b, w))
            if m >= p:
                holds = line.idle_inside == tuple((p - 1 - r) * (f + b - w) for r in range(p))
                assert holds == (w <= f), (f, b, w, p, m)
            if w <= f:
                assert line.idle_inside[0] == (p - 1) * (f + b) - (min(m, p) - 1) * w
                assert m < p or line.makespan == work + (p - 1) * max(f, f + b - w)
            line = simulate(zb_h2(p, m), costs(f, b, w))
            if m >= 2 * p - 1:
                holds = line.idle_inside == tuple((p - 1 - r) * (f + b - 2 * w) for r in range(p))
                assert holds == (w <= f and 2 * w <= f + b), (f, b, w, p, m)
                assert not holds or line.makespan == work + (p - 1) * max(f, f + b - 2 * w)


def test_with_equal_thirds_h2_and_v_have_no_bubble_inside():
    for p, m in itertools.product(STAGES, MICROBATCHES):
        if m >= 2 * p - 1:
            for make, chunks in ((zb_h2, 1), (zb_v, 2)):
                line = simulate(make(p, m), costs(2, 2, 2))
                assert line.idle_inside == (0,) * p
                assert line.makespan == 6 * m * chunks + 2 * (p - 1)
        v = simulate(zb_v(p, m), costs(1, 1, 1))
        assert v.makespan == 6 * m + max(p - 1, 4 * (p - 1) - 2 * (m - 1))


def test_v_half_idles_for_seven_twelfths_of_1f1b():
    for p, m in itertools.product(STAGES, MICROBATCHES):
        line = simulate(v_half(p, m), costs(1, 1, 1))
        if p > 1 and m >= p // 2 + 2:
            assert line.makespan == 6 * m + (7 * p - 8) // 2
            assert line.idle_inside[0] == (7 * p - 8) // 2 < 6 * (p - 1)  # 1F1B, in units of half a rank's layers


def test_pipedream_adds_its_updates_to_1f1b():
    for p, m in itertools.product(STAGES, MICROBATCHES):
        line = simulate(pipedream(p, m), costs(2, 1, 1, update=1))
        # every update but those of the backwards on the way to rank 0 is on the path
        assert line.busy == (5 * m,) * p
        assert line.makespan == (m + p - 1) * 4 + m


def test_costs_by_stage_follow_the_slowest():
    slow = simulate(gpipe(3, 50), Costs([1e-9, 4e-9, 1e-9], [2e-9, 8e-9, 2e-9], 0))
    assert slow.makespan == 50 * 12 + 6
    assert slow.busy == (150, 600, 150)
    with pytest.raises(RefusedError, match="2 numbers for a model of 3 stages"):
        simulate(gpipe(3, 2), Costs([1, 2], 1, 1))
    with pytest.raises(RefusedError, match="4 numbers for a model of 6 stages"):
        simulate(interleaved(3, 3), Costs(1, [1] * 4, 1))
    for bad in (-1, float("nan"), float("inf"), "1", ["a"]):
        with pytest.raises(RefusedError, match="seconds, 0 or more"):
            Costs(bad, 1, 1)


def test_bytes_and_links_that_cannot_be_are_refused():
    for nbytes in (-1, [1], [1, 2, 3], 1.5):
        with pytest.raises(RefusedError, match="nbytes="):
            simulate(gpipe(3, 2), costs(1, 1, 1), Link(1e9), nbytes=nbytes)
    with pytest.raises(RefusedError, match="link=3"):
        simulate(gpipe(3, 2), costs(1, 1, 1), 3)
    with pytest.raises(RefusedError, match="holds 4 ranks"):
        simulate(gpipe(3, 2), costs(1, 1, 1), Network(nodes=2, ranks_per_node=2))


def test_64_stages_and_1024_microbatches():
    line = simulate(one_f_one_b(64, 1024), Costs(1e-3, 1e-3, 1e-3))
    assert line.makespan == (1024 + 63) * 3_000_000
    assert len(line.messages) == 2 * 63 * 1024


# -- a real run ------------------------------------------------------------------------------------------------------


def really(group, schedule, cost, nbytes):
    """Do what the schedule says with real messages; when each instruction began and ended, and when all was over."""
    rank, begin, end, sent = group.rank, [], [], []
    now = group.context.clock_here().now

    def tensor(boundary):
        return torch.empty(nbytes[boundary], dtype=torch.uint8)

    coming = {}  # receives are posted in the order in which the other rank sends
    explicit = any(isinstance(i, Message) for i in schedule.ranks[rank])
    for other, steps in enumerate(schedule.ranks):
        for step in () if other == rank or explicit else steps:
            makes = made_by(schedule, other, step)
            if makes is not None and makes[1] == rank:
                coming[makes[0]] = group.irecv(tensor(makes[0].boundary), other)
    for step in schedule.ranks[rank]:
        if isinstance(step, Message):
            begin.append(now())
            payload, stage = carried(schedule, rank, step)
            x, (other, _) = tensor(payload.boundary), schedule.where(stage)
            group.send(x, other) if sends(step) else group.recv(x, other)
            end.append(now())
            continue
        needs, makes = needed_by(schedule, rank, step), made_by(schedule, rank, step)
        if not explicit and needs is not None and needs[1] != rank:
            coming[needs[0]].wait()
        begin.append(now())
        group.compute(cost.seconds(step, schedule.stage(rank, step.chunk)))
        end.append(now())
        if not explicit and makes is not None and makes[1] != rank:
            sent.append(group.isend(tensor(makes[0].boundary), makes[1]))
    for handle in sent:
        handle.wait()
    return tuple(begin), tuple(end), now()


LINKS = {
    "free": (None, None),
    "one": (Link(bandwidth=1e9, latency=3e-6), Network(1, intra=Link(1e9, 3e-6))),
    "slow": (Link(bandwidth=2e7, latency=1e-6), Network(1, intra=Link(2e7, 1e-6))),
    "nodes": (Network(2, 2, Link(5e8, 1e-6), Link(3e7, 2e-5)), Network(2, 2, Link(5e8, 1e-6), Link(3e7, 2e-5))),
}


def several(group, cases):
    """Each case begins on all ranks at a whole second, when nothing is under way any more."""
    clock, results = group.context.clock_here(), []
    for second, case in enumerate(cases):
        assert clock.now() < max(1, second * 10**9)
        clock.reach(second * 10**9)
        begin, end, finish = really(group, *case)
        ago = second * 10**9
        results.append((tuple(t - ago for t in begin), tuple(t - ago for t in end), finish - ago))
    return results


@pytest.mark.ranks
@pytest.mark.parametrize("name", LINKS)
def test_the_simulator_is_the_virtual_clock_of_a_real_run_to_the_nanosecond(name):
    link, network = LINKS[name]
    cases = []
    for make in (naive, gpipe, one_f_one_b, interleaved, pipedream, zb_h1, zb_h2, zb_v):
        for m in (1, 3, 8):
            schedule = make(4, m)
            uneven = [(1 + s % 3) * 17.3e-6 for s in range(schedule.stages)]
            cost = Costs(uneven, 13e-6, [u / 3 for u in uneven], 5e-6)
            cases.append((schedule, cost, [100 + 777 * s for s in range(schedule.stages - 1)]))
    for make in (gpipe, one_f_one_b, zb_v):
        cases.append((with_messages(make(4, 6)), Costs(11e-6, 9e-6, 4e-6), [1500] * (7 if make is zb_v else 3)))
    run = labkit.launch(several, 4, cases, clock="virtual", **({"network": network} if network else {}))
    for i, (schedule, cost, nbytes) in enumerate(cases):
        line = simulate(schedule, cost, link, nbytes=nbytes)
        for rank in range(4):
            begin, end, finish = run.results[rank][i]
            assert (begin, end, finish) == (line.begin[rank], line.end[rank], line.finish[rank]), (schedule.name, rank)
    assert len(run.results[0]) == len(cases) == 27
