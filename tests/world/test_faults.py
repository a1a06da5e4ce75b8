"""Faults really happen: each kind, at each kind of place, once a job; what never happened is reported."""

from __future__ import annotations

import pytest
import torch
from leftovers import NEVER

import labkit
from labkit import Corrupt, Drop, Hang, Kill, Raise, RankFailed, RefusedError, Slow

pytestmark = pytest.mark.ranks


def train(group):
    """Three steps of three exchanges around the ring; each returns what it received."""
    got = []
    for n in range(3):
        group.step(n)
        with group.span("work"):
            for i in range(3):
                x = torch.full((4,), float(10 * n + i))
                right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
                got.append(group.exchange(x, right, torch.zeros(4), left).tolist())
    return got


PLACES = [{"step": 1}, {"message": 4}, {"at": "work", "nth": 2}]


KINDS = [Kill, Raise, Hang, Slow, Corrupt, Drop]
EVERY = [(kind, place, "local") for kind in KINDS for place in PLACES]
EVERY += [(kind, PLACES[i % 3], "gloo") for i, kind in enumerate(KINDS)]  # what strikes knows of no transport


@pytest.mark.parametrize("kind, place, transport", EVERY)
def test_every_fault_at_every_place(kind, place, transport) -> None:
    fault = kind(1, **place)
    timeout = 0.5 if kind is Hang else NEVER
    run = labkit.launch(train, 3, faults=[fault], transport=transport, timeout=timeout, on_failure="return")
    assert run.unfired == []
    assert [text for _, rank, text in run.events if text.startswith("fault")] == [
        f"fault: {kind.__name__} {fault.where()}"
    ]
    if kind in (Kill, Raise):
        assert run.failures[0].rank == 1 and run.failures[0].step == 1
        assert run.failures[0].kind == ("died" if kind is Kill else "raised")
    elif kind is Hang:
        assert "rank 1 is stopped" in run.failures[0].message
    elif kind is Slow:
        assert not run.failures
    elif kind is Corrupt:
        assert not run.failures
        bad = [(r, i) for r in range(3) for i, got in enumerate(run.results[r]) if got != train_alone(i)]
        assert bad == [(2, 3)]  # the first message of step 1, seen by the rank that received it
    else:
        assert run.failures and run.failures[0].kind in ("deadlock", "mismatch", "wire"), run.failures


def train_alone(i):
    return [float(10 * (i // 3) + i % 3)] * 4


def test_a_corrupt_message_differs_in_one_bit() -> None:
    def work(group):
        if group.rank == 0:
            x = torch.arange(9.0)
            group.send(x, 1)
            assert x.tolist() == list(range(9))  # the sender's own tensor is as it was
        else:
            return group.recv(torch.zeros(9), 0)

    got = labkit.launch(work, 2, faults=[Corrupt(0, message=1)]).results[1]
    flipped = got.view(torch.int32) ^ torch.arange(9.0).view(torch.int32)
    assert flipped.tolist() == [0, 0, 0, 0, 1 << 30, 0, 0, 0, 0]


def test_slow_multiplies_what_compute_takes_from_there_on() -> None:
    def work(group):
        for n in range(3):
            group.step(n)
            group.compute(1.0)

    spans = labkit.launch(work, 2, clock="virtual", faults=[Slow(1, step=1, factor=3)]).trace.spans("compute")
    assert [(s.rank, round(s.end - s.start, 9)) for s in spans] == [(0, 1), (0, 1), (0, 1), (1, 1), (1, 3), (1, 3)]


def test_several_faults_each_fire_once() -> None:
    def work(group):
        caught = 0
        for n in range(20):
            try:
                group.step(n % 5)
            except RuntimeError:
                caught += 1
        return caught

    faults = [Raise(0, step=2), Raise(0, step=3), Raise(1, step=2)]
    run = labkit.launch(work, 2, faults=faults)
    assert run.results == [2, 1] and run.unfired == []


def test_without_a_place_it_strikes_at_once() -> None:
    with pytest.raises(RankFailed) as caught:
        labkit.launch(train, 2, faults=[Kill(1)])
    assert caught.value.rank == 1


def test_the_text_of_a_raised_fault() -> None:
    with pytest.raises(RankFailed, match="rank 0 raised RuntimeError: out of memory"):
        labkit.launch(train, 2, faults=[Raise(0, step=1, text="out of memory")])


def test_what_never_fired_is_reported(capsys) -> None:
    run = labkit.launch(train, 2, faults=[Kill(1, step=99), Slow(0, step=1)])
    assert run.unfired == [str(Kill(1, step=99))]
    assert "this fault never fired: Kill(rank=1, step=99" in capsys.readouterr().err


def test_a_kernel_is_a_place_too() -> None:
    def work(group):
        for step in range(3):
            group.step(step)
            group.compute(0.001)
            with group.compute(0.001):
                pass

    run = labkit.launch(work, 2, faults=[Kill(1, at="compute", nth=4)], on_failure="return")
    assert [(f.kind, f.rank, f.step) for f in run.failures] == [("died", 1, 1)]
    run = labkit.launch(work, 2, clock="virtual", faults=[Raise(0, at="compute", nth=5)], on_failure="return")
    assert [(f.kind, f.rank, f.step) for f in run.failures] == [("raised", 0, 2)]


def test_a_collective_is_a_place_too() -> None:
    from labkit import collectives

    def work(group):
        for _ in range(3):
            collectives.all_reduce(torch.ones(4), group, algorithm="ring")

    run = labkit.launch(work, 3, faults=[Kill(2, at="all_reduce", nth=2)], on_failure="return")
    assert run.failures[0].rank == 2
    assert [c.seq for c in run.trace.collectives("all_reduce") if c.rank == 2] == [1, 2]


@pytest.mark.parametrize(
    "faults,text",
    [
        ([Kill(5)], "ranks 0 to 2"),
        (["kill"], "faults= takes Kill, Hang"),
        ([labkit.Fault(0)], "faults= takes Kill, Hang"),
        ([Kill("1")], "ranks 0 to 2"),
    ],
)
def test_faults_that_make_no_sense_are_refused(faults, text) -> None:
    with pytest.raises(RefusedError, match=text):
        labkit.launch(train, 3, faults=faults)


@pytest.mark.parametrize("bad", [{"step": 1, "message": 2}, {"message": 0}, {"at": "x", "nth": 0}])
def test_a_fault_has_one_place(bad) -> None:
    with pytest.raises(RefusedError):
        Kill(0, **bad)
