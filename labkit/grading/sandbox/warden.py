"""The process that makes ranks, watches them from outside and buries them. It never runs a line of a submission.

It is forked from the template, takes its tier's place (new namespaces, its own view of the files), and then forks
ranks for each call. In the tiers with namespaces it is the first process of its own: when it ends, so does everything.
It talks to the grader over one socket, in JSON both ways; descriptors of the ranks come with the order to make them.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import shutil
import signal
import socket
import time
from typing import Any

from . import kernel, rank, view
from .confine import Walls

LONGEST = 1 << 16  # bytes of an order
NAMESPACES = ("root", "userns")
SPARE = 64 << 20  # addresses that a rank needs before it is its own
NAMES = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}


def live(control: int, order: dict[str, Any]) -> None:
    """Be the warden of one sandbox. Never returns."""
    try:
        os.setsid()
        high = control if control == 3 else os.dup2(control, 3, inheritable=False)
        os.closerange(4, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        sock = socket.socket(fileno=high)
        Warden(sock, order).enter()
    except BaseException as error:
        with contextlib.suppress(BaseException):
            sock.send(json.dumps({"refused": f"{type(error).__name__}: {error}"}).encode())
    finally:
        if order["tier"] not in NAMESPACES:  # the grader does it too, if it still can
            shutil.rmtree(order["home"], ignore_errors=True)
        os._exit(0)


class Warden:
    """One sandbox, seen from inside its walls but not behind them."""

    def __init__(self, sock: socket.socket, order: dict[str, Any]):
        self.sock, self.order, self.limits = sock, order, order["limits"]
        self.tier: str = order["tier"]
        self.home: str = order["home"]
        self.space = _address_space()
        self.namespaces = self.tier in NAMESPACES

    def enter(self) -> None:
        """Take the place that the tier gives, and serve."""
        if self.tier == "root" and os.geteuid() != 0:
            raise OSError("this tier needs root")
        if self.tier == "userns" and os.geteuid() == 0:
            raise OSError("root needs no user namespace, and limits on processes would not bind it there")
        if self.namespaces:
            self._leave()
            view.build(self.home)
            self.home = "/tmp"
            socket.sethostname("sandbox")
        self._serve()

    def _leave(self) -> None:
        """Into new namespaces; the process that goes on is the first of its own."""
        uid, gid = os.geteuid(), os.getegid()
        kinds = ("mount", "pid", "net", "ipc", "uts")
        if self.tier == "userns":
            kernel.unshare("user", *kinds)
            for name, text in (("setgroups", "deny"), ("gid_map", f"1000 {gid} 1"), ("uid_map", f"1000 {uid} 1")):
                with open(f"/proc/self/{name}", "w") as f:
                    f.write(text)
        else:
            kernel.unshare(*kinds)
        child = os.fork()
        if child:
            self.sock.close()
            os.waitpid(child, 0)
            os._exit(0)
        if os.getpid() != 1:
            raise OSError("this is not the first process of a namespace of its own")
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)

    def _serve(self) -> None:
        self._say({"ready": True})
        while True:
            order, fds = self._hear()
            if order is None:
                return
            Crew(self, order, fds).work()

    def _hear(self) -> tuple[Any, list[int]]:
        try:
            raw, fds, _, _ = socket.recv_fds(self.sock, LONGEST, 250)
        except OSError:
            return None, []
        return (json.loads(raw) if raw else None), list(fds)

    def _say(self, what: dict[str, Any]) -> None:
        self.sock.send(json.dumps(what).encode())

    def walls(self, number: int, count: int, inputs: int) -> Walls:
        """What stands around rank `number` of `count`."""
        limits = self.limits
        uid = None if self.order["uid"] is None else self.order["uid"] + number
        if self.tier == "userns":
            processes = count * limits["threads"] + 1
        elif uid is not None:
            processes = limits["threads"]
        else:
            processes = _threads_of(os.getuid()) + count * limits["threads"] + 64
        return Walls(
            home=f"{self.home}/{number}", disk=limits["disk"] if self.namespaces else None, uid=uid,
            capabilities=self.namespaces or uid is not None, filter=self.tier != "none",
            readable=[*view.readable(), "/dev/null", "/dev/urandom"] if self.tier == "landlock" else None,
            processes=processes, space=self.space + SPARE + 2 * inputs + limits["memory"], seconds=limits["seconds"],
            file=limits["file"], names=NAMES,
        )  # fmt: skip


class Crew:
    """The ranks of one call."""

    def __init__(self, warden: Warden, order: dict[str, Any], fds: list[int]):
        self.warden, self.order, self.count = warden, order, order["ranks"]
        self.talks, self.bells, self.outputs = (fds[i::3] for i in range(3))
        self.pids: dict[int, int] = {}  # pid -> rank
        self.handles: dict[int, int] = {}  # pidfd -> pid
        self.syncs: dict[int, socket.socket] = {}
        self.bases = [0] * self.count
        self.exits: dict[int, list[int]] = {}

    def work(self) -> None:
        """Make the ranks, let them go together, watch them, end them."""
        warden = self.warden
        try:
            self._make_homes()
            for number in range(self.count):
                self._fork(number)
            for fd in (*self.talks, *self.bells, *self.outputs):
                os.close(fd)
            self._watch()
        finally:
            self._end()
        warden._say({"over": self.exits, "bases": self.bases})

    def _make_homes(self) -> None:
        warden = self.warden
        if warden.namespaces:
            return  # each rank mounts its own, in a namespace of its own
        for number in range(self.count):
            path = f"{warden.home}/{number}"
            os.mkdir(path, 0o700)
            if warden.order["uid"] is not None:
                os.chown(path, warden.order["uid"] + number, warden.order["uid"] + number)

    def _fork(self, number: int) -> None:
        ours, theirs = socket.socketpair()
        walls = self.warden.walls(number, self.count, self.order["inputs"][number])
        me = os.getpid()
        pid = os.fork()
        if pid == 0:
            rank.live(number, self.talks[number], self.bells[number], self.outputs[number], theirs.fileno(), walls, me)
        theirs.close()
        ours.setblocking(False)
        self.pids[pid] = number
        self.handles[os.pidfd_open(pid)] = pid
        self.syncs[number] = ours

    def _watch(self) -> None:
        """Until the grader says that it is over, or is gone, or the time is."""
        warden = self.warden
        poll = select.poll()
        poll.register(warden.sock.fileno(), select.POLLIN)
        waiting = {sock.fileno(): number for number, sock in self.syncs.items()}
        for fd in (*self.handles, *waiting):
            poll.register(fd, select.POLLIN)
        end = time.monotonic() + warden.limits["seconds"] + 40
        while time.monotonic() < end:
            for fd, _ in poll.poll(50):
                if fd == warden.sock.fileno():
                    if warden._hear()[0] is None:
                        raise EOFError("the grader is gone")
                    return
                if fd in waiting:
                    poll.unregister(fd)
                    number = waiting.pop(fd)
                    if not self._arrived(number):
                        warden._say({"broken": number})
                    if not waiting:
                        self._go()
                elif fd in self.handles:
                    poll.unregister(fd)
                    self._bury(self.handles.pop(fd), fd)
            if not warden.namespaces and self._disk_is_full():
                warden._say({"disk": True})
                return self._kill()

    def _arrived(self, number: int) -> bool:
        try:
            raw = self.syncs[number].recv(rank.BASE.size)
        except OSError:
            return False
        if len(raw) == rank.BASE.size:
            self.bases[number] = rank.BASE.unpack(raw)[1]
        return bool(raw)

    def _go(self) -> None:
        for sock in self.syncs.values():
            with contextlib.suppress(OSError):
                sock.send(b"\1")
            sock.close()
        self.warden._say({"go": True})

    def _bury(self, pid: int, handle: int) -> None:
        os.close(handle)
        _, status, usage = os.wait4(pid, 0)
        number = self.pids.pop(pid)
        self.exits[number] = [status, usage.ru_maxrss * 1024]
        self.warden._say({"exit": number, "status": status})

    def _disk_is_full(self) -> bool:
        used = 0
        for folder, _, names in os.walk(self.warden.home):
            for name in names:
                with contextlib.suppress(OSError):
                    used += os.lstat(os.path.join(folder, name)).st_blocks * 512 + 4096
        return used > self.warden.limits["disk"]

    def _kill(self) -> None:
        for pid in self.pids:
            os.kill(pid, signal.SIGKILL)  # ours, and not yet waited for: the number is still its own

    def _end(self) -> None:
        """Nothing of this call is left: no process and no file."""
        self._kill()
        for handle, pid in list(self.handles.items()):
            os.close(handle)
            _, status, usage = os.wait4(pid, 0)
            self.exits[self.pids.pop(pid)] = [status, usage.ru_maxrss * 1024]
        for sock in self.syncs.values():
            sock.close()
        warden = self.warden
        if warden.namespaces:
            if os.getpid() == 1:  # whatever else there may be in this namespace, and only in this
                with contextlib.suppress(ProcessLookupError):
                    os.kill(-1, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                while True:
                    os.wait()
        else:
            for number in range(self.count):
                shutil.rmtree(f"{warden.home}/{number}", ignore_errors=True)


def _address_space() -> int:
    with open("/proc/self/statm") as f:
        return int(f.read().split()[0]) * resource.getpagesize()


def _threads_of(uid: int) -> int:
    """Processes and threads that this user has now."""
    count = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                if os.stat(f"/proc/{name}").st_uid == uid:
                    count += len(os.listdir(f"/proc/{name}/task"))
    return count
