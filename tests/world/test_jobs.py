"""`Job`: a world that runs while the caller does something else."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import time

import pytest
import torch
from leftovers import NEVER, alive, descriptors, eventually

import labkit
from labkit import Kill, Raise, RankFailed, RefusedError, Slow

pytestmark = pytest.mark.ranks


def wait_for(path) -> None:
    while not os.path.exists(path):
        time.sleep(0.01)


def test_start_does_not_wait_and_poll_tells(tmp_path) -> None:
    gate = str(tmp_path / "gate")
    job = labkit.start(lambda group: wait_for(gate) or group.rank, 2)
    assert job.poll() is None
    open(gate, "w").close()
    assert job.wait().results == [0, 1]
    assert job.poll().results == [0, 1] and job.wait() is job.poll()


def test_wait_with_a_limit_leaves_the_run_alone(tmp_path) -> None:
    gate = str(tmp_path / "gate")
    job = labkit.start(lambda group: wait_for(gate), 1)
    with pytest.raises(TimeoutError, match="it goes on"):
        job.wait(0.1)
    open(gate, "w").close()
    job.wait()


def test_kill_names_the_rank_in_the_failure() -> None:
    job = labkit.start(lambda group: time.sleep(NEVER), 3)
    job.kill(2)
    with pytest.raises(RankFailed) as caught:
        job.wait()
    assert (caught.value.rank, caught.value.failure.kind) == (2, "died")


def test_stop_ends_every_rank() -> None:
    job = labkit.start(lambda group: time.sleep(NEVER), 3)
    assert eventually(lambda: len(job.pids) == 3)
    job.stop()
    assert not any(alive(p) for p in job.pids)
    with pytest.raises(RankFailed, match="the run was stopped"):
        job.wait()
    job.stop()  # twice does no harm


def test_inject_strikes_a_running_world(tmp_path) -> None:
    def work(group):
        n = 0
        while True:
            group.step(n)
            n += 1
            time.sleep(0.01)

    job = labkit.start(work, 2)
    time.sleep(0.2)
    job.inject(Kill(1, step=10**9))  # never comes
    job.inject(Kill(0))
    with pytest.raises(RankFailed) as caught:
        job.wait()
    assert caught.value.rank == 0
    assert caught.value.run.unfired == [str(Kill(1, step=10**9))]


def test_an_injected_fault_can_wait_for_its_place() -> None:
    def work(group):
        for n in range(10**6):
            group.step(n)
            time.sleep(0.005)

    job = labkit.start(work, 2)
    assert eventually(lambda: job.trace().events.size > 0)
    job.inject(Kill(1, step=120))
    with pytest.raises(RankFailed) as caught:
        job.wait()
    assert caught.value.rank == 1 and caught.value.failure.step in (119, 120)


def test_an_injected_fault_counts_its_places_from_then_on(tmp_path) -> None:
    gate = str(tmp_path / "gate")

    def work(group):
        for n in range(20):
            if n == 10:
                wait_for(gate)
            group.step(n)
            with group.span("forward"):
                pass
        return n

    job = labkit.start(work, 2, on_failure="return")
    assert eventually(lambda: [n.step for n in job.watch().look()] == [9, 9])
    job.inject(Raise(1, at="forward", nth=3))
    time.sleep(0.2)
    open(gate, "w").close()
    run = job.wait()
    assert run.results[0] == 19 and run.failures[0].rank == 1 and run.failures[0].step == 12


def test_an_injected_slowdown_takes_hold(tmp_path) -> None:
    gate = str(tmp_path / "gate")

    def work(group):
        wait_for(gate)
        group.step(0)
        group.compute(0.01)

    job = labkit.start(work, 2, clock="virtual")
    job.inject(Slow(1, factor=5))
    time.sleep(0.2)
    open(gate, "w").close()
    assert [round(s.end - s.start, 6) for s in job.wait().trace.spans("compute")] == [0.01, 0.05]


def test_the_trace_of_a_running_world_can_be_read(tmp_path) -> None:
    gate = str(tmp_path / "gate")

    def work(group):
        other = 1 - group.rank
        group.exchange(torch.zeros(2), other, torch.zeros(2), other)
        wait_for(gate)

    job = labkit.start(work, 2)
    assert eventually(lambda: job.trace().bytes_sent() == [8, 8])
    open(gate, "w").close()
    job.wait()


def test_events_tell_what_happened_in_order() -> None:
    run = labkit.launch(lambda group: group.step(1), 2, faults=[Kill(1, step=1)], on_failure="return")
    told = [text for _, rank, text in run.events if rank == 1]
    assert told == ["fault: Kill at step 1", "ended"]


def test_a_rank_can_be_restarted_and_rejoin(tmp_path) -> None:
    first_life, back = str(tmp_path / "first"), str(tmp_path / "back")

    def work(group):
        if group.rank == 1 and not os.path.exists(first_life):
            open(first_life, "w").close()
            os._exit(1)
        if group.rank == 1:
            open(back, "w").close()
        else:
            pair = group.rebuild([0, 2])  # the others get on without it for a while
            pair.exchange(torch.zeros(1), 1 - pair.rank, torch.zeros(1), 1 - pair.rank)
            wait_for(back)
        whole = group.rebuild([0, 1, 2])
        right, left = (whole.rank + 1) % 3, (whole.rank - 1) % 3
        return int(whole.exchange(torch.tensor([whole.rank]), right, torch.tensor([-1]), left))

    job = labkit.start(work, 3, transport="local", on_failure="continue")
    assert eventually(lambda: any(text == "ended" for _, rank, text in job.events if rank == 1))
    job.restart(1)
    run = job.wait()
    assert run.results == [2, 0, 1]
    assert [text for _, rank, text in run.events if text == "restarted"] == ["restarted"]


def test_restart_is_refused_where_it_cannot_work() -> None:
    job = labkit.start(lambda group: None, 1)
    with pytest.raises(RefusedError, match="on_failure='continue'"):
        job.restart(0)
    job.wait()
    with pytest.raises(RefusedError, match="this run is over"):
        job.kill(0)
    with pytest.raises(RefusedError, match="ranks 0 to 0"):
        job.kill(1)


def test_two_jobs_at_once_do_not_mix() -> None:
    def ring(group, tag):
        total = torch.tensor([tag])
        for _ in range(20):
            right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
            total = group.exchange(total, right, torch.zeros(1, dtype=torch.int64), left)
        return int(total)

    for transport in ("local", "gloo"):
        jobs = [labkit.start(ring, 3, tag, transport=transport) for tag in (5, 6, 7)]
        assert [j.wait().results for j in jobs] == [[5] * 3, [6] * 3, [7] * 3]


def test_launch_works_from_threads_and_outlives_them() -> None:
    got = {}

    def go(n):
        got[n] = labkit.launch(lambda group: group.rank + n, 2).results

    threads = [threading.Thread(target=go, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert got == {n: [n, n + 1] for n in range(4)}
    box = []
    thread = threading.Thread(target=lambda: box.append(labkit.start(lambda group: time.sleep(0.3) or "alive", 2)))
    thread.start()
    thread.join()
    assert box[0].wait().results == ["alive", "alive"]  # though the thread that started it is gone


def test_many_launches_leak_no_descriptor() -> None:
    def once(fails):
        labkit.launch(lambda group: 1 / (1 - fails), 1, on_failure="return")

    once(0)
    before, threads = descriptors(), threading.active_count()
    for n in range(20):
        once(n % 2)
    assert eventually(lambda: descriptors() <= before)
    assert eventually(lambda: threading.active_count() <= threads)


def test_stopped_and_forgotten_jobs_leak_no_descriptor() -> None:
    labkit.launch(lambda group: None, 1)
    before = descriptors()
    for _ in range(5):
        labkit.start(lambda group: time.sleep(NEVER), 1).stop()
        labkit.start(lambda group: None, 1)  # nobody ever asks for its result
    assert eventually(lambda: descriptors() <= before)


def test_ranks_are_forked_from_huge_pages_where_the_system_makes_them() -> None:
    mine = mmap.mmap(-1, 4 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    mine.write(b"1" * len(mine))
    here = ctypes.addressof(ctypes.c_char.from_buffer(mine))
    if ctypes.CDLL(None).madvise(ctypes.c_void_p(-(-here >> 21) << 21), ctypes.c_size_t(1 << 21), 25):
        pytest.skip("this system makes no huge pages on request")

    def of_a_rank(group: labkit.Group) -> int:
        return sum(int(line.split()[1]) for line in open("/proc/self/smaps") if line.startswith("AnonHugePages"))

    assert min(labkit.launch(of_a_rank, 2).results) > 16 << 10, "kB: of some 200 MB"
