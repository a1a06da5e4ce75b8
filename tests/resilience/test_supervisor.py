"""The supervisor over simple ranks: whole units end and begin again, hung ones by the deadline, spares take places."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest
from leftovers import NEVER, alive, eventually

import labkit
from labkit import Hang, Kill
from labkit.resilience.audit.records import Commit, Fetch
from labkit.resilience.supervising.incidents import Incident, follow_up, stalls
from labkit.resilience.supervising.supervisor import Supervisor
from labkit.wire.errors import RefusedError

pytestmark = pytest.mark.ranks


class Service:
    """Stands for the client of the quorum service: counts incarnations and keeps what it was told."""

    def __init__(self) -> None:
        self.calls: list[tuple] = []
        self.incarnation: dict[int, int] = {}

    def begin(self, replica: int) -> int:
        self.incarnation[replica] = self.incarnation.get(replica, 0) + 1
        self.calls.append(("begin", replica))
        return self.incarnation[replica]

    def dead(self, replica: int, incarnation: int | None = None) -> None:
        self.calls.append(("dead", replica, incarnation))

    def promote(self, replica: int, data: dict | None = None) -> None:
        self.calls.append(("promote", replica, data))


def busy(group, folder):
    """Moves until there is a file "end"; rank r fails when there is a file "raise-r", and is still with "still-r"."""
    Path(folder, f"life-{group.rank}-{os.getpid()}").touch()
    while not os.path.exists(f"{folder}/end"):
        time.sleep(0.01)
        if os.path.exists(f"{folder}/raise-{group.rank}"):
            os.unlink(f"{folder}/raise-{group.rank}")
            raise RuntimeError("out of luck")
        if not os.path.exists(f"{folder}/still-{group.rank}"):
            with group.span("work"):
                pass
    return os.getpid()


class Watched:
    """A supervised job of `busy` ranks."""

    def __init__(self, folder, replicas: int, ranks: int, spares: int = 0, faults=(), **options):
        self.folder, self.service = folder, Service()
        first = {r: self.service.begin(r) for r in range(replicas)}
        size = (replicas + spares) * ranks
        self.job = labkit.start(busy, size, str(folder), transport="local", on_failure="continue", deadline=NEVER,
                                faults=list(faults))  # fmt: skip
        self.supervisor = Supervisor(self.job, self.service, replicas, ranks, incarnations=first, **options).start()
        self.service.calls.clear()

    def __enter__(self):
        assert eventually(lambda: all(self.lives(r) for r in range(self.job.spec.world_size)))
        return self

    def __exit__(self, *_) -> None:
        self.job.stop()
        self.supervisor.stop()

    def lives(self, rank: int) -> int:
        return len(list(self.folder.glob(f"life-{rank}-*")))

    def end(self):
        (self.folder / "end").touch()
        run = self.job.wait(30)
        self.supervisor.stop()
        return run


def told(run, rank: int, what: str) -> float:
    """When the job said this of a rank, the only time."""
    (at,) = (at for at, r, text in run.events if r == rank and text.startswith(what))
    return at


def test_a_rank_that_dies_takes_its_replica_with_it_and_both_come_back(tmp_path) -> None:
    with Watched(tmp_path, 2, 2) as w:
        first = list(w.job.pids)
        at = time.perf_counter() - w.job._start
        os.kill(first[3], 9)
        assert eventually(lambda: w.lives(2) == w.lives(3) == 2)
        run = w.end()
    assert w.service.calls == [("dead", 1, 1), ("begin", 1)]
    (incident,) = w.supervisor.incidents
    assert (incident.unit, incident.replica, incident.cause, incident.rank) == (1, 1, "died", 3)
    assert incident.next == 2 and incident.struck is None and "was killed by SIGKILL" in incident.why
    assert at <= incident.detected <= incident.ended <= incident.restarted
    assert incident.detected == told(run, 3, "failed: "), "its end is news, and no limit had to run out"
    assert run.results[:2] == first[:2] and run.results[2:] == w.job.pids[2:] and not set(first[2:]) & set(w.job.pids)
    assert (w.lives(0), w.lives(1)) == (1, 1) and w.supervisor.survivors() == [(0, 1), (1, 2)]
    assert not any(alive(p) for p in first)


def test_an_error_and_a_fault_are_told_apart(tmp_path) -> None:
    heard = []
    with Watched(tmp_path, 3, 1, faults=[Kill(2, at="work", nth=20)], tell=heard.append) as w:
        assert eventually(lambda: w.lives(2) == 2)
        (tmp_path / "raise-0").touch()
        assert eventually(lambda: w.lives(0) == 2)
        run = w.end()
    struck, raised = w.supervisor.incidents
    assert heard == [struck, raised]
    assert (struck.cause, raised.cause) == ("died", "raised") and "out of luck" in raised.why
    assert struck.struck == told(run, 2, "fault: ") <= struck.detected == told(run, 2, "failed: ")
    assert struck.detection >= 0 and raised.detection is None


@pytest.mark.parametrize("how", ["stopped", "still"])
def test_a_rank_that_does_not_move_is_ended_after_the_deadline(tmp_path, how) -> None:
    with Watched(tmp_path, 2, 2, hang=0.6) as w:
        if how == "stopped":
            w.job.inject(Hang(2))
        else:
            (tmp_path / "still-2").touch()
            assert eventually(lambda: w.supervisor.incidents)
            os.unlink(tmp_path / "still-2")
        assert eventually(lambda: w.lives(2) == w.lives(3) == 2)
        w.end()
    (incident,) = w.supervisor.incidents
    assert (incident.replica, incident.cause, incident.rank) == (1, "hung", 2)
    assert incident.why.endswith("and 0.6 s are allowed") and (incident.struck is not None) == (how == "stopped")
    assert how == "still" or incident.detection > 0.6


def test_a_spare_takes_the_place_and_the_lost_unit_becomes_the_spare(tmp_path) -> None:
    with Watched(tmp_path, 2, 2, spares=1) as w:
        w.job.kill(1)
        assert eventually(lambda: w.lives(0) == 2)
        assert w.supervisor.lives() == {0: 2, 1: 1}
        assert [u.replica for u in w.supervisor.units] == [None, 1, 0]
        w.job.kill(4)  # the spare that holds place 0 now
        assert eventually(lambda: w.lives(4) == 2)
        assert [u.replica for u in w.supervisor.units] == [0, 1, None]
        w.end()
    one, two = w.supervisor.incidents
    assert (one.by, one.replica, one.next, two.unit, two.by, two.replica, two.next) == (2, 0, 2, 2, 0, 0, 3)
    place = {"replica": 0, "incarnation": 2}
    assert [c for c in w.service.calls if c[0] == "promote"][:2] == [("promote", 4, place), ("promote", 5, place)]


def test_a_spare_may_be_still_and_may_die(tmp_path) -> None:
    with Watched(tmp_path, 1, 1, spares=1, hang=0.3) as w:
        (tmp_path / "still-1").touch()
        time.sleep(0.5)
        assert w.supervisor.incidents == []
        w.job.kill(1)
        assert eventually(lambda: w.lives(1) == 2)
        w.end()
    assert [(i.unit, i.replica) for i in w.supervisor.incidents] == [(1, None)] and w.service.calls == []


def test_two_lost_at_once_and_one_lost_again_while_it_starts(tmp_path) -> None:
    faults = [
        Kill(0, at="work", nth=5),
        Kill(1, at="work", nth=5),
        Kill(0, at="work", nth=7),
        Kill(0, at="work", nth=9),
    ]
    with Watched(tmp_path, 2, 2, faults=faults) as w:
        assert eventually(lambda: len(w.supervisor.incidents) >= 2 and w.lives(0) >= 3 and w.lives(1) >= 3)
        time.sleep(0.3)
        run = w.end()
    assert run.results == w.job.pids and w.lives(2) == w.lives(3) == 1 and w.supervisor.errors == []
    assert w.supervisor.survivors() == [(0, 1 + len(w.supervisor.incidents)), (1, 1)]


def test_all_lost_at_once_all_come_back(tmp_path) -> None:
    with Watched(tmp_path, 2, 2, faults=[Kill(r, at="work", nth=5) for r in range(4)]) as w:
        assert eventually(lambda: all(w.lives(r) >= 2 for r in range(4)))
        time.sleep(0.2)
        run = w.end()
    assert run.results == w.job.pids and {i.unit for i in w.supervisor.incidents} == {0, 1}


def test_an_error_that_comes_every_time_ends_the_run() -> None:
    def broken(group):
        raise ValueError("never going to work")

    job = labkit.start(broken, 2, transport="local", on_failure="continue", deadline=60)
    with Supervisor(job, None, 2, 1) as supervisor:
        run = job.wait(30)
    assert len(supervisor.incidents) == 6 and {i.cause for i in supervisor.incidents} == {"raised"}
    assert len(supervisor.errors) == 2 and "never going to work" in supervisor.errors[0] and run.results == [None, None]


def test_a_unit_that_fails_again_and_again_is_given_up(tmp_path) -> None:
    faults = [Kill(1, at="work", nth=3) for _ in range(5)]
    with Watched(tmp_path, 2, 1, faults=faults, restarts=2) as w:
        assert eventually(lambda: w.supervisor.errors)
        run = w.end()
    assert w.lives(1) == 3 and "unit 1 was given up after 2 restarts" in w.supervisor.errors[0]
    assert run.results[0] == w.job.pids[0] and run.results[1] is None


def test_nothing_is_started_again_when_the_others_are_through(tmp_path) -> None:
    def work(group, folder):
        if group.rank == 1:
            while not os.path.exists(f"{folder}/end"):
                with group.span("work"):
                    time.sleep(0.01)
        return group.rank

    job = labkit.start(work, 2, str(tmp_path), transport="local", on_failure="continue", deadline=60)
    with Supervisor(job, None, 2, 1) as supervisor:
        assert eventually(lambda: job.finished == [0])
        job.kill(1)
        run = job.wait(30)
    assert run.results == [0, None] and [i.restarted for i in supervisor.incidents] == [None]
    assert supervisor.survivors() == [(0, 0)]


def test_its_thread_ends_with_the_job_and_when_told(tmp_path) -> None:
    with Watched(tmp_path, 1, 1) as w:
        w.supervisor.stop()
        assert not w.supervisor._thread.is_alive() and not w.job.over
    with Watched(tmp_path, 1, 1) as w:
        w.job.stop()
        assert eventually(lambda: not w.supervisor._thread.is_alive())
    assert not [t for t in threading.enumerate() if t.name == "labkit-supervisor"]


def test_a_service_that_does_not_answer_is_noted(tmp_path) -> None:
    with Watched(tmp_path, 2, 1) as w:
        w.service.dead = lambda *a: (_ for _ in ()).throw(ConnectionError("nobody there"))
        w.job.kill(1)
        assert eventually(lambda: w.lives(1) == 2)
        w.end()
    assert w.supervisor.errors == ["ConnectionError: nobody there"]


def test_what_cannot_be_supervised_is_refused(tmp_path) -> None:
    job = labkit.start(lambda group: None, 3)
    with pytest.raises(RefusedError, match="on_failure='continue'"):
        Supervisor(job, None, 3)
    job.wait()
    job = labkit.start(lambda group: None, 3, on_failure="continue")
    with pytest.raises(RefusedError, match="a world of 3 ranks does not hold 2 replicas of 2 ranks"):
        Supervisor(job, None, 2, 2)
    job.wait()


# -- numbers ----------------------------------------------------------------------------------------------------------


def commits(replica: int, incarnation: int, times, rank: int = 0) -> list[Commit]:
    return [Commit(n, replica, rank, incarnation, at=100 + t, quorum=1, contributors=(0,), positions=(0,), parent="",
                   checksum="") for n, t in enumerate(times)]  # fmt: skip


def test_stalls_are_the_gaps_in_which_a_failure_and_a_return_fell() -> None:
    lines = (
        commits(0, 1, [1, 2, 3, 4.7, 5.7, 6.7, 8.0, 9, 10]) + commits(1, 1, [1, 2, 3]) + commits(1, 2, [7.99, 9, 10])
    )
    lines.append(Fetch(6, 1, 0, 2, at=107.5, quorum=2, source=0, positions=(0,), checksum=""))
    lost = Incident(1, 1, 1, "died", 1, "", detected=3.3, struck=3.2, next=2)
    follow_up([lost], lines, 100)
    assert lost.rejoined == pytest.approx(7.5) and lost.committed == pytest.approx(7.99)
    kill, rejoin = stalls([lost], lines, 100)
    assert (kill.what, kill.replica) == ("kill", 0) and kill.gap == pytest.approx(1.7)
    assert kill.extra == pytest.approx(0.7) and rejoin.extra == pytest.approx(0.3)
    assert "struck 3.200 s, detected 3.300 s" in str(lost) and lost.detection == pytest.approx(0.1)
