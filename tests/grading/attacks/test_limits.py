"""Time, memory, disk, output, results: what a submission takes is bounded, and the call says which bound it was."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from leftovers import NEVER

pytestmark = pytest.mark.ranks

LOOPS = ["while True: pass", "import time; time.sleep(1000)", "10 ** 10 ** 9",
         "import threading; threading.Event().wait()", "import signal; signal.pause()"]  # fmt: skip


@pytest.mark.parametrize("loop", LOOPS)
def test_loops_and_sleeps_end_at_the_limit(run, loop):
    source = f"""
def attack():
    import signal
    for number in range(1, 65):
        try:
            signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError):
            pass
    {loop}
"""
    e = run(source, seconds=1.0)
    assert e.failure is not None and e.failure.kind == "time", e


@pytest.fixture
def busy():
    """A machine whose cores all have much else to do."""
    burns = [sys.executable, "-c", "print('burns', flush=True)\nwhile True: pass"]
    others = [  # in sessions of their own: Linux shares the cores among sessions first
        subprocess.Popen(burns, stdout=subprocess.PIPE, start_new_session=True)
        for _ in range(5 * len(os.sched_getaffinity(0)))
    ]
    for other in others:
        other.stdout.readline()
    yield
    for other in others:
        other.kill()
        other.communicate()


COMPUTES = """
import time
def attack(seconds):
    while time.process_time() < seconds: pass
    return "there"
"""


def test_time_in_which_others_had_the_cores_does_not_count(run, busy):
    e = run(COMPUTES, 0.7, seconds=1.0)
    assert e.failure is None and e.results == ["there"]
    assert 0 < e.longer <= 9


SLEEPS = """
import time
def attack(seconds):
    time.sleep(seconds)
    return "there"
"""


def test_a_call_has_taken_its_own_seconds_and_not_those_of_others(run, busy):
    assert 0.5 < run(COMPUTES, 0.7, seconds=1.0).seconds < 1.5  # with a sixth of the cores it took several
    assert 0.5 < run(SLEEPS, 0.9, seconds=2.0).seconds < 1.5


def test_a_loop_on_a_busy_machine_ends_too(run, busy):
    e = run(COMPUTES, 1000.0, seconds=0.5)
    assert e.failure is not None and e.failure.kind == "time"


def test_a_loop_in_the_answer_cell_itself(sandbox):
    e = sandbox("x = 1\nwhile True: x += 1", seconds=1.0).value("x")
    assert e.failure is not None and e.failure.kind == "time"


MEMORY = """
import mmap
def attack(how):
    held = []
    for _ in range(64):  # 1 GB at most, should no limit hold
        if how == "bytes": held.append(b"x" * 16_000_000)
        elif how == "shared":
            held.append(mmap.mmap(-1, 16_000_000)); held[-1].write(b"x" * 16_000_000)
        else:
            import torch
            held.append(torch.ones(4_000_000))
    return len(held)
"""


@pytest.mark.parametrize("how", ["bytes", "shared", "tensor"])
def test_memory(run, how):
    e = run(MEMORY, how)
    assert e.failure is not None and e.failure.kind == "memory", e
    assert max(e.peak_bytes) < 420e6


def test_memory_that_no_process_has_mapped(run):
    e = run("""
import os, ctypes
def attack():
    libc, total = ctypes.CDLL(None), 0
    for _ in range(4):
        fd = libc.memfd_create(b"x", 0)
        if fd >= 0:
            try:
                total += os.write(fd, bytes(1_000_000))
            except OSError:
                pass
    return total
""")
    assert e.results == [0], e


DISK = """
import os
def attack(how):
    total = 0
    for n in range(64):  # 64 MB at most
        try:
            if how == "files": fd = os.open(f"f{n}", os.O_CREAT | os.O_WRONLY)
            elif how == "unnamed": fd = os.open(".", os.O_TMPFILE | os.O_RDWR)
            else:
                fd = os.open(f"f{n}", os.O_CREAT | os.O_WRONLY)
                try: os.unlink(f"f{n}")
                except OSError: pass
            total += os.write(fd, bytes(1_000_000))
        except OSError:
            pass
    import time; time.sleep(0.3)
    return total
"""


@pytest.mark.parametrize("how", ["files", "unnamed", "deleted"])
def test_disk(run, how, tier):
    e = run(DISK, how)
    if e.failure is not None:
        assert tier == "landlock" and e.failure.kind == "disk"  # there the limit is looked at, and ends the call
    else:
        assert e.results[0] <= 4_000_000


def test_one_file(run):
    e = run("""
def attack():
    with open("long", "wb", buffering=0) as f:
        try:
            for _ in range(64): f.write(bytes(1_000_000))
        except OSError as error: return f.tell()
    return f.tell()
""", file=1_500_000)  # fmt: skip
    assert e.results == [1_500_000]


def test_many_small_files(run):
    e = run("""
def attack():
    for n in range(20_000):
        try:
            open(f"n{n}", "w").close()
        except OSError:
            return n
    import time; time.sleep(0.3)
    return 20_000
""")
    assert (e.results and e.results[0] < 4000) or e.failure.kind == "disk", e


def test_elsewhere_nothing_can_be_written(run):
    e = run("""
import os, labkit, torch
def attack():
    done = []
    packages = [os.path.dirname(m.__file__) for m in (os, torch, labkit)]
    for folder in ("/", "/tmp", "/dev/shm", "/var/tmp", "/run", "/dev", "/usr/lib", "..", *packages):
        try:
            open(os.path.join(folder, "labkit-was-here"), "w").close()
            done.append(folder)
        except OSError:
            pass
    return done
""")
    assert e.results == [[]], e


@pytest.mark.parametrize("by", ["os.write(1, b'x' * 65536)", "print('x' * 1000)", "os.write(2, b'x' * 65536)"])
def test_ten_gigabytes_of_output(run, by):
    e = run(f"import os\ndef attack():\n    for _ in range(10_000_000): {by}", seconds=NEVER)
    assert e.failure is not None and e.failure.kind == "output" and len(e.output) <= 100_000


def test_results_that_are_too_large(run):
    e = run("import torch\ndef attack(): return torch.ones(5_000_000)")
    assert e.failure is not None and e.failure.kind == "data" and "too long" in e.failure.text
    e = run("def attack(): return [0] * 1_000_000")
    assert e.failure is not None and e.failure.kind == "data"


def test_an_answer_that_never_ends(run):
    """It announces what is allowed, and then drips."""
    e = run("""
import os, time
def attack():
    from labkit.grading.sandbox import plain_data
    os.write(3, b"R" + plain_data.PREFIX.pack(b"LKD1", 100, 1_000_000))
    while True:
        os.write(3, b" ")
        time.sleep(0.001)
""", seconds=1.0)  # fmt: skip
    assert e.failure is not None and e.failure.kind == "time"


RUBBISH = [
    "b'x' * 100",
    "b'D' + bytes(4)",
    "b'D' + b'\\xff' * 12",
    "b'R' + b'\\xff' * 40",
    "b'F' + b'LKD1' + bytes(60)",
]


@pytest.mark.parametrize("what", RUBBISH)
def test_rubbish_to_the_grader(run, what):
    e = run.ranks(2, f"import os\ndef attack(x, group):\n    os.write(3, {what})\n    return x", [1, 2])
    assert e.failure is not None and e.failure.kind in ("protocol", "data", "time", "raised"), e
    assert not e.results


def test_links_in_the_home_lead_nowhere(sandbox, hidden):
    box = sandbox("""
import os
def attack(path, folder):
    os.symlink(path, "link")
    os.symlink(folder, "folder")
    os.symlink("..", "up")
    os.makedirs("a/b/c")
    os.symlink("/", "a/b/root")
    read = []
    for name in ("link", "folder/" + os.path.basename(path), "up/../../" + path, "a/b/root" + path):
        for mode in ("r", "a"):
            try:
                with open(name, mode) as f:
                    read.append(name)
            except (OSError, ValueError):
                pass
    for name in ("link", "folder"):
        try:
            os.rename(name, "../1")
            read.append("moved")
        except OSError:
            pass
    return read
""")
    for _ in range(2):
        assert box.call("attack", 0, [str(hidden), str(hidden.parent)]).results == [[]]
    box.close()
    assert hidden.exists() and hidden.stat().st_size


def test_the_grader_keeps_no_descriptors(sandbox):
    box = sandbox("""
from labkit.collectives import ring_all_reduce
import torch, os
def attack(x, group): return ring_all_reduce(torch.ones(5), group)
def dies(x, group): os._exit(1)
""")
    box.call("attack", 3, [1, 2, 3])
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        assert box.call("attack", 3, [1, 2, 3]).failure is None
        assert box.call("dies", 3, [1, 2, 3]).failure is not None
    assert len(os.listdir("/proc/self/fd")) == before
