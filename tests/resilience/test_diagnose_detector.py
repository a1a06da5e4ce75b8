"""Watching a job: while it runs well, after it has ended, and what is asked wrongly."""

from __future__ import annotations

import pytest
import torch
from slices import SLOW_WIRES

import labkit
from labkit import Kill, Raise, RefusedError, collectives
from labkit.resilience.diagnose import Detector

from .diagnose_worlds import told

pytestmark = pytest.mark.ranks


def steps(group, n):
    for step in range(n):
        group.step(step)
        group.compute(0.001)
        collectives.all_reduce(torch.ones(10), group, algorithm="ring")


def crossed(group):
    """Rank 1 comes to two groups in another order than the others."""
    pair = group.subgroup([0, 1]) if group.rank < 2 else None
    collectives.all_reduce(torch.ones(4), group, algorithm="ring")
    calls = [group, pair] if group.rank == 1 else [pair, group]
    for each in calls:
        if each is not None:
            collectives.all_reduce(torch.ones(4), each, algorithm="ring")


@pytest.mark.parametrize("transport", SLOW_WIRES)
def test_nobody_is_accused_in_a_job_that_runs_or_has_ended_well(transport) -> None:
    job = labkit.start(steps, 3, 150, transport=transport)
    detector = Detector(job, quiet=2.0)
    assert detector.wait(0.3).kind == "nothing"
    job.wait()
    assert detector.now().kind == "nothing" and detector.wait(1).kind == "nothing"


@pytest.mark.parametrize("fault, kind", [(Kill(1, step=3), "dead"), (Raise(2, step=3), "raised")])
@pytest.mark.parametrize("on_failure", ["return", "continue"])
def test_after_the_end_the_first_failure_is_named(fault, kind, on_failure) -> None:
    job = labkit.start(steps, 3, 20, transport="local", faults=[fault], on_failure=on_failure)
    detector = Detector(job)
    job.wait()
    verdict = detector.now()
    assert (verdict.kind, verdict.culprit) == (kind, fault.rank), str(verdict)


def test_a_deadlock_that_the_host_has_ended_is_still_on_the_pages() -> None:
    job = labkit.start(crossed, 3, transport="local", on_failure="return")
    detector = Detector(job)
    run = job.wait()
    assert run.failures[0].kind == "deadlock"
    verdict = detector.now()
    assert verdict.kind == "circle" and set(verdict.suspects) <= {0, 1}, str(verdict)
    assert verdict.waits is not None and len(verdict.waits.operations) == 2


def test_a_rank_that_is_restarted_is_forgiven() -> None:
    job = labkit.start(apart, 2, transport="local", on_failure="continue", faults=[Kill(1, step=5)])
    try:
        detector = Detector(job, quiet=0.2)
        assert detector.wait(20).culprit == 1
        job.restart(1)
        while not told(job, 1, "restarted"):
            job.await_events(len(job.events), 0.1)
        assert detector.failures == [] and detector.stopped == set()
    finally:
        job.stop()


def apart(group):
    for step in range(10**6):
        group.step(step)
        group.compute(0.01)


@pytest.mark.parametrize("quiet", [0, -1, float("nan"), float("inf")])
def test_a_time_that_is_none_is_refused(quiet) -> None:
    with pytest.raises(RefusedError, match="quiet="):
        Detector(None, quiet)  # type: ignore[arg-type]
