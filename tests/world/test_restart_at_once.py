"""A job that is watched: events as they happen, and a rank restarted while it still dies."""

from __future__ import annotations

import os
import time

import pytest
from leftovers import NEVER, alive, eventually

import labkit

pytestmark = pytest.mark.ranks


def wait_for(path: str) -> None:
    while not os.path.exists(path):
        time.sleep(0.01)


def until(gate: str):
    def work(group):
        open(f"{gate}-{group.rank}-{os.getpid()}", "w").close()
        wait_for(gate)
        return os.getpid()

    return work


def lives(folder, rank: int) -> int:
    return len(list(folder.glob(f"gate-{rank}-*")))


def test_a_rank_that_was_killed_may_be_restarted_at_once(tmp_path) -> None:
    job = labkit.start(until(str(tmp_path / "gate")), 3, transport="local", on_failure="continue", deadline=NEVER)
    assert eventually(lambda: lives(tmp_path, 0) and lives(tmp_path, 1) and lives(tmp_path, 2))
    first = list(job.pids)
    for _ in range(2):
        before = lives(tmp_path, 1)
        job.kill(1)
        job.restart(1)  # it is not buried yet
        assert eventually(lambda before=before: lives(tmp_path, 1) == before + 1)
    (tmp_path / "gate").touch()
    run = job.wait()
    assert run.results[1] == job.pids[1] != first[1] and [job.pids[0], job.pids[2]] == [first[0], first[2]]
    told = [text for _, rank, text in run.events if rank == 1]
    assert told == ["failed: rank 1 was killed by SIGKILL", "ended", "restarted"] * 2 + ["ended"]
    assert eventually(lambda: not any(alive(p) for p in (*first, *job.pids)))


def test_a_rank_that_lives_is_not_restarted(tmp_path) -> None:
    job = labkit.start(until(str(tmp_path / "gate")), 2, transport="local", on_failure="continue", deadline=NEVER)
    assert eventually(lambda: lives(tmp_path, 0) and lives(tmp_path, 1))
    job.restart(1)
    (tmp_path / "gate").touch()
    run = job.wait()
    assert lives(tmp_path, 1) == 1 and run.results == job.pids


def test_events_are_told_as_they_happen(tmp_path) -> None:
    job = labkit.start(until(str(tmp_path / "gate")), 2, transport="local", on_failure="continue", deadline=NEVER)
    assert eventually(lambda: lives(tmp_path, 0) and lives(tmp_path, 1))
    begin = time.monotonic()
    assert job.await_events(0, 0.05) == [] and time.monotonic() - begin >= 0.05
    job.kill(0)
    told = job.await_events(0, NEVER)
    assert told[0][1:] == (0, "failed: rank 0 was killed by SIGKILL")
    assert eventually(lambda: [text for *_, text in job.events][-1] == "ended")
    assert job.await_events(len(job.events), 0.01) == []
    (tmp_path / "gate").touch()
    job.wait()
    assert job.await_events(len(job.events), NEVER) == [], "nobody waits for events of a run that is over"


def test_a_result_of_a_former_life_counts_no_more(tmp_path) -> None:
    def work(group, path):
        if group.rank == 1 and os.path.exists(path):
            raise RuntimeError("the second life fails")
        if group.rank == 0:
            wait_for(path + "-end")
        return group.rank

    path = str(tmp_path / "second")
    job = labkit.start(work, 2, path, transport="local", on_failure="continue", deadline=NEVER)
    assert eventually(lambda: job.finished == [1])
    open(path, "w").close()
    job.kill(1)
    job.restart(1)
    assert eventually(lambda: any("second life" in text for _, _, text in job.events)) and job.finished == []
    open(path + "-end", "w").close()
    run = job.wait()
    assert run.results == [0, None] and "second life" in run.failures[0].message


def test_a_job_that_is_held_goes_on_without_a_rank_until_it_is_let_go(tmp_path) -> None:
    job = labkit.start(until(str(tmp_path / "gate")), 2, transport="local", on_failure="continue", deadline=NEVER)
    job.hold(True)
    assert eventually(lambda: lives(tmp_path, 0) and lives(tmp_path, 1))
    job.kill(0)
    job.kill(1)
    assert eventually(lambda: [text for *_, text in job.events].count("ended") == 2)
    time.sleep(0.3)
    assert not job.over
    (tmp_path / "gate").touch()
    job.restart(0)
    job.restart(1)
    assert eventually(lambda: job.finished == [0, 1])
    time.sleep(0.2)
    assert not job.over
    job.hold(False)
    assert job.wait(5).results == job.pids


def test_a_held_job_can_be_stopped_and_has_a_deadline() -> None:
    job = labkit.start(lambda group: None, 2, transport="local", on_failure="continue", deadline=NEVER)
    job.hold(True)
    assert eventually(lambda: job.finished == [0, 1])
    job.stop()
    assert job.over
    job = labkit.start(lambda group: None, 2, transport="local", on_failure="continue", deadline=0.5)
    job.hold(True)
    assert [f.kind for f in job.wait(NEVER).failures] == ["deadline"]
