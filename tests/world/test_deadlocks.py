"""Ranks that wait for each other are named before any limit, with who waits for whom. Ranks that only wait are not."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from leftovers import NEVER
from slices import SLOW_WIRES

import labkit
from labkit import RankFailed, collectives
from labkit.wire.recording import record as rec
from labkit.world.diagnosis.reading import Wait, _both, _stuck

pytestmark = pytest.mark.ranks


def both_send(group):
    group.send(torch.zeros(4), 1 - group.rank)


def both_receive(group):
    group.recv(torch.zeros(4), 1 - group.rank)


def receive_in_a_circle(group):
    group.recv(torch.zeros(4), (group.rank + 1) % group.size)


def send_in_a_circle(group):
    group.send(torch.zeros(4), (group.rank + 1) % group.size)


def leave_early(group):
    if group.rank:
        group.recv(torch.zeros(2), 0)


def forget_a_collective(group):
    if group.rank != 1:
        collectives.all_reduce(torch.zeros(8), group, algorithm="ring")


def wait_for_work_that_waits(group):
    """Rank 0 waits for its all_reduce, whose other side waits in a receive for a message that comes after it."""
    if group.rank == 0:
        handle = collectives.all_reduce(torch.zeros(4), group, algorithm="ring", async_op=True)
        handle.wait()
        group.send(torch.zeros(1), 1)
    else:
        group.recv(torch.zeros(1), 0)
        collectives.all_reduce(torch.zeros(4), group, algorithm="ring")


def wait_for_handles_in_a_circle(group):
    handle = group.irecv(torch.zeros(1), 1 - group.rank)
    handle.wait()
    group.isend(torch.zeros(1), 1 - group.rank).wait()


def deadlock_in_a_subgroup_while_others_work(group):
    if group.rank < 2:
        group.subgroup([0, 1]).recv(torch.zeros(1), 1 - group.rank)
    pair = group.subgroup([2, 3])
    while True:
        pair.exchange(torch.zeros(4), 1 - pair.rank, torch.zeros(4), 1 - pair.rank)
        time.sleep(0.001)


def native_without_one(group):
    if group.rank != 2:
        collectives.all_reduce(torch.zeros(8), group, algorithm="native")


def isend_to_one_that_left(group):
    if group.rank == 0:
        group.isend(torch.zeros(4), 1).wait()


def irecv_from_one_that_left(group):
    if group.rank == 0:
        group.irecv(torch.zeros(4), 1).wait()


def forget_to_wait_for_a_collective_of_its_own(group):
    if group.rank == 0:
        collectives.all_reduce(torch.zeros(8), group, algorithm="ring", async_op=True)


DEADLOCKS: list[tuple[Callable[..., Any], int, str]] = [
    (both_send, 2, r"ranks 0 and 1 wait for each other\n  rank 0: send float32\[4\] to rank 1 \(waits for rank 1\)"),
    (both_receive, 2, r"ranks 0 and 1 wait for each other\n  rank 0: receive float32\[4\] from rank 1"),
    (receive_in_a_circle, 3, r"ranks 0 to 2 wait for each other"),
    (send_in_a_circle, 3, r"ranks 0 to 2 wait for each other"),
    (leave_early, 3, r"rank 0 has finished while others wait for it\n  rank [12]: receive float32\[2\] from rank 0"),
    (forget_a_collective, 3, r"rank 1 has finished while others wait .*(\n.*)*in all_reduce\(float32\[8\]\), call 1"),
    (wait_for_work_that_waits, 2, r"ranks 0 and 1 wait for each other"),
    (wait_for_handles_in_a_circle, 2, r"ranks 0 and 1 wait for each other\n  rank 0: receive float32\[1\] from rank 1"),
    (deadlock_in_a_subgroup_while_others_work, 4, r"ranks 0 and 1 wait for each other"),
    (isend_to_one_that_left, 2, r"rank 1 has finished while others wait for it\n  rank 0: send float32\[4\] to rank 1"),
    (irecv_from_one_that_left, 2, r"rank 1 has finished while others wait for it\n  rank 0: receive float32\[4\] from"),
    (forget_to_wait_for_a_collective_of_its_own, 2, r"rank 1 has finished while others wait .*(\n.*)*call 1"),
    (native_without_one, 3, r"rank 2 has finished while others wait .*(\n.*)*the native all_reduce\(float32\[8\]\)"),
]


@pytest.mark.parametrize("transport", SLOW_WIRES)
@pytest.mark.parametrize("some", range(0, len(DEADLOCKS), 4))
def test_a_deadlock_is_named_while_everybody_would_wait_on(some, transport) -> None:
    """Four at a time: what takes long is that the host looks twice before it speaks."""
    cases = DEADLOCKS[some : some + 4]
    jobs = [labkit.start(work, size, transport=transport, timeout=NEVER) for work, size, _ in cases]
    for (work, _, text), job in zip(cases, jobs, strict=True):
        with pytest.raises(RankFailed) as caught:
            job.wait()
        assert caught.value.failure.kind == "deadlock", work.__name__
        assert re.match("Deadlock: " + text, str(caught.value)), (work.__name__, str(caught.value))


@pytest.mark.parametrize("transport", SLOW_WIRES)
def test_a_collective_that_nobody_waits_for_is_finished_before_the_ranks_leave(transport) -> None:
    def work(group):
        x = torch.ones(1000)
        time.sleep(0.3 * (group.rank == 1))
        collectives.all_reduce(x, group, algorithm="ring", async_op=True)
        return x

    for x in labkit.launch(work, 3, transport=transport, timeout=NEVER).results:
        assert torch.equal(x, torch.full((1000,), 3.0))


def test_one_rank_that_left_is_a_deadlock_only_for_those_who_need_it() -> None:
    def work(group):
        if group.rank == 0:
            return "gone"
        other = 3 - group.rank
        time.sleep(0.5)
        return int(group.exchange(torch.tensor([group.rank]), other, torch.tensor([0]), other))

    assert labkit.launch(work, 3).results == ["gone", 2, 1]


def test_without_the_check_a_deadlock_hangs_until_the_time_limit() -> None:
    with pytest.raises(RankFailed, match="WaitTimeout") as caught:
        labkit.launch(both_receive, 2, check=False, timeout=0.8)  # eight looks at the pages, of which two would do
    assert caught.value.failure.seconds > 0.8


@pytest.mark.parametrize("transport", SLOW_WIRES)
def test_a_rank_that_computes_or_sleeps_is_no_deadlock(transport) -> None:
    def work(group):
        if group.rank == 0:
            time.sleep(0.5)  # five looks at the pages
            end = time.monotonic() + 0.5
            while time.monotonic() < end:
                torch.ones(100).sum()
            group.send(torch.ones(1), 1)
        elif group.rank == 1:
            group.recv(torch.zeros(1), 0)
            group.send(torch.ones(1), 2)
        else:
            group.recv(torch.zeros(1), 1)
        collectives.all_reduce(torch.ones(4), group, algorithm="native" if group.rank < 9 else "ring")
        return "through"

    assert labkit.launch(work, 3, transport=transport).results == ["through"] * 3


@pytest.mark.parametrize("transport", SLOW_WIRES)
def test_asynchronous_work_that_waits_for_a_busy_main_thread_is_no_deadlock(transport) -> None:
    def work(group):
        if group.rank == 0:
            handle = collectives.all_reduce(torch.ones(4), group, algorithm="ring", async_op=True)
            time.sleep(0.5)  # its communication thread waits for rank 1, which waits for the send below
            group.send(torch.ones(1), 1)
            return handle.wait().tolist()
        group.recv(torch.zeros(1), 0)
        return collectives.all_reduce(torch.ones(4), group, algorithm="ring").tolist()

    assert labkit.launch(work, 2, transport=transport).results == [[2.0] * 4] * 2


@pytest.mark.parametrize("transport", SLOW_WIRES)
def test_an_early_isend_counts_as_begun(transport) -> None:
    def work(group):
        other = 1 - group.rank
        handle = group.isend(torch.tensor([group.rank]), other)
        time.sleep(0.4)
        got = group.recv(torch.tensor([-1]), other)
        handle.wait()
        return int(got)

    assert labkit.launch(work, 2, transport=transport).results == [1, 0]


def random_program(group, seed):
    """A correct program drawn by seed: the same plan on every rank, each doing its own part of it."""
    plan, pause = random.Random(seed), random.Random(1000 * seed + group.rank)
    total, handles = 0.0, []
    for number in range(30):
        kind = plan.choice(["pair", "pair", "ring", "collective", "async", "split", "wait"])
        name = plan.choice(["ring", "tree", "naive", "native"])
        a, b = plan.sample(range(group.size), 2)
        n = plan.choice([0, 1, 1000, 100_000])
        if pause.random() < 0.1:
            time.sleep(pause.random() * 0.2)
        early = plan.random() < 0.5
        if kind == "pair" and group.rank == a and early:
            handles.append(group.isend(torch.full((n,), float(number)), b))
        elif kind == "pair" and group.rank == a:
            group.send(torch.full((n,), float(number)), b)
        elif kind == "pair" and group.rank == b:
            total += float(group.recv(torch.zeros(n), a).sum())
        elif kind == "ring":
            right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
            total += float(group.exchange(torch.ones(n), right, torch.zeros(n), left).sum())
        elif kind == "collective":
            total += float(collectives.all_reduce(torch.ones(n), group, algorithm=name).sum())
        elif kind == "async":
            handles.append(collectives.all_reduce(torch.ones(n), group, algorithm="ring", async_op=True))
        elif kind == "split":
            half = group.split(group.rank % 2)
            total += float(collectives.all_gather(torch.ones(1), half, algorithm="ring").sum())
        else:
            for handle in handles:
                handle.wait()
            handles = []
    for handle in handles:
        handle.wait()
    return total


@pytest.mark.parametrize("transport", SLOW_WIRES)
def test_correct_programs_are_never_accused(transport) -> None:
    jobs = [labkit.start(random_program, 4, seed, transport=transport) for seed in range(4)]
    for seed, job in enumerate(jobs):
        run = job.wait()
        assert not run.failures, seed


@pytest.mark.parametrize("transport", SLOW_WIRES)
def test_an_isend_that_nobody_takes_or_waits_for_is_named(transport) -> None:
    def work(group):
        if group.rank == 0:
            group.isend(torch.zeros(4), 1)

    with pytest.raises(RankFailed) as caught:
        labkit.launch(work, 2, transport=transport)
    assert caught.value.failure.kind in ("mismatch", "deadlock")  # gloo does not get as far as to send it
    assert "send float32[4] to rank 1" in str(caught.value) or "sent float32[4] to rank 1" in str(caught.value)


@pytest.mark.parametrize("transport", SLOW_WIRES)
def test_an_isend_to_a_rank_that_has_not_yet_spoken_is_no_deadlock(transport) -> None:
    def work(group):
        if group.rank == 0:
            handles = [group.isend(torch.ones(4), r) for r in (1, 2)]  # rank 1 opens its side late
            for handle in handles:
                handle.wait()
            return None
        if group.rank == 1:
            time.sleep(0.5)
        return group.recv(torch.zeros(4), 0)[0].item()

    assert labkit.launch(work, 3, transport=transport).results == [None, 1.0, 1.0]


@pytest.mark.parametrize("transport", SLOW_WIRES)
def test_a_message_may_begin_before_the_peer_has_spoken_at_all(transport) -> None:
    def work(group):
        x = torch.full((4,), float(group.rank))
        handle = group.isend(x, 1) if group.rank == 0 else None
        collectives.all_reduce(torch.ones(8), group, algorithm="native")  # rank 0 has to get here for rank 1 to go on
        if handle is None:
            return group.recv(torch.ones(4), 0)[0].item()
        handle.wait()

    assert labkit.launch(work, 2, transport=transport).results == [None, 0.0]


def test_a_rank_is_not_stuck_while_one_of_its_threads_can_go_on() -> None:
    """Its message is here, and it has not been scheduled yet: what its other thread waits for says nothing."""
    running, left = [rec.RUNNING] * 2, [rec.RUNNING, rec.FINISHED]
    theirs, stream = Wait(0, "receive from rank 1", [1]), Wait(1, "an all_reduce", [0])
    assert _stuck(running, {0: theirs, 1: _both([Wait(1, "receive what is here", []), stream])}) == []
    assert _stuck(running, {0: theirs, 1: _both([Wait(1, "receive from rank 0", [0]), stream])}) == [0, 1]
    assert _stuck(running, {0: theirs, 1: stream}) == [0, 1] and _stuck(left, {0: theirs}) == [0]
    assert _stuck(running, {1: Wait(1, "wait for its own asynchronous work", [1])}) == [1]
