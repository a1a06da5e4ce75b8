"""A sandbox of each tier that stands here, and things of the grader's that an attack would like to have.

Tiers of the unprivileged are not had as root; test_as_ordinary_user.py runs these tests again as such a user.
"""

from __future__ import annotations

import glob
import os
import socket
import subprocess
import sys
import tempfile
import time

import pytest

from labkit.grading.sandbox import Limits, open_sandbox, stands

SMALL = {"seconds": 8.0, "wait": 2.0, "memory": 256 << 20, "threads": 16, "file": 2_000_000, "disk": 4_000_000}
RANK, DAEMON = f"lk-rank-{os.getpid()}"[:15], f"lk-wild-{os.getpid()}"[:15]  # as processes of this run call themselves
SECRET = "the-hidden-check-" + "of-the-grader"


@pytest.fixture(params=["root"] if os.geteuid() == 0 else ["userns", "landlock"])
def tier(request):
    trouble = stands(request.param)
    if trouble:
        pytest.skip(trouble)
    return request.param


@pytest.fixture
def sandbox(tier):
    """sandbox(source, **limits) opens one; closed after the test."""
    opened = []

    def make(*sources, **limits):
        opened.append(
            open_sandbox(sources, Limits(**(SMALL | {"output": 100_000, "result": 10_000_000} | limits)), tier)
        )
        return opened[-1]

    yield make
    for box in opened:
        box.close()


@pytest.fixture
def run(sandbox):
    """run(source, *args) calls `attack(*args)` of the source in one process; run.ranks(n, source) on n ranks."""

    def alone(source, *args, **limits):
        return sandbox(source, **limits).call("attack", 0, args)

    def ranks(n, source, inputs=None, **limits):
        return sandbox(source, **limits).call("attack", n, inputs)

    alone.ranks = ranks
    return alone


@pytest.fixture
def hidden(tmp_path):
    """A file of the grader's. Its mode and its folders' would let anyone have it: only the walls keep it."""
    path = tmp_path / "solutions.ipynb"
    path.write_text(SECRET)
    for folder in [tmp_path, *tmp_path.parents]:
        if folder.stat().st_uid == os.geteuid() and str(folder) != "/":
            folder.chmod(folder.stat().st_mode | 0o555)
    path.chmod(0o666)
    return path


@pytest.fixture
def victim():
    """A process of the grader's user that should stay alive."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def listeners(tmp_path):
    """What listens on this machine: (TCP port, abstract stream, abstract datagrams, a stream in a folder)."""
    tcp = socket.create_server(("127.0.0.1", 0))
    stream, datagrams, named = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM), None
    stream.bind(f"\0labkit-attack-{os.getpid()}")
    stream.listen()
    datagrams.bind(f"\0labkit-attack-dgram-{os.getpid()}")
    named = socket.socket(socket.AF_UNIX)
    named.bind(str(tmp_path / "s"))
    (tmp_path / "s").chmod(0o777)
    named.listen()
    yield [tcp, stream, datagrams, named]
    for sock in (tcp, stream, datagrams, named):
        sock.close()


@pytest.fixture(autouse=True)
def nothing_is_left():
    """After each test no process runs that it left, and no folder of a sandbox stays."""
    yield
    end = time.monotonic() + 5
    while (left := named(RANK, DAEMON)) and time.monotonic() < end:
        time.sleep(0.05)
    assert not left, f"still there: {left}"
    assert not files_of(os.getpid())


def files_of(grader):
    """What lies in folders of this grader's sandboxes."""
    folders = glob.glob(f"{tempfile.gettempdir()}/labkit-sandbox-{grader}-*")
    return [os.path.join(folder, name) for folder in folders for name in os.listdir(folder)]


def named(*names):
    """Processes of these names, by number."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat") as f:
                head, _, rest = f.read().rpartition(")")
        except OSError:
            continue
        if head.partition("(")[2] in names and rest.split()[0] != "Z":
            found[int(pid)] = head.partition("(")[2]
    return found
