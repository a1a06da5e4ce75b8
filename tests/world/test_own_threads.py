"""A rank whose own threads may yet act is not accused of a deadlock; one whose threads are through, or wait too, is."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from leftovers import NEVER
from slices import SLOW_WIRES, TRANSPORTS

import labkit
from labkit import RankFailed

pytestmark = pytest.mark.ranks


def wait_for_each_other(group):
    other = 1 - group.rank
    return float(group.recv(torch.zeros(1), other))


def helped_by_a_thread(group):
    """Both main threads wait; a thread of rank 0 is about to send what frees them."""
    pair = group.subgroup([0, 1])

    def later():
        time.sleep(0.6)
        pair.send(torch.ones(1), 1)

    thread = threading.Thread(target=later)
    if group.rank == 0:
        thread.start()
        got = float(group.recv(torch.zeros(1), 1))
        thread.join()
        return got
    got = float(pair.recv(torch.zeros(1), 0))
    group.send(torch.full((1,), 2.0), 0)
    return got


@pytest.mark.parametrize("transport", SLOW_WIRES)
def test_a_thread_about_to_send_holds_the_verdict_back(transport) -> None:
    assert labkit.launch(helped_by_a_thread, 2, transport=transport).results == [2.0, 1.0]


@pytest.mark.parametrize("transport", SLOW_WIRES)
def test_threads_that_are_over_do_not(transport) -> None:
    def work(group):
        threads = [threading.Thread(target=time.sleep, args=(0.01,)) for _ in range(40)]  # more than there are slots
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(time.sleep, [0.01] * 4))
        wait_for_each_other(group)

    with pytest.raises(RankFailed, match="Deadlock: ranks 0 and 1 .*\n  rank 0: receive .*waits for rank 1"):
        labkit.launch(work, 2, transport=transport, timeout=NEVER)


def test_a_thread_that_waits_in_a_message_itself_does_not() -> None:
    def work(group):
        pair = group.subgroup([0, 1])
        threading.Thread(target=lambda: pair.recv(torch.zeros(2), 1 - group.rank), daemon=True).start()
        wait_for_each_other(group)

    with pytest.raises(RankFailed, match=r"Deadlock: (.*\n)*  rank 0: receive float32\[1\] .*; receive float32\[2\]"):
        labkit.launch(work, 2, transport="local")


def test_threads_of_labkit_itself_do_not() -> None:
    def work(group):
        group.isend(torch.ones(1), 1 - group.rank)
        group.recv(torch.zeros(1), 1 - group.rank)
        wait_for_each_other(group)

    for transport in TRANSPORTS:
        with pytest.raises(RankFailed, match="Deadlock"):
            labkit.launch(work, 2, transport=transport, timeout=NEVER)


def test_threads_without_a_slot_count_too() -> None:
    def work(group):
        if group.rank == 0:
            for _ in range(33):
                threading.Thread(target=time.sleep, args=(0.3,)).start()
            threading.Timer(1.0, group.isend, (torch.ones(1), 1)).start()
            group.recv(torch.zeros(1), 1)
        else:
            group.recv(torch.zeros(1), 0)
            group.isend(torch.ones(1), 0).wait()
        return "through"

    assert labkit.launch(work, 2, transport="local").results == ["through"] * 2


def test_when_nothing_comes_of_it_the_time_limit_says_so() -> None:
    def work(group):
        if group.rank == 0:
            threading.Thread(target=time.sleep, args=(NEVER,), daemon=True).start()
        wait_for_each_other(group)

    with pytest.raises(RankFailed, match="WaitTimeout") as caught:
        labkit.launch(work, 2, timeout=0.8)
    assert "rank 0: receive float32[1] from rank 1, while a thread of its own is outside any message" in str(
        caught.value
    )


def test_what_a_thread_of_a_child_process_does_is_not_marked() -> None:
    def work(group):
        import os

        if (child := os.fork()) == 0:
            threading.Thread(target=time.sleep, args=(NEVER,), daemon=True).start()
            os._exit(0)  # without taking the mark back
        os.waitpid(child, 0)
        wait_for_each_other(group)

    with pytest.raises(RankFailed, match="Deadlock"):
        labkit.launch(work, 2, timeout=NEVER)


def test_a_thread_runs_as_it_always_did() -> None:
    def work(group):
        seen = []

        class Mine(threading.Thread):
            def run(self):
                seen.append((self.name, self.is_alive()))

        thread = Mine(name="mine")
        thread.start()
        thread.join()
        with pytest_raises() as caught:
            thread.start()
        failing = threading.Thread(target=lambda: 1 / 0)
        hook, threading.excepthook = threading.excepthook, lambda args: seen.append(args.exc_type.__name__)
        failing.start()
        failing.join()
        threading.excepthook = hook
        return seen, caught, group.context.recorder.page.threads

    class pytest_raises:
        def __enter__(self):
            return self.__dict__.setdefault("found", [])

        def __exit__(self, kind, error, tb):
            self.found.append(str(error))
            return True

    ((seen, caught, left),) = labkit.launch(work, 1).results
    assert (
        seen == [("mine", True), "ZeroDivisionError"] and caught == ["threads can only be started once"] and left == 0
    )
