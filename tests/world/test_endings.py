"""However it ends, nothing stays: interrupt, a killed kernel, a killed worker, a killed host, an idle worker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest
from leftovers import alive, eventually, processes, soon

import labkit
from labkit import RankFailed

PROGRAM = """
import os, sys, time, signal, threading
import labkit
from labkit.world.engine import _zygote

def work(group):
    import torch
    if group.rank == 0:
        time.sleep(100)
    group.recv(torch.zeros(1), 0)

job = labkit.start(work, 3, transport=sys.argv[1])
while len(job.pids) < 3:
    time.sleep(0.01)
time.sleep(0.2)
print(_zygote._process.pid, flush=True)
"""


def program(transport: str, ending: str) -> tuple[subprocess.Popen[str], int]:
    """A program that has a running job, as a notebook's kernel has; and the session of its worker."""
    script = PROGRAM + textwrap.dedent(ending)
    command, pipe = [sys.executable, "-c", script, transport], subprocess.PIPE
    started = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)
    assert started.stdout is not None
    return started, int(started.stdout.readline())


def gone(session: int) -> bool:
    return eventually(lambda: not processes(session))


@pytest.mark.parametrize("transport", ["local", "gloo"])
def test_a_kernel_that_is_killed_takes_its_ranks_with_it(transport) -> None:
    parent, session = program(transport, "time.sleep(100)")
    assert len(processes(session)) >= 5
    parent.kill()
    parent.wait()
    assert gone(session), processes(session)


def test_a_kernel_that_crashes_takes_its_ranks_with_it() -> None:
    parent, session = program("local", "import ctypes; ctypes.string_at(0)")
    assert parent.wait(30) == -signal.SIGSEGV
    assert gone(session), processes(session)


def test_a_kernel_that_ends_takes_its_ranks_with_it() -> None:
    parent, session = program("local", "raise SystemExit(0)")
    assert parent.wait(30) == 0
    assert gone(session), processes(session)


def test_an_interrupt_ends_the_ranks_and_leaves_the_kernel_usable() -> None:
    ending = """
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        job.wait()
    except KeyboardInterrupt:
        print("interrupted", [os.path.exists(f"/proc/{p}") for p in job.pids], flush=True)
    print(labkit.launch(lambda group: group.rank, 2).results, flush=True)
    """
    parent, session = program("local", ending)
    out, err = parent.communicate(timeout=60)
    assert out == "interrupted [False, False, False]\n[0, 1]\n", (out, err)
    assert gone(session), processes(session)


def test_a_child_of_the_kernel_does_not_keep_its_ranks_alive() -> None:
    """A fork of the kernel (multiprocessing, a subprocess with open descriptors) holds copies of its sockets."""
    ending = """
    child = os.fork()
    if child == 0:
        os.close(1); os.close(2)
        time.sleep(300)
        os._exit(0)
    print(child, flush=True)
    time.sleep(100)
    """
    parent, session = program("local", ending)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    try:
        assert gone(session), processes(session)
        assert alive(child)
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_worker_that_is_killed_is_replaced() -> None:
    from labkit.world.engine import _zygote

    job = labkit.start(lambda group: time.sleep(60), 2)
    assert eventually(lambda: len(job.pids) == 2)
    worker = _zygote._process.pid
    os.kill(worker, signal.SIGKILL)
    with pytest.raises(RankFailed, match="the process that watched the ranks was killed"):
        job.wait()
    assert eventually(lambda: not any(alive(p) for p in job.pids))
    assert eventually(lambda: not processes(worker))
    assert labkit.launch(lambda group: group.rank, 2).results == [0, 1]


def test_a_host_that_is_killed_takes_its_ranks_with_it() -> None:
    job = labkit.start(lambda group: os.getppid() if group.rank == 0 else time.sleep(60), 2, on_failure="continue")
    assert eventually(lambda: len(job.pids) == 2)
    with open(f"/proc/{job.pids[0]}/stat") as f:
        host = int(f.read().rpartition(")")[2].split()[1])
    begin = time.monotonic()
    os.kill(host, signal.SIGKILL)
    run = job.wait()
    assert run.failures[0].error == "HostDied" and time.monotonic() - begin < soon()
    assert eventually(lambda: not any(alive(p) for p in job.pids))


def test_ranks_left_by_a_killed_host_end_even_in_deep_sleep() -> None:
    job = labkit.start(lambda group: signal.pause(), 3)
    assert eventually(lambda: len(job.pids) == 3)
    with open(f"/proc/{job.pids[0]}/stat") as f:
        os.kill(int(f.read().rpartition(")")[2].split()[1]), signal.SIGKILL)
    assert eventually(lambda: not any(alive(p) for p in job.pids))
    with pytest.raises(RankFailed):
        job.wait()


def test_an_idle_worker_goes_and_a_later_launch_brings_a_new_one() -> None:
    script = """
    import os, time
    os.environ["LABKIT_IDLE_SECONDS"] = "0.5"
    import labkit
    from labkit.world.engine import _zygote
    job = labkit.start(lambda group: time.sleep(2.5) or "done", 2)
    print(job.wait().results)  # longer than a worker may be idle
    pid = _zygote._process.pid
    end = time.time() + 20
    while time.time() < end and os.path.exists(f"/proc/{pid}"):
        time.sleep(0.05)
    print(os.path.exists(f"/proc/{pid}"))
    print(labkit.launch(lambda group: group.rank, 2).results, _zygote._process.pid != pid)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=100)
    assert done.stdout == "['done', 'done']\nFalse\n[0, 1] True\n", done.stderr


def test_a_fork_of_the_kernel_gets_a_worker_of_its_own() -> None:
    script = """
    import os, labkit
    from labkit.world.engine import _zygote
    labkit.launch(lambda group: None, 1)
    mine = _zygote._process.pid
    child = os.fork()
    got = labkit.launch(lambda group: group.rank, 2).results
    print(got, (_zygote._process.pid == mine) == (child != 0), flush=True)
    if child:
        os.waitpid(child, 0)
        print(labkit.launch(lambda group: group.rank, 2).results, flush=True)
    else:
        _zygote.close()
        os._exit(0)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=100)
    assert sorted(done.stdout.splitlines()) == ["[0, 1]", "[0, 1] True", "[0, 1] True"], done.stderr


def start_sleepers(group, folder):
    """One in the rank's own process group, one in a session of its own, one that its parent has left."""
    import pathlib

    sleep = "import time; time.sleep(300)"
    pids = [subprocess.Popen([sys.executable, "-c", sleep]).pid]
    pids.append(subprocess.Popen([sys.executable, "-c", sleep], start_new_session=True).pid)
    leave = f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {sleep!r}], stdout=-3).pid)"
    pids.append(int(subprocess.run([sys.executable, "-c", leave], stdout=subprocess.PIPE).stdout))
    pathlib.Path(folder, "new").write_text(" ".join(map(str, pids)))
    pathlib.Path(folder, "new").rename(pathlib.Path(folder, "pids"))


@pytest.mark.parametrize("ending", ["finished", "stopped", "host killed", "rank killed", "worker killed"])
def test_what_a_rank_started_ends_with_its_world(ending, tmp_path) -> None:
    from labkit.world.engine import _zygote

    def work(group, folder):
        start_sleepers(group, folder)
        if ending != "finished":
            time.sleep(100)

    other = labkit.start(lambda group: time.sleep(3) or "unharmed", 1) if ending != "worker killed" else None
    job = labkit.start(work, 1, str(tmp_path), on_failure="return")
    assert eventually((tmp_path / "pids").exists, 20)
    pids = [int(p) for p in (tmp_path / "pids").read_text().split()]
    if ending == "stopped":
        job.stop()
    elif ending == "host killed":
        with open(f"/proc/{job.pids[0]}/stat") as f:
            os.kill(int(f.read().rpartition(")")[2].split()[1]), signal.SIGKILL)
    elif ending == "rank killed":
        job.kill(0)
    elif ending == "worker killed":
        os.kill(_zygote._process.pid, signal.SIGKILL)
    job.wait()
    assert len(pids) == 3 and eventually(lambda: not any(alive(p) for p in pids)), [p for p in pids if alive(p)]
    assert other is None or other.wait().results == ["unharmed"]


def test_a_kernel_that_is_killed_takes_what_its_ranks_started_with_it(tmp_path) -> None:
    script = """
    import subprocess, sys, time
    import labkit
    def work(group):
        print(subprocess.Popen(["sleep", "300"], start_new_session=True).pid, flush=True)
        time.sleep(100)
    labkit.launch(work, 1)
    """
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline().removeprefix("[rank 0] "))
    assert alive(child)
    parent.kill()
    parent.wait()
    assert eventually(lambda: not alive(child))
