"""Runs that take too long end, and say who waited for whom."""

from __future__ import annotations

import os
import signal
import time

import pytest
import torch
from leftovers import NEVER, eventually
from slices import SLOW_WIRES

import labkit
from labkit import Hang, RankFailed

pytestmark = pytest.mark.ranks

TOO_LONG = 0.5  # seconds


def ring_forever(group, stuck=None):
    x, y = torch.zeros(8), torch.zeros(8)
    while True:
        if group.rank == stuck:
            time.sleep(NEVER)
        group.exchange(x, (group.rank + 1) % group.size, y, (group.rank - 1) % group.size)


def test_a_deadline_ends_the_whole_run() -> None:
    with pytest.raises(RankFailed, match="DeadlineExceeded: the run took longer than deadline=0.7 s") as caught:
        labkit.launch(ring_forever, 3, deadline=0.7, timeout=NEVER)
    assert caught.value.failure.seconds >= 0.7
    assert set(caught.value.failure.waiting) == {0, 1, 2}


@pytest.mark.parametrize("transport", SLOW_WIRES)
def test_a_wait_that_is_too_long_shows_the_picture(transport) -> None:
    with pytest.raises(RankFailed) as caught:
        labkit.launch(ring_forever, 3, 1, timeout=TOO_LONG, transport=transport)
    text = str(caught.value)
    assert f"WaitTimeout: nothing moved for timeout={TOO_LONG:g} s: rank 1 is awaited but outside any message" in text
    assert "rank 1: was running, outside any message" in text
    assert "(waits for rank 1)" in text and caught.value.rank == 1
    assert caught.value.failure.seconds >= TOO_LONG


@pytest.mark.parametrize("transport", SLOW_WIRES)
def test_a_stopped_rank_is_named(transport) -> None:
    def work(group):
        if group.rank == 2:
            os.kill(os.getpid(), signal.SIGSTOP)
        ring_forever(group)

    with pytest.raises(RankFailed, match=r"rank 2 is stopped \(SIGSTOP\)"):
        labkit.launch(work, 3, timeout=TOO_LONG, transport=transport)


@pytest.mark.parametrize("transport", SLOW_WIRES)
@pytest.mark.parametrize("delay", [0.0, 0.01])
def test_a_rank_that_is_stopped_while_it_starts_is_named(transport, delay) -> None:
    job = labkit.start(ring_forever, 3, timeout=TOO_LONG, transport=transport)
    assert eventually(lambda: len(job.pids) == 3)
    time.sleep(delay)  # the others have not connected to it yet
    os.kill(job.pids[2], signal.SIGSTOP)
    with pytest.raises(RankFailed, match=r"rank 2 is stopped \(SIGSTOP\)"):
        job.wait()


def test_a_hang_that_was_injected_is_named() -> None:
    with pytest.raises(RankFailed, match=r"rank 1 is stopped \(SIGSTOP\)"):
        labkit.launch(ring_forever, 3, timeout=TOO_LONG, faults=[Hang(1, message=5)])


def test_a_hang_can_be_continued() -> None:
    def work(group):
        other = 1 - group.rank
        return [int(group.exchange(torch.tensor([i]), other, torch.tensor([-1]), other)) for i in range(6)]

    job = labkit.start(work, 2, faults=[Hang(1, message=3)])
    while not any(text == "stopped" for _, _, text in job.events):
        time.sleep(0.01)
    os.kill(job.pids[1], signal.SIGCONT)
    assert job.wait().results == [list(range(6))] * 2


def test_a_wait_is_named_though_others_go_on() -> None:
    def work(group):
        if group.rank == 0:
            group.recv(torch.zeros(1), 1)
        elif group.rank == 1:
            time.sleep(NEVER)
        pair = group.subgroup([2, 3])
        while True:
            pair.exchange(torch.zeros(1), 1 - pair.rank, torch.zeros(1), 1 - pair.rank)
            time.sleep(0.002)

    with pytest.raises(RankFailed, match="WaitTimeout.*\n(.*\n)*  rank 0: receive"):
        labkit.launch(work, 4, timeout=TOO_LONG)


def test_a_long_run_of_short_waits_is_no_timeout() -> None:
    def work(group):
        other = 1 - group.rank
        for i in range(6):
            time.sleep(0.3 * ((i + group.rank) % 2))
            group.exchange(torch.zeros(1), other, torch.zeros(1), other)

    run = labkit.launch(work, 2, timeout=1.5)
    assert not run.failures and run.seconds > 1.5


def test_continuing_ranks_time_out_by_themselves(tmp_path) -> None:
    def work(group, gate):
        if group.rank == 0:
            while not gate.exists():
                time.sleep(0.01)
            return "late"
        try:
            group.recv(torch.zeros(1), 0)
        except labkit.WaitTimeout as error:
            gate.touch()
            return str(error)

    run = labkit.launch(
        work, 2, tmp_path / "gate", transport="local", timeout=TOO_LONG, deadline=NEVER, on_failure="continue"
    )
    assert run.results[0] == "late" and f"rank 1 waited {TOO_LONG:g} s for rank 0" in run.results[1]
