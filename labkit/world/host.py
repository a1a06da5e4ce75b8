"""The host of one job: forks its ranks, listens to them, and tells the caller what happened.

It is a process of its own, between the zygote and the ranks, with one thread and one loop. So it sees a rank die within
milliseconds, whatever the caller is doing; and if the caller dies, it takes the ranks with it. What went wrong, and
who is to blame, is decided in `judge`; `fault_injector` strikes the faults; `host_main` is how such a process begins
and ends.
"""

from __future__ import annotations

import os
import secrets
import select
import signal
import socket
import sys
import time
from typing import Any

from labkit.wire.recording import record as rec
from labkit.wire.transports.local import abstract_listener
from labkit.world.diagnosis.judge import LOOK, SETTLE, Judge

from .address_table import AddressTable
from .channel import Channel, Closed
from .fault_injector import FaultInjector
from .life import RankProcess
from .memory_limit import allowance, remedy
from .process import describe_exit
from .rank import Birth, live
from .spec import Spec


class Host:
    """One job."""

    def __init__(self, caller: Channel, request: dict[str, Any]):
        self.caller = caller
        self.spec: Spec = request["spec"]
        self.function, self.args = request["call"]
        self.link_model = request["link_model"]
        size = self.spec.world_size
        self.pages_fd = rec.create_pages(size)
        self.pages = [rec.Page(self.pages_fd, r, size) for r in range(size)]
        self.addresses = AddressTable(size)
        self.store, self.board = _store_path(), _store_path()
        self.secret = secrets.token_bytes(16)
        self.epoch = time.perf_counter_ns()
        self.lives = [RankProcess(r) for r in range(size)]
        self.judge = Judge(self.spec, self.pages, self.lives, self.epoch, self.kill_all)
        self.injector = FaultInjector(self.spec.faults, self.pages, self.lives, self.event)
        self._looked = time.monotonic()
        self._steps = [-1] * size
        self.held = False  # the run goes on though no rank may be left: somebody is about to restart one

    # -- birth ---------------------------------------------------------------------------------------------------

    def fork_all(self) -> None:
        """Make every rank's address first, then the ranks, so that no rank can find another's door missing."""
        listeners = []
        for rank in range(self.spec.world_size):
            listener, address = abstract_listener()
            listeners.append(listener)
            self.addresses[rank] = address
        told = time.monotonic()
        for rank, listener in enumerate(listeners):
            self.fork(rank, listener, listeners[rank + 1 :])
            listener.close()
            if time.monotonic() - told > LOOK:
                told = time.monotonic()
                self.caller.send(("born", rank + 1))

    def fork(self, rank: int, listener: socket.socket, others: list[socket.socket]) -> None:
        """Start one rank."""
        life = self.lives[rank]
        mine, theirs = Channel.pair()
        read, write = os.pipe()
        host = os.getpid()
        life.pid = os.fork()
        if life.pid == 0:
            try:
                for other in self.lives:
                    other.release()
                for sock in others:
                    sock.close()
                mine.close()
                self.caller.close()
                os.close(read)
                os.environ.update(self.spec.gpus.environ)
                live(
                    Birth(
                        rank, self.spec, self.function, self.args, self.pages_fd, self.addresses, listener, self.store,
                        self.board, self.secret, self.epoch, theirs, write, self.injector.due(rank), self.link_model,
                        self.spec.gpus.device_of(rank),
                    ),
                    host,
                )  # fmt: skip
            finally:
                os._exit(1)  # never back into the host's own loop
        theirs.close()
        os.close(write)
        life.born(mine, read)

    def restart(self, rank: int) -> None:
        """A new process for a rank that is gone (on_failure='continue'), or is about to: one that was killed."""
        life = self.lives[rank]
        if life.status is None or self.judge.ending:
            life.again = life.doomed
            return
        self.hear_output(life)
        self.flush(life)
        if life.output >= 0:  # a child of the dead rank may still hold the other end
            os.close(life.output)
            life.output = -1
        listener, address = abstract_listener()
        self.addresses[rank] = address
        self.pages[rank].state = rec.UNBORN
        self.fork(rank, listener, [])
        listener.close()
        self.caller.send(("pid", rank, life.pid))
        self.event(rank, "restarted")

    # -- the loop ------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Until every rank is gone and everything is told."""
        bell, rope = os.pipe()
        os.set_blocking(bell, False)
        os.set_blocking(rope, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(rope, warn_on_full_buffer=False)
        self.caller.send(("started", [life.pid for life in self.lives], self.epoch), (self.pages_fd,))
        end = time.monotonic() + self.spec.deadline if self.spec.deadline else None
        self.hear_caller()  # an order may have come together with the request, and no more poll will tell of it
        while any(life.status is None for life in self.lives) or (self.held and not self.judge.ending):
            self.listen(bell)
            self.bury()
            self.decide(time.monotonic(), end)
        for life in self.lives:
            self.hear_output(life)
            self.flush(life)
        for path in (self.store, self.board):
            if not path.startswith("/proc"):
                os.unlink(path)
        self.caller.send(("ended", self.judge.verdict, self.judge.failures, self.injector.unfired()))

    def listen(self, bell: int) -> None:
        """Wait for something to happen, a tenth of a second at most, and hear it."""
        poll = select.poll()
        poll.register(self.caller.fileno(), select.POLLIN)
        poll.register(bell, select.POLLIN)
        where = {}
        for life in self.lives:
            if life.status is None and life.control is not None:
                poll.register(life.control.fileno(), select.POLLIN)
                where[life.control.fileno()] = life
            if life.output >= 0:
                poll.register(life.output, select.POLLIN)
                where[life.output] = life
        since = self.judge.trouble_at
        wait = LOOK if since is None else max(SETTLE / 3, since + SETTLE - time.monotonic())
        for fd, _ in poll.poll(int(wait * 1000) + 1):
            if fd == bell:
                _drain(bell)
            elif fd == self.caller.fileno():
                self.hear_caller()
            elif (life := where[fd]).output == fd:
                self.hear_output(life)
            else:
                self.hear_rank(life)

    def decide(self, now: float, end: float | None) -> None:
        """Whether it is time to judge, to look, or to let everyone go. end: the deadline of the run."""
        judge = self.judge
        if judge.is_settled(now):
            judge.judge()
        elif judge.trouble_at is None and not judge.ending:
            if end is not None and now > end:
                judge.condemn("deadline", -1, f"the run took longer than deadline={self.spec.deadline:g} s")
            elif now - self._looked >= LOOK:
                self._looked = now
                self.progress()
                if self.spec.on_failure != "continue":  # there the ranks find out for themselves, and go on
                    judge.look(now)
        if all(life.over for life in self.lives) and not (self.held or judge.ending or judge.trouble_at is not None):
            judge.finish()
            for life in self.lives:
                life.tell(("leave",))

    def progress(self) -> None:
        """Tell which training step each rank is in."""
        for rank, page in enumerate(self.pages):
            if page.step != self._steps[rank]:
                self._steps[rank] = page.step
                if self.spec.progress:
                    self.caller.send(("step", rank, page.step))

    def kill_all(self) -> None:
        """First nobody moves any more: else a rank would see another one die, and its page would say so."""
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for life in self.lives:
                life.signal(number)

    # -- hearing -------------------------------------------------------------------------------------------------

    def hear_caller(self) -> None:
        """Orders from the notebook; if it is gone, so are we."""
        try:
            for (order, *rest), _ in self.caller.ready():
                if order == "stop":
                    self.judge.condemn("stopped", -1, "the run was stopped", now=True)
                elif order == "kill":
                    self.lives[rest[0]].signal(signal.SIGKILL)
                elif order == "inject":
                    self.injector.inject(rest[0])
                elif order == "restart":
                    self.restart(rest[0])
                elif order == "hold":
                    self.held = rest[0]
        except Closed:
            self.kill_all()
            raise

    def event(self, rank: int, text: str) -> None:
        """Tell the caller what happened to a rank."""
        self.caller.send(("event", rank, text))

    def hear_output(self, life: RankProcess) -> None:
        """Pass on whole lines."""
        if text := life.lines():
            self.caller.send(("output", life.rank, text))

    def flush(self, life: RankProcess) -> None:
        """Pass on the unfinished last line of a rank that is gone."""
        if text := life.rest():
            self.caller.send(("output", life.rank, text))

    def hear_rank(self, life: RankProcess) -> None:
        assert life.control is not None
        try:
            for (what, *rest), fds in life.control.ready():
                if what == "result":
                    life.over = life.result = True
                    self.caller.send(("result", life.rank, *rest), tuple(fds))
                    for fd in fds:
                        os.close(fd)
                elif what == "failed":
                    life.over = True
                    kind, *words = rest
                    self.failed(kind, life.rank, *words)
                elif what == "fault":
                    self.injector.strike(life, rest[0])
        except Closed:
            life.close_control()

    def failed(self, kind: str, rank: int, name: str, text: str, trace: str = "", peer: int = -1) -> None:
        self.judge.failed(kind, rank, name, text, trace, peer)
        if self.spec.on_failure == "continue":
            self.caller.send(("failed", rank, kind))
            self.event(rank, f"failed: {text}")

    def bury(self) -> None:
        """Take note of the ranks that died or were stopped."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            except ChildProcessError:
                return
            if pid == 0:
                return
            life = next((x for x in self.lives if x.pid == pid), None)
            if life is None:
                continue
            if os.WIFSTOPPED(status) or os.WIFCONTINUED(status):
                life.stopped = os.WIFSTOPPED(status)
                self.event(life.rank, "stopped" if life.stopped else "continued")
                continue
            if life.control is not None:
                self.hear_rank(life)
            life.status = status
            if not life.over:
                life.over = True
                self.pages[life.rank].state = rec.FAILED
                if not self.judge.ending:
                    self.failed("died", life.rank, "Died", f"rank {life.rank} {self.how_it_died(status)}")
            self.event(life.rank, "ended")
            life.close_control()
            if life.again:
                self.restart(life.rank)

    def how_it_died(self, status: int) -> str:
        """In words; a library that is refused memory may end its process without a word of its own."""
        allowed = allowance(self.spec.memory_limit, self.spec.world_size)
        short = os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS)
        words = describe_exit(status)
        return f"{words}, perhaps for lack of memory. {remedy(allowed)}" if short and allowed is not None else words


def _drain(fd: int) -> None:
    try:
        while os.read(fd, 4096):
            pass
    except BlockingIOError:
        pass


def _store_path() -> str:
    """A file for torch's rendezvous: nameless memory on Linux, which every rank inherits, else a temporary file."""
    if sys.platform == "linux":
        return f"/proc/self/fd/{os.memfd_create('labkit-store')}"
    import tempfile

    fd, path = tempfile.mkstemp(prefix="labkit-")
    os.close(fd)
    return path
