"""Hidden checks, other submissions, the grader's memory and descriptors: not to be had."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from labkit.grading.known import Answers

from .conftest import SECRET

pytestmark = pytest.mark.ranks

READ = """
def attack(path):
    seen = []
    for open_it in (lambda: open(path).read(), lambda: open(path, "a").write("x"), lambda: open(path, "r+").read()):
        try:
            seen.append(open_it())
        except OSError:
            pass
    return seen
"""


def test_hidden_checks_on_disk(run, hidden):
    assert run(READ, str(hidden)).results == [[]]
    assert hidden.read_text() == SECRET


def test_a_walk_over_everything_finds_nothing_of_the_graders(run, hidden):
    e = run("""
import os
def attack(name, secret):
    found = []
    for folder, _, files in os.walk("/"):
        if folder.startswith(("/sys", "/usr/lib", "/lib")) or folder.count("/") > 9:
            continue
        for file in files:
            path = os.path.join(folder, file)
            try:
                if file == name or file.endswith(".ipynb") and "-packages" not in path:
                    found.append(open(path).read(50))
            except OSError:
                pass
    return found
""", hidden.name, "", seconds=150.0)  # fmt: skip  # disks differ, and the walk must come to its end
    assert e.failure is None and e.results == [[]], e


def test_what_programs_are_compared_with(run):
    path = Path(__file__).parents[3] / "solutions" / "10_pipeline_parallelism" / "answers.py"
    assert path.is_file() and Answers("10_pipeline_parallelism").limited_1f1b(2, 977, 2)
    e = run("""
import os, sys
def attack(path):
    found = [name for name in sys.modules if "answers_" in name]
    os.environ["LABKIT_SOLUTIONS"] = os.path.dirname(os.path.dirname(path))
    try:
        found.append(open(path).read())
    except OSError:
        pass
    try:
        from labkit.grading.known import Answers
        found.append(Answers("10_pipeline_parallelism").limited_1f1b(2, 977, 2))
    except Exception as error:
        found.append(type(error).__name__)
    return found
""", str(path))  # fmt: skip
    assert e.results == [["NotKnown"]], e


def test_the_mode_of_a_file_cannot_be_changed(run, hidden):
    before = os.stat(hidden)
    e = run("""
import os
def attack(path):
    done = []
    for name, do in {"chmod": lambda: os.chmod(path, 0), "chown": lambda: os.chown(path, os.getuid(), os.getgid()),
                     "utime": lambda: os.utime(path), "truncate": lambda: os.truncate(path, 0),
                     "unlink": lambda: os.unlink(path), "rename": lambda: os.rename(path, path + "x"),
                     "link": lambda: os.link(path, "mine"), "xattr": lambda: os.setxattr(path, "user.x", b"1"),
                     "mkdir": lambda: os.mkdir(path + ".d")}.items():
        try:
            do()
            done.append(name)
        except OSError:
            pass
    return done
""", str(hidden))  # fmt: skip
    assert e.results == [[]]
    after = os.stat(hidden)
    assert (before.st_mode, before.st_mtime_ns, before.st_size) == (after.st_mode, after.st_mtime_ns, after.st_size)


def test_memory_of_other_processes(run, victim):
    e = run("""
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def attack(pids):
    done = []
    for pid in [os.getppid(), *pids]:
        for what in ("mem", "environ", "maps", "fd", "cwd", "root", "cmdline"):
            path = f"/proc/{pid}/{what}"
            try:
                os.listdir(path) if what in ("fd", "cwd", "root") else open(path, "rb").read(0)
                done.append(path)
            except OSError:
                pass
        if libc.ptrace(16, pid, 0, 0) == 0 or libc.ptrace(0x4206, pid, 0, 0) == 0:
            done.append("ptrace")
        raw = ctypes.create_string_buffer(8)
        vector = (ctypes.c_void_p * 2)(ctypes.addressof(raw), 8)
        if libc.process_vm_readv(pid, vector, 1, vector, 1, 0) >= 0 or ctypes.get_errno() == 14:
            done.append("process_vm_readv")
    return done
""", [os.getpid(), victim.pid])  # fmt: skip
    assert e.results == [[]], e


def test_its_own_memory_holds_nothing_of_the_graders(run, monkeypatch):
    monkeypatch.setenv("LABKIT_ATTACK_SECRET", SECRET)
    e = run("""
import gc, os, sys
def attack(first, second):
    word = first + second
    found = [k for k, v in os.environ.items() if word in v]
    for thing in gc.get_objects():
        inner = thing.values() if type(thing) is dict else thing if type(thing) in (list, tuple) else ()
        found += ["object" for x in inner if type(x) is str and x != word and word in x]
    frame = sys._getframe()
    while frame is not None:
        found += ["frame" for v in frame.f_locals.values() if type(v) is str and v != word and word in v]
        frame = frame.f_back
    return found + [k for k in os.environ if k.startswith("LABKIT_ATTACK")]
""", SECRET[:9], SECRET[9:])  # fmt: skip
    assert e.results == [[]]


def test_descriptors_of_the_grader(run, hidden):
    fd = os.open(hidden, os.O_RDWR)
    os.set_inheritable(fd, True)
    try:
        e = run.ranks(2, """
import os, stat
def attack(x, group):
    seen = {}
    for fd in range(2000):
        try:
            mode = os.fstat(fd).st_mode
        except OSError:
            continue
        kinds = {"socket": stat.S_ISSOCK, "pipe": stat.S_ISFIFO, "device": stat.S_ISCHR, "file": stat.S_ISREG}
        seen[str(fd)] = next((k for k, is_it in kinds.items() if is_it(mode)), "?")
    return seen
""", [0, 0])  # fmt: skip
    finally:
        os.close(fd)
    assert e.results == [{"0": "device", "1": "pipe", "2": "pipe", "3": "socket", "4": "socket"}] * 2


def test_other_submissions_and_other_ranks(sandbox):
    other = sandbox("answer = 'the other student'\ndef attack(x, group):\n    return 1")
    assert other.call("attack", 2, [1, 2]).results == [1, 1]
    box = sandbox("""
import os, time
def attack(folder, group):
    with open("mine", "w") as f:
        f.write("private")
    try:
        with open("../note", "w") as f:  # to all
            f.write("private")
    except OSError:
        pass
    time.sleep(0.3)
    seen = []
    for top in (folder, "/tmp", os.path.dirname(os.getcwd())):
        for where, _, files in os.walk(top):
            seen += [os.path.join(where, f) for f in files if not where.startswith(os.getcwd())]
    for place in ("../1/mine", "../0/mine", "../note"):
        try:
            if os.path.realpath(place) != os.path.realpath("mine"):
                seen.append(open(place).read())
        except OSError:
            pass
    return [s for s in seen if s == "private" or "labkit-sandbox" in s]
""")
    assert box.call("attack", 2, [tempfile.gettempdir()] * 2).results == [[], []]


def test_ranks_share_no_memory_and_no_locks(run):
    e = run.ranks(2, """
import fcntl, os
def attack(x, group):
    done = []
    with open(os.__file__) as shared:
        for take in (fcntl.flock, fcntl.lockf):
            try:
                take(shared, fcntl.LOCK_SH)
                done.append(take.__name__)
            except OSError:
                pass
    return done
""", [0, 0])  # fmt: skip
    assert e.results == [[], []], e
    from labkit.grading.sandbox.nursery import NURSERY

    with open(f"/proc/{NURSERY._process.pid}/maps") as maps:  # what every rank inherits
        assert not [line for line in maps if line.split()[1][1::2] == "ws"]


def test_the_next_call_finds_nothing_of_the_last(sandbox):
    box = sandbox("""
import os, builtins
def leave():
    open("left", "w").write("x")
    builtins.left = 1
def attack():
    return os.listdir("."), hasattr(builtins, "left")
""")
    assert box.call("leave", 0).failure is None
    assert box.call("attack", 0).results == [([], False)]


def test_rights(run):
    e = run("""
import os
def attack():
    tried = []
    for name, do in {"setuid": lambda: os.setuid(0), "seteuid": lambda: os.seteuid(0), "nice": lambda: os.nice(-5),
                     "setgroups": lambda: os.setgroups([0]), "chroot": lambda: os.chroot("."),
                     "mknod": lambda: os.mknod("d", 0o60666)}.items():
        try:
            do()
            tried.append(name)
        except OSError:
            pass
    return tried, os.getuid() == 0, sorted(os.environ)
""")
    tried, root, names = e.results[0]
    assert tried == [] and not root
    assert set(names) <= {"HOME", "LANG", "OMP_NUM_THREADS", "PATH", "PYTHONHASHSEED", "TMPDIR"}


SYSTEM_CALLS = {  # x86_64
    "ptrace": 101, "mount": 165, "umount2": 166, "unshare": 272, "setns": 308, "pivot_root": 155, "chroot": 161,
    "kexec_load": 246, "reboot": 169, "init_module": 175, "keyctl": 250, "add_key": 248, "request_key": 249, "bpf": 321,
    "perf_event_open": 298, "userfaultfd": 323, "io_uring_setup": 425, "memfd_create": 319, "socket": 41, "connect": 42,
    "bind": 49, "fork": 57, "vfork": 58, "execve": 59, "execveat": 322, "process_vm_writev": 311, "pidfd_open": 434,
    "pidfd_getfd": 438, "pidfd_send_signal": 424, "shmget": 29, "msgget": 68, "mq_open": 240, "setpriority": 141,
    "quotactl": 179, "swapon": 167, "personality": 135, "name_to_handle_at": 303, "open_by_handle_at": 304,
    "tkill": 200, "fanotify_init": 300, "open_tree": 428, "fsopen": 430, "seccomp": 317, "setsid": 112, "setpgid": 109,
}  # fmt: skip


def test_system_calls_that_no_computation_needs(run):
    if os.uname().machine != "x86_64":
        import pytest

        pytest.skip("the numbers are those of x86_64")
    e = run("""
import ctypes
def attack(calls):
    libc, let = ctypes.CDLL(None, use_errno=True), []
    for name, number in calls.items():
        ctypes.set_errno(0)
        if libc.syscall(number, -1, -1, -1, -1, -1) != -1 or ctypes.get_errno() != 1:
            let.append((name, ctypes.get_errno()))
    return let
""", SYSTEM_CALLS)  # fmt: skip
    assert e.results == [[]], e
