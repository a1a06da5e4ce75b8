"""A fault-tolerant run in one call: what it gives back, and that it leaves nothing behind, however it ends."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from dataclasses import replace

import psutil
import pytest
from leftovers import NEVER, alive, eventually

from labkit import Hang, Kill, Slow
from labkit.resilience import Deadlines
from labkit.resilience.audit import AuditFailed
from labkit.resilience.ft_hsdp import FtConfig
from labkit.resilience.storm.models import MODELS
from labkit.resilience.supervising.run import RunFailed, run_ft_hsdp, start_ft_hsdp
from labkit.wire.errors import RefusedError

pytestmark = pytest.mark.ranks

CONFIG = FtConfig(2, deadlines=Deadlines.for_step(0.2), batch=4, join_wait=0.5)


@pytest.fixture(autouse=True)
def nothing_stays(tmp_path_factory, monkeypatch):
    """No service, no thread, no folder: of labkit's processes only the one that all launches share."""
    own = tmp_path_factory.mktemp("own")  # others on this machine make temporary folders too
    monkeypatch.setattr(tempfile, "tempdir", str(own))
    services, threads = found_services(), set(threading.enumerate())
    yield
    assert eventually(lambda: found_services() == services)
    ours = {"labkit-supervisor", "labkit-quorum-watch", "labkit-thaw"}
    assert [t.name for t in set(threading.enumerate()) - threads if t.name in ours] == []
    assert list(own.glob("labkit-audit-*")) == []


def found_services() -> list[int]:
    children = psutil.Process(os.getpid()).children()
    return sorted(p.pid for p in children if "labkit.resilience.quorum" in " ".join(p.cmdline()))


def endless(inner, seed):
    model, optimizer, loss = MODELS["plain"](inner, seed)

    def slow(model, numbers):
        with inner.compute(0.1):
            return loss(model, numbers)

    return model, optimizer, slow


def broken(inner, seed):
    raise ValueError("this model was never going to work")


def test_a_calm_run(tmp_path) -> None:
    run = run_ft_hsdp(CONFIG, MODELS["plain"], 3, log_dir=tmp_path).require()
    assert list(run.finished) == [0, 1] and [r.steps for r in run.results] == [3, 3]
    assert run.audit.consumed == (12, 12) and run.incidents == [] and run.errors == []
    assert len(list(tmp_path.glob("audit-*.jsonl"))) == 2 and [q.step for _, q in run.rounds][:3] == [0, 1, 2]
    assert "audit ok" in repr(run)


@pytest.mark.long
def test_a_rank_slower_than_the_deadlines_is_started_anew_and_the_others_go_on() -> None:
    limits = CONFIG.deadlines
    factor = (0.5 * limits.message + 0.5 * limits.hang) / 0.1  # late for the others, not late enough to be hung
    config = replace(CONFIG, replicas=3, evict=3)
    run = run_ft_hsdp(config, endless, 12, faults=[Slow(1, step=4, factor=factor)]).require()
    assert list(run.finished) == [0, 1, 2] and [i.replica for i in run.incidents] == [1]
    held = next(r for r in run.results if r.replica == 0)
    assert 3 <= sum(not a.committed and a.role == "healthy" for a in held.attempts) <= 5


def test_a_replica_that_is_killed_comes_back_and_the_numbers_say_when() -> None:
    told = []
    run = run_ft_hsdp(CONFIG, endless, 14, faults=[Kill(1, at="forward", nth=4)], tell=told.append).require()
    (incident,) = run.incidents
    assert told == [incident] and list(run.finished) == [0, 1]
    times = [
        incident.struck,
        incident.detected,
        incident.ended,
        incident.restarted,
        incident.rejoined,
        incident.committed,
    ]
    assert times == sorted(times)
    failed = [at for at, rank, text in run.events if rank == 1 and text.startswith("failed: ")]
    assert [incident.detected] == failed, "its end is news, and no limit had to run out"
    assert {s.what for s in run.stalls} == {"kill", "rejoin"} and all(s.step > 0.09 for s in run.stalls)
    assert run.audit.fetches == 1 and run.audit.transferred > 0
    assert [b for b in run.audit.branches] == []


def test_when_all_replicas_are_lost_the_run_begins_anew_and_comes_to_its_end() -> None:
    run = run_ft_hsdp(CONFIG, endless, 8, faults=[Kill(r, at="forward", nth=4) for r in range(2)]).require()
    assert {i.replica for i in run.incidents} == {0, 1} and list(run.finished) == [0, 1]
    assert len(run.audit.lineage) == 8 and sum(run.audit.consumed) <= 8 * 2 * 4
    assert run.audit.commits > 16  # those of the first beginning too, which came to the same states


def test_a_spare_takes_the_place_of_a_lost_replica() -> None:
    config = FtConfig(2, deadlines=CONFIG.deadlines, batch=4, join_wait=0.5, spares=1)
    run = run_ft_hsdp(config, endless, 14, faults=[Kill(1, at="forward", nth=4)]).require()
    (incident,) = run.incidents
    assert (incident.replica, incident.by, incident.next) == (1, 2, 2) and list(run.finished) == [0, 1]
    spare = run.results[2]
    assert (spare.replica, spare.incarnation, spare.finished) == (1, 2, True) and not run.results[1].finished
    assert all(rank != 2 for _, rank, text in run.events if text == "restarted")  # it was there all the time


def test_the_quorum_service_is_killed_and_replaced() -> None:
    with start_ft_hsdp(CONFIG, endless, 25) as job:
        assert eventually(lambda: len(job.watch.rounds) > 3)
        first = job.service.pid
        os.kill(first, signal.SIGKILL)
        run = job.wait(60).require()
        assert job.service.replaced == 1 and job.service.pid != first
    assert list(run.finished) == [0, 1] and run.errors == [] and run.audit.consumed == (100, 100)


def test_an_interrupted_run_leaves_nothing() -> None:
    job = start_ft_hsdp(CONFIG, endless, 10**6)
    assert eventually(lambda: len(job.watch.rounds) > 2)
    pids = list(job.job.pids)
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(KeyboardInterrupt):
            job.wait()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
    assert eventually(lambda: not any(alive(p) for p in pids))


def test_interrupted_while_a_rank_hangs_and_another_restarts() -> None:
    job = start_ft_hsdp(CONFIG, endless, 10**6, faults=[Hang(0, at="forward", nth=3), Kill(1, at="forward", nth=3)])
    assert eventually(lambda: any(text.startswith("fault: Hang") for _, _, text in job.job.events))
    job.stop()
    job.stop()
    assert eventually(lambda: not any(alive(p) for p in job.job.pids))


def test_waiting_may_time_out_and_go_on() -> None:
    with start_ft_hsdp(CONFIG, endless, 10**6) as job:
        with pytest.raises(TimeoutError):
            job.wait(0.2)
        assert found_services() and not job.job.over


def test_an_error_that_comes_every_time_ends_the_run_and_is_told() -> None:
    run = run_ft_hsdp(CONFIG, broken, 3, birth=NEVER, deadline=NEVER)
    assert run.finished == {} and run.audit is None
    assert "was given up" in run.errors[0], run.errors
    with pytest.raises(RunFailed, match="this model was never going to work"):
        run.require()


def test_logs_that_break_a_promise_are_not_accepted() -> None:
    run = run_ft_hsdp(CONFIG, MODELS["plain"], 2)
    run.audit.problems.append("a sample was lost")
    with pytest.raises(AuditFailed, match="a sample was lost"):
        run.require()


def test_a_folder_that_will_not_do_is_refused_before_anything_starts(tmp_path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RefusedError, match="cannot be written"):
        run_ft_hsdp(CONFIG, MODELS["plain"], 2, log_dir=tmp_path / "file")
    (tmp_path / "audit-0000-0000.jsonl").touch()
    with pytest.raises(RefusedError, match="audit log of another run"):
        run_ft_hsdp(CONFIG, MODELS["plain"], 2, log_dir=tmp_path)
    with pytest.raises(RefusedError, match="no option 'stepps'"):
        run_ft_hsdp(CONFIG, MODELS["plain"], 2, stepps=3)
