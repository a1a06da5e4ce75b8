"""Stragglers by aggregated time: what the numbers must look like, what is counted, real clocks, two looks."""

from __future__ import annotations

import time

import pytest

import labkit
from labkit import Slow
from labkit.resilience.diagnose import Detector, find_slow, since, stragglers
from labkit.wire.recording import record as rec

from .diagnose_worlds import mesh_program, pipeline_program
from .pages_by_hand import USER, Desk


@pytest.mark.parametrize(
    "seconds, slow",
    [
        ([1.0, 1.0, 0.1, 1.0], (2,)),
        ([0.1, 1.0], (0,)),
        ([1.0, 0.1, 0.11, 1.0, 1.02], (1, 2)),  # a host with two ranks
        ([1.0, 0.97, 0.99, 1.0], ()),
        ([0.0, 0.0, 0.0, 0.0], ()),
        ([0.4, 0.6, 0.8, 1.0], ()),  # a slope is no straggler: nobody is set apart
        ([0.1, 0.1, 0.1, 1.0], ()),  # more than half would be slow: then it is the one that waits that is odd
        ([3.0], ()),
    ],
)
def test_who_is_set_apart(seconds, slow) -> None:
    assert find_slow(dict(enumerate(seconds)), 2.0).slow == slow


def test_what_it_costs_is_what_the_others_wait() -> None:
    found = find_slow({0: 1.0, 1: 0.25, 2: 1.0}, 4.0)
    assert found.cost == pytest.approx(0.75) and "19%" in str(found.verdict) and found.verdict.culprit == 1
    nobody = find_slow({0: 1.0, 1: 1.0}, 4.0, least=0.1).verdict
    assert nobody.kind == "nothing" and nobody.culprit is None
    assert str(nobody) == "Nothing is wrong: no rank is set apart from the others by 10% of the time."


def test_what_counts_as_time_in_communication() -> None:
    desk = Desk(2)
    number = desk.enter(0, (0, 1))  # a collective: 1000 ns for each mark between its beginning and its end
    inside = desk.post(0, "recv", 1, (0, 1), parent=number)  # part of it, so not once more
    desk.done(0, inside, parent=number)
    desk.leave(0, number)
    desk.done(0, desk.post(0, "recv", 1, (0, 1), lane=USER))  # a message of the program's own
    desk.post(0, "recv", 1, (0, 1), lane=USER, flags=rec.ASYNC, wait=False)  # in the background
    assert desk.look()[0].seconds == pytest.approx((3000 + 1000) / 1e9)
    assert desk.look()[0].seconds == pytest.approx((3000 + 1000) / 1e9)  # and not twice


@pytest.mark.ranks
@pytest.mark.parametrize("sizes", [{"dp": 2, "tp": 2}, {"dp": 3}])
def test_on_real_clocks(sizes) -> None:
    size = 4 if "tp" in sizes else 3
    run = labkit.launch(slow_program, size, sizes, 12, transport="local", faults=[Slow(1, step=0, factor=3)])
    assert stragglers(run.trace).verdict.culprit == 1
    assert stragglers(run.trace, [8, 9, 10]).slow == (1,)


def slow_program(group, sizes, steps):
    from labkit import collectives
    from labkit.parallel.mesh import Mesh

    import torch  # isort: skip

    mesh = Mesh(group, sizes)
    for n in range(steps):
        group.step(n)
        group.compute(0.02)
        for axis in reversed(sizes):
            collectives.all_reduce(torch.ones(50), mesh[axis], algorithm="ring")


@pytest.mark.ranks
def test_without_a_slow_rank_none_is_named_on_the_virtual_clock() -> None:
    for program, sizes in ((mesh_program, {"dp": 2, "tp": 2}), (pipeline_program, {"dp": 2, "pp": 2})):
        run = labkit.launch(program, 4, sizes, 6, "ring", 50, clock="virtual", transport="local")
        assert stragglers(run.trace).slow == ()


@pytest.mark.ranks
def test_between_two_looks_at_a_running_job() -> None:
    job = labkit.start(slow_program, 4, {"dp": 2, "tp": 2}, 10**6, transport="local",
                       faults=[Slow(2, step=0, factor=3)], on_failure="continue")  # fmt: skip
    try:
        detector = Detector(job)
        while min((r.step for r in detector.look().values()), default=-1) < 3:
            time.sleep(0.05)
        before, at = detector.look(), time.monotonic()
        time.sleep(1.5)
        found = since(before, detector.look(), time.monotonic() - at)
        assert found.slow == (2,), found
    finally:
        job.stop()
