"""Signals, processes, sockets: nothing outside is reached and nothing is left behind."""

from __future__ import annotations

import os
import time

import pytest

from .conftest import DAEMON, RANK, files_of, named

pytestmark = pytest.mark.ranks


def test_signals(run, victim):
    e = run("""
import ctypes, fcntl, os, signal
libc = ctypes.CDLL(None, use_errno=True)
def attack(grader, victim):
    done = []
    def tries(name, do):
        try:
            if do() != -1:
                done.append(name)
        except OSError:
            pass
    for pid in (grader, os.getppid()):
        tries("probe", lambda: os.kill(pid, 0))
    tries("group", lambda: os.killpg(victim, signal.SIGKILL))
    tries("kill", lambda: os.kill(victim, signal.SIGKILL))
    tries("tgkill", lambda: libc.syscall(234, victim, victim, 9))
    tries("queue", lambda: libc.sigqueue(victim, 9, None))
    a, b = os.pipe()
    def owner():
        fcntl.fcntl(a, fcntl.F_SETOWN, victim)
        fcntl.fcntl(a, 10, signal.SIGKILL)
        fcntl.fcntl(a, fcntl.F_SETFL, os.O_ASYNC)
        os.write(b, b"x")
    tries("owner", owner)
    return done
""", os.getpid(), victim.pid)  # fmt: skip
    assert e.results == [[]], e
    assert victim.poll() is None


def test_its_own_death_is_its_own(run, sandbox):
    for how in ("os._exit(0)", "os.kill(os.getpid(), 9)", "ctypes.string_at(0)", "os.abort()"):
        e = run(f"import ctypes, os\ndef attack(): {how}")
        assert e.failure is not None and e.failure.kind == "died" and e.failure.rank == 0, how
    e = run("import sys\ndef attack(): sys.exit(0)")
    assert e.failure is not None and e.failure.error == "SystemExit"


FORKS = """
import ctypes, os, time
def name(word): ctypes.CDLL(None).prctl(15, word.encode(), 0, 0, 0)
def attack(how):
    made = 0
    for _ in range(20):  # enough to see it; a mistake here may not hurt the machine
        try:
            if how == "fork": pid = os.fork()
            elif how == "clone": pid = ctypes.CDLL(None).syscall(56, 17, 0, 0, 0, 0)
            else: pid = ctypes.CDLL(None).syscall(58)
        except OSError:
            continue
        if pid == 0:
            name("DAEMON")
            try:
                os.setsid()
            except OSError:
                pass
            if how == "fork" and os.fork():
                os._exit(0)
            time.sleep(20)
            os._exit(0)
        made += pid > 0
    return made
"""


@pytest.mark.parametrize("how", ["fork", "clone"])
def test_processes_and_daemons(run, how):
    e = run(FORKS.replace("DAEMON", DAEMON), how)
    assert e.results == [0], e
    assert not named(DAEMON)


def test_programs(run):
    e = run("""
import os, subprocess
def attack():
    done = []
    for do in (lambda: os.system("true") == 0 or 1 / 0, lambda: subprocess.run(["/bin/true"]),
               lambda: os.posix_spawn("/bin/true", ["true"], {}), lambda: os.execv("/bin/true", ["true"])):
        try:
            do()
            done.append(1)
        except (OSError, ZeroDivisionError):
            pass
    return done
""")
    assert e.results == [[]], e


def test_threads_are_limited(run):
    e = run("""
import threading
def attack():
    stop, made = threading.Event(), []
    threading.stack_size(65536)
    try:
        for _ in range(300):
            made.append(threading.Thread(target=stop.wait, daemon=True))
            made[-1].start()
    except RuntimeError:
        made.pop()
    count = len(made)
    stop.set()
    return count
""", threads=16)  # fmt: skip
    assert e.failure is None and 4 <= e.results[0] <= 16 + 64


def test_the_network_and_other_sockets(run, listeners):
    tcp, stream, datagrams, named_one = listeners
    e = run("""
import socket
def attack(port, abstract, grams, path):
    done = []
    def tries(what, do):
        try:
            do()
            done.append(what)
        except OSError:
            pass
    tries("tcp", lambda: socket.create_connection(("127.0.0.1", port), 2))
    tries("udp", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", 9)))
    tries("abstract", lambda: socket.socket(socket.AF_UNIX).connect(abstract))
    tries("path", lambda: socket.socket(socket.AF_UNIX).connect(path))
    tries("pair", lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(b"x", grams))
    tries("listen", lambda: socket.create_server(("127.0.0.1", 0)))
    tries("netlink", lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW))
    tries("vsock", lambda: socket.socket(40, socket.SOCK_STREAM))
    for fd in (3, 4):
        tries("again", lambda: socket.fromfd(fd, socket.AF_UNIX, socket.SOCK_STREAM).connect(abstract))
    return done
""", tcp.getsockname()[1], *(s.getsockname().decode() for s in (stream, datagrams)),
        named_one.getsockname())  # fmt: skip
    assert e.results == [[]], e
    for sock in listeners:
        sock.setblocking(False)
        with pytest.raises(BlockingIOError):
            sock.recv(1) if sock is datagrams else sock.accept()


def test_nothing_runs_on_after_the_call(sandbox):
    box = sandbox(
        """
import ctypes, threading, time
def attack(x, group):
    ctypes.CDLL(None).prctl(15, b"RANK", 0, 0, 0)
    def busy():
        ctypes.CDLL(None).prctl(15, b"RANK", 0, 0, 0)
        while True: time.sleep(0.01)
    threading.Thread(target=busy).start()  # not a daemon: an interpreter would wait for it
    return x
""".replace("RANK", RANK)
    )
    assert box.call("attack", 3, [1, 2, 3]).results == [1, 2, 3]
    end = time.monotonic() + 3
    while named(RANK) and time.monotonic() < end:
        time.sleep(0.02)
    assert not named(RANK)


def test_a_sandbox_ends_with_its_grader(tier):
    """A grader that is killed in the middle of a call leaves no rank."""
    import signal
    import subprocess
    import sys

    script = f"""
from labkit.grading.sandbox import open_sandbox, Limits
box = open_sandbox(['''
import ctypes, time
def attack(x, group):
    ctypes.CDLL(None).prctl(15, b"RANK", 0, 0, 0)
    time.sleep(60)
'''], Limits(seconds=60), {tier!r})
print("open", flush=True)
box.call("attack", 2, [1, 2])
"""
    grader = subprocess.Popen([sys.executable, "-c", script.replace("RANK", RANK)], stdout=subprocess.PIPE)
    assert grader.stdout is not None and grader.stdout.readline() == b"open\n"
    end = time.monotonic() + 10
    while len(named(RANK)) < 2 and time.monotonic() < end:
        time.sleep(0.02)
    assert len(named(RANK)) == 2
    grader.send_signal(signal.SIGKILL)
    grader.wait()
    while (named(RANK) or files_of(grader.pid)) and time.monotonic() < end + 10:
        time.sleep(0.02)
    assert not named(RANK) and not files_of(grader.pid)
