"""However it ends, nothing stays: interrupt, a killed kernel, a killed worker, a killed host, an idle worker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest
from leftovers import NEVER, alive, eventually, processes

import labkit
from labkit import RankFailed

pytestmark = pytest.mark.ranks

PROGRAM = """
import os, subprocess, sys, threading, time, signal
import labkit
from labkit.world.engine import _zygote

def work(group):
    import torch
    if group.rank == 0:
        print(subprocess.Popen(["sleep", "1000"], start_new_session=True).pid, flush=True)
        time.sleep(1000)
    group.recv(torch.zeros(1), 0)

def begin(transport):
    started = labkit.start(work, 3, transport=transport)
    while not started._logs[0]:  # its ranks run
        time.sleep(0.01)
    return started
"""


def program(ending: str) -> subprocess.Popen[str]:
    """A program that starts jobs, as a notebook's kernel does. Each costs seconds: there are few, and much is seen."""
    script = PROGRAM + textwrap.dedent(ending)
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", script], stdout=pipe, stderr=pipe, text=True)


def told(started: subprocess.Popen[str], count: int) -> list[int]:
    """So many numbers that a program prints, without what its ranks do."""
    assert started.stdout is not None
    found: list[int] = []
    while len(found) < count:
        line = started.stdout.readline()
        assert line, started.communicate()[1]
        found.append(int(line.removeprefix("[rank 0] ")))
    return found


def gone(session: int) -> bool:
    return eventually(lambda: not processes(session))


def test_a_kernel_that_is_killed_takes_its_ranks_and_what_they_started_with_it() -> None:
    """Although a fork of it (multiprocessing, a subprocess with open descriptors) holds copies of its sockets."""
    ending = """
    jobs = [begin("local"), begin("gloo")]
    child = os.fork()
    if child == 0:
        os.close(1); os.close(2)
        time.sleep(1000)
        os._exit(0)
    print(_zygote._process.pid, child, sep="\\n", flush=True)
    time.sleep(1000)
    """
    parent = program(ending)
    *started, session, child = told(parent, 4)
    assert len(processes(session)) >= 2 + 2 * 4 and all(alive(p) for p in started)
    parent.kill()
    parent.communicate()
    try:
        assert gone(session), processes(session)
        assert eventually(lambda: not any(alive(p) for p in started))
        assert alive(child)
    finally:
        os.kill(child, signal.SIGKILL)


def test_an_interrupt_ends_the_ranks_and_leaves_the_kernel_usable_until_it_crashes() -> None:
    ending = """
    job = begin("local")
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        job.wait()
    except KeyboardInterrupt:
        print(sum(os.path.exists(f"/proc/{p}") for p in job.pids), flush=True)
    print(sum(labkit.launch(lambda group: group.rank, 3).results), _zygote._process.pid, sep="\\n", flush=True)
    job = begin("local")
    import ctypes; ctypes.string_at(0)
    """
    parent = program(ending)
    first, left, usable, session, second = told(parent, 5)
    assert (left, usable) == (0, 3)
    assert parent.wait(60) == -signal.SIGSEGV
    assert gone(session), processes(session)
    assert eventually(lambda: not alive(first) and not alive(second))
    parent.communicate()


def test_a_worker_that_is_killed_is_replaced_and_takes_all_with_it(tmp_path) -> None:
    from labkit.world.engine import _zygote

    def work(group, folder):
        if group.rank == 0:
            start_sleepers(group, folder)
        time.sleep(NEVER)

    job = labkit.start(work, 2, str(tmp_path))
    assert eventually((tmp_path / "pids").exists)
    pids = [int(p) for p in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 3 and all(alive(p) for p in pids)
    worker = _zygote._process.pid
    os.kill(worker, signal.SIGKILL)
    with pytest.raises(RankFailed, match="the process that watched the ranks was killed"):
        job.wait()
    assert eventually(lambda: not any(alive(p) for p in (*job.pids, *pids)))
    assert eventually(lambda: not processes(worker))
    assert labkit.launch(lambda group: group.rank, 2).results == [0, 1]


def test_a_host_that_is_killed_takes_its_ranks_with_it() -> None:
    job = labkit.start(lambda group: os.getppid() if group.rank == 0 else time.sleep(NEVER), 2, on_failure="continue")
    assert eventually(lambda: len(job.pids) == 2)
    with open(f"/proc/{job.pids[0]}/stat") as f:
        host = int(f.read().rpartition(")")[2].split()[1])
    os.kill(host, signal.SIGKILL)
    assert job.wait().failures[0].error == "HostDied"
    assert eventually(lambda: not any(alive(p) for p in job.pids))


def test_ranks_left_by_a_killed_host_end_even_in_deep_sleep() -> None:
    job = labkit.start(lambda group: signal.pause(), 3)
    assert eventually(lambda: len(job.pids) == 3)
    with open(f"/proc/{job.pids[0]}/stat") as f:
        os.kill(int(f.read().rpartition(")")[2].split()[1]), signal.SIGKILL)
    assert eventually(lambda: not any(alive(p) for p in job.pids))
    with pytest.raises(RankFailed):
        job.wait()


@pytest.mark.long
def test_an_idle_worker_is_replaced_a_fork_gets_its_own_and_an_end_takes_what_runs() -> None:
    ending = """
    os.environ["LABKIT_IDLE_SECONDS"] = "0.3"
    print(sum(labkit.start(lambda group: time.sleep(1.5) or 1, 2).wait().results))  # longer than it may be idle
    idle = _zygote._process.pid
    while os.path.exists(f"/proc/{idle}"):
        time.sleep(0.05)
    os.environ["LABKIT_IDLE_SECONDS"] = "1000"
    print(sum(labkit.launch(lambda group: group.rank, 2).results))
    mine = _zygote._process.pid
    print(int(mine != idle), flush=True)
    child = os.fork()
    if child == 0:
        right = labkit.launch(lambda group: group.rank, 2).results == [0, 1] and _zygote._process.pid != mine
        _zygote.close()
        os._exit(not right)
    print(os.waitpid(child, 0)[1])
    print(int(_zygote._process.pid == mine), sum(labkit.launch(lambda group: group.rank, 2).results), mine, sep="\\n")
    job = begin("local")
    raise SystemExit(0)
    """
    parent = program(ending)
    done, new, other, forked, same, again, session, started = told(parent, 8)
    assert (done, new, other, forked, same, again) == (2, 1, 1, 0, 1, 1)
    assert parent.wait(60) == 0
    assert gone(session), processes(session)
    assert eventually(lambda: not alive(started))
    parent.communicate()


def start_sleepers(group, folder):
    """One in the rank's own process group, one in a session of its own, one that its parent has left."""
    import pathlib

    sleep = ["sleep", f"{NEVER:g}"]
    pids = [subprocess.Popen(sleep).pid, subprocess.Popen(sleep, start_new_session=True).pid]
    leave = ["sh", "-c", f"{' '.join(sleep)} > /dev/null & echo $!"]
    pids.append(int(subprocess.run(leave, stdout=subprocess.PIPE).stdout))
    pathlib.Path(folder, "new").write_text(" ".join(map(str, pids)))
    pathlib.Path(folder, "new").rename(pathlib.Path(folder, "pids"))


@pytest.mark.parametrize("ending", ["finished", "stopped", "host killed", "rank killed"])
def test_what_a_rank_started_ends_with_its_world(ending, tmp_path) -> None:
    def work(group, folder):
        start_sleepers(group, folder)
        if ending != "finished":
            time.sleep(NEVER)

    def wait(group, gate):
        while not gate.exists():
            time.sleep(0.01)
        return "unharmed"

    other = labkit.start(wait, 1, tmp_path / "gate")
    job = labkit.start(work, 1, str(tmp_path), on_failure="return")
    assert eventually((tmp_path / "pids").exists)
    pids = [int(p) for p in (tmp_path / "pids").read_text().split()]
    if ending == "stopped":
        job.stop()
    elif ending == "host killed":
        with open(f"/proc/{job.pids[0]}/stat") as f:
            os.kill(int(f.read().rpartition(")")[2].split()[1]), signal.SIGKILL)
    elif ending == "rank killed":
        job.kill(0)
    job.wait()
    assert len(pids) == 3 and eventually(lambda: not any(alive(p) for p in pids)), [p for p in pids if alive(p)]
    (tmp_path / "gate").touch()
    assert other.wait().results == ["unharmed"]
