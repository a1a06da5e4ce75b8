"""The host of one job: forks its ranks, watches them, strikes faults, and tells the caller what happened.

It is a process of its own, between the zygote and the ranks, with one thread and one loop. So it sees a rank die within
milliseconds, whatever the caller is doing; and if the caller dies, it takes the ranks with it.
"""

from __future__ import annotations

import os
import resource
import secrets
import select
import signal
import socket
import sys
import time
from typing import Any

from labkit.wire import record as rec
from labkit.wire.faults import Fault, Hang, Kill
from labkit.wire.transports.local import abstract_listener

from .board import Board
from .channel import Channel, Closed
from .diagnose import Reader, explain_stuck, find_unreceived, ranks_text, wait_for_picture
from .process import describe_exit, die_with_parent, name_process
from .rank import Birth, live
from .spec import Spec

_NAMES = {"deadlock": "Deadlock", "mismatch": "Mismatch", "timeout": "WaitTimeout", "deadline": "DeadlineExceeded",
          "stopped": "Stopped"}  # fmt: skip
SETTLE = 0.06  # seconds between the first sign of trouble and the verdict: the true cause may be the second to arrive
RELOOK = 0.3  # seconds between two looks at the records of a world in which everyone moves
LOOK = 0.1  # seconds between two looks at the pages


class Life:
    """One rank's process, as the host sees it."""

    def __init__(self, rank: int):
        self.rank, self.pid, self.status = rank, 0, None  # type: int, int, int | None
        self.control: Channel | None = None
        self.output = -1
        self.text = b""
        self.result = False
        self.over = False  # has said how it ended, or is dead
        self.stopped = False


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
        self.reader = Reader(self.pages)
        self.board = Board(size)
        self.store = _store_path()
        self.secret = secrets.token_bytes(16)
        self.epoch = time.perf_counter_ns()
        self.lives = [Life(r) for r in range(size)]
        self.faults: dict[int, Fault] = dict(enumerate(self.spec.faults))
        self.fired: set[int] = set()
        self.injected: dict[int, dict[int, Fault]] = {}
        self.failures: list[dict[str, Any]] = []
        self.trouble_at: float | None = None
        self.verdict: dict[str, Any] | None = None
        self.ending = False
        self._seen: tuple[bytes, ...] = ()
        self._looked = time.monotonic()
        self._moved = [self._looked] * size  # when each rank's page was last seen to change
        self._judged: Any = None
        self._next_picture = 0.0
        self._steps = [-1] * size

    # -- birth ---------------------------------------------------------------------------------------------------

    def fork_all(self) -> None:
        """Make every rank's address first, then the ranks, so that no rank can find another's door missing."""
        listeners = []
        for rank in range(self.spec.world_size):
            listener, address = abstract_listener()
            listeners.append(listener)
            self.board[rank] = address
        for rank, listener in enumerate(listeners):
            self.fork(rank, listener, listeners[rank + 1 :])
            listener.close()

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
                    if other.control is not None:
                        other.control.close()
                    if other.output >= 0:
                        os.close(other.output)
                for sock in others:
                    sock.close()
                mine.close()
                self.caller.close()
                os.close(read)
                mine_faults = {n: f for n, f in self.faults.items() if f.rank == rank and n not in self.fired}
                device = rank % max(1, _gpus()) if self.spec.backend == "nccl" else None
                live(
                    Birth(
                        rank, self.spec, self.function, self.args, self.pages_fd, self.board, listener, self.store,
                        self.secret, self.epoch, theirs, write, mine_faults, self.link_model, device,
                    ),
                    host,
                )  # fmt: skip
            finally:
                os._exit(1)  # never back into the host's own loop
        theirs.close()
        os.close(write)
        os.set_blocking(read, False)
        life.control, life.output, life.status, life.over, life.result, life.stopped = (
            mine,
            read,
            None,
            False,
            False,
            False,
        )

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
        while any(life.status is None for life in self.lives):
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
            wait = LOOK if self.trouble_at is None else max(0.0, self.trouble_at + SETTLE - time.monotonic())
            for fd, _ in poll.poll(int(wait * 1000) + 1):
                if fd == bell:
                    _drain(bell)
                elif fd == self.caller.fileno():
                    self.hear_caller()
                elif (life := where[fd]).output == fd:
                    self.hear_output(life)
                else:
                    self.hear_rank(life)
            self.bury()
            now = time.monotonic()
            if self.trouble_at is not None and now >= self.trouble_at + SETTLE:
                self.judge()
            elif self.trouble_at is None and not self.ending:
                if end is not None and now > end:
                    self.condemn("deadline", -1, f"the run took longer than deadline={self.spec.deadline:g} s")
                elif now - self._looked >= LOOK:
                    self.look(now)
            if all(life.over for life in self.lives) and not self.ending and self.trouble_at is None:
                self.finish()
        for life in self.lives:
            self.hear_output(life)
            self.flush(life)
        unfired = [str(self.faults[n]) for n in self.faults if n not in self.fired]
        if not self.store.startswith("/proc"):
            os.unlink(self.store)
        self.caller.send(("ended", self.verdict, self.failures, unfired))

    def finish(self) -> None:
        """Everyone is through: check what was left lying, then let them go."""
        if self.spec.check and not self.failures:
            look = self.reader.picture()
            wrong = look.mismatch or find_unreceived(self.reader)
            if wrong:
                self.verdict = self.failure("mismatch", -1, "Mismatch", wrong, "")
                self.failures.append(self.verdict)
        self.ending = True
        for life in self.lives:
            self.tell(life, ("leave",))

    def tell(self, life: Life, message: Any) -> None:
        try:
            if life.control is not None:
                life.control.send(message)
        except Closed:
            pass

    # -- hearing -------------------------------------------------------------------------------------------------

    def hear_caller(self) -> None:
        """Orders from the notebook; if it is gone, so are we."""
        try:
            for (order, *rest), _ in self.caller.ready():
                if order == "stop":
                    self.condemn("stopped", -1, "the run was stopped", now=True)
                elif order == "kill":
                    self.signal(rest[0], signal.SIGKILL)
                elif order == "inject":
                    self.inject(rest[0])
                elif order == "restart":
                    self.restart(rest[0])
        except Closed:
            for life in self.lives:
                self.signal(life.rank, signal.SIGKILL)
            os._exit(1)

    def hear_output(self, life: Life) -> None:
        """Pass on whole lines."""
        if life.output < 0:
            return
        try:
            while True:
                data = os.read(life.output, 1 << 16)
                if not data:
                    os.close(life.output)
                    life.output = -1
                    break
                life.text += data
                if len(data) < 1 << 16:
                    break
        except BlockingIOError:
            pass
        whole, newline, life.text = life.text.rpartition(b"\n")
        if newline:
            self.caller.send(("output", life.rank, (whole + newline).decode("utf-8", "replace")))

    def flush(self, life: Life) -> None:
        """The unfinished last line of a rank that is gone."""
        if life.text:
            self.caller.send(("output", life.rank, life.text.decode("utf-8", "replace") + "\n"))
            life.text = b""

    def hear_rank(self, life: Life) -> None:
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
                    kind, name, text, trace = rest
                    self.failures.append(self.failure(kind, life.rank, name, text, trace))
                    self.trouble()
                elif what == "fault":
                    self.strike(life, rest[0])
        except Closed:
            life.control.close()
            life.control = None

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
                self.caller.send(("event", life.rank, "stopped" if life.stopped else "continued"))
                continue
            if life.control is not None:
                self.hear_rank(life)
            life.status = status
            if not life.over:
                life.over = True
                self.pages[life.rank].state = rec.FAILED
                if not self.ending:
                    self.failures.append(
                        self.failure("died", life.rank, "Died", f"rank {life.rank} {describe_exit(status)}", "")
                    )
                    self.trouble()
            self.caller.send(("event", life.rank, "ended"))
            if life.control is not None:
                life.control.close()
                life.control = None

    # -- trouble -------------------------------------------------------------------------------------------------

    def failure(self, kind: str, rank: int, name: str, text: str, trace: str) -> dict[str, Any]:
        step = self.pages[rank].step if rank >= 0 else max(p.step for p in self.pages)
        return {"kind": kind, "rank": rank, "error": name, "message": text, "traceback": trace, "step": step,
                "seconds": (time.perf_counter_ns() - self.epoch) / 1e9, "waiting": {}}  # fmt: skip

    def trouble(self) -> None:
        """Somebody failed. Unless the others may go on, wait a moment for the true cause, then judge."""
        if self.spec.on_failure != "continue" and not self.ending and self.trouble_at is None:
            self.trouble_at = time.monotonic()
        elif self.spec.on_failure == "continue":
            last = self.failures[-1]
            self.caller.send(("event", last["rank"], f"failed: {last['message']}"))

    def judge(self) -> None:
        """Choose the failure that explains the others, write down what the rest was doing, end the world."""
        order = {
            "mismatch": 0,
            "deadlock": 0,
            "timeout": 0,
            "died": 1,
            "raised": 2,
            "exit": 2,
            "wire": 3,
            "lost": 4,
        }
        picture = self.reader.picture(mismatches=self.spec.check)
        first = min(self.failures, key=lambda f: (order[f["kind"]], f["seconds"]))
        aborted = first["kind"] == "died" and "SIGABRT" in first["message"]
        if picture.mismatch and (first["kind"] in ("wire", "lost") or aborted):
            cause = self.failure("mismatch", -1, "Mismatch", picture.mismatch, first["traceback"])
            self.failures.insert(0, cause)
            first = cause
        ended = {f["rank"]: f"ended in consequence, with {f['error']}" for f in self.failures if f["kind"] != "died"}
        others = (r for r in range(self.spec.world_size) if r != first["rank"])
        first["waiting"] = {r: ended.get(r) or picture.describe(r) for r in others}
        self.failures.remove(first)
        self.failures.insert(0, first)
        self.verdict = first
        self.end_world()

    def condemn(
        self, kind: str, rank: int, text: str, waiting: dict[int, str] | None = None, now: bool = False
    ) -> None:
        """The host itself found the trouble."""
        name = _NAMES[kind]
        self.verdict = self.failure(kind, rank, name, text, "")
        if waiting is None and not now:
            picture = self.reader.picture(mismatches=False)
            waiting = {r: picture.describe(r) for r in range(self.spec.world_size)}
        self.verdict["waiting"] = waiting or {}
        self.failures.insert(0, self.verdict)
        self.end_world()

    def end_world(self) -> None:
        self.ending, self.trouble_at = True, None
        for life in self.lives:
            self.signal(life.rank, signal.SIGKILL)

    def signal(self, rank: int, number: int) -> None:
        life = self.lives[rank]
        if life.status is None and life.pid:
            os.kill(life.pid, number)

    def look(self, now: float) -> None:
        """Read the pages: progress, deadlock, mismatch, a wait that takes too long."""
        self._looked = now
        for rank, page in enumerate(self.pages):
            if page.step != self._steps[rank]:
                self._steps[rank] = page.step
                if self.spec.progress:
                    self.caller.send(("step", rank, page.step))
        if self.spec.on_failure == "continue":
            return  # the ranks find out for themselves, and go on
        seen, before = self.reader.fingerprint(), self._seen
        self._seen = seen
        for rank, mark in enumerate(seen):
            if not before or mark != before[rank]:
                self._moved[rank] = now
        quiet = [r for r, moved in enumerate(self._moved) if now - moved >= LOOK]
        late = [r for r in quiet if now - self._moved[r] > self.spec.timeout]
        new = ([(r, self._moved[r]) for r in quiet], late)
        urgent = new != self._judged and (late or len(quiet) == len(seen))
        if now < self._next_picture and not urgent:
            return
        picture = self.reader.picture(mismatches=self.spec.check)
        # Looking costs time that the ranks need: one part in thirty, unless all of them stand still anyway.
        done = time.monotonic()
        self._next_picture = done + max(RELOOK, 30 * (done - now))
        after = self.reader.fingerprint()
        if any(after[r] != seen[r] for r in picture.stuck):
            return
        self._judged = new
        if self.spec.check:
            # Twice, for a record may be caught while it is written.
            if picture.mismatch and picture.mismatch == self.reader.picture().mismatch:
                self.condemn("mismatch", -1, picture.mismatch)
            elif picture.stuck and not any(life.stopped for life in self.lives):
                self.condemn("deadlock", -1, explain_stuck(picture), {})
        if not self.ending and any(r in picture.waits and after[r] == seen[r] for r in late):
            self.condemn("timeout", self.culprit(picture), self.explain_timeout(picture), {})

    def culprit(self, picture: Any) -> int:
        """The one rank that others wait for and that waits for nobody, or -1."""
        free = {r for w in picture.waits.values() for r in w.on if r not in picture.waits}
        return free.pop() if len(free) == 1 else -1

    def explain_timeout(self, picture: Any) -> str:
        stopped = [life.rank for life in self.lives if life.stopped]
        awaited = sorted({r for w in picture.waits.values() for r in w.on if r not in picture.waits})
        why = f"nothing moved for timeout={self.spec.timeout:g} s"
        if stopped:
            why += f": {ranks_text(stopped)} {'is' if len(stopped) == 1 else 'are'} stopped (SIGSTOP)"
        elif awaited:
            why += f": {ranks_text(awaited)} {'is' if len(awaited) == 1 else 'are'} awaited but outside any message"
        return why + "\n" + wait_for_picture(picture, range(self.spec.world_size))

    # -- faults --------------------------------------------------------------------------------------------------

    def strike(self, life: Life, number: int) -> None:
        """A rank has come to the place of a fault: strike it, once in the job."""
        more = self.injected.pop(life.rank, {})
        if number < 0 or number in self.fired:
            self.tell(life, ("go", False, more))
            return
        fault = self.faults[number]
        self.fired.add(number)
        self.caller.send(("event", life.rank, f"fault: {type(fault).__name__} {fault.where()}"))
        if isinstance(fault, Kill):
            self.signal(life.rank, signal.SIGKILL)
        elif isinstance(fault, Hang):
            self.signal(life.rank, signal.SIGSTOP)
            self.tell(life, ("go", False, more))  # for the day when it is continued
        else:
            self.tell(life, ("go", True, more))

    def inject(self, fault: Fault) -> None:
        """A fault into the running job."""
        number = len(self.faults)
        self.faults[number] = fault
        if fault.immediate and isinstance(fault, Kill | Hang):
            self.fired.add(number)
            self.caller.send(("event", fault.rank, f"fault: {type(fault).__name__} at once"))
            self.signal(fault.rank, signal.SIGKILL if isinstance(fault, Kill) else signal.SIGSTOP)
            return
        self.injected.setdefault(fault.rank, {})[number] = fault
        self.pages[fault.rank].fault = 1

    def restart(self, rank: int) -> None:
        """A new process for a rank that is gone (on_failure='continue')."""
        life = self.lives[rank]
        if life.status is None or self.ending:
            return
        self.hear_output(life)
        self.flush(life)
        if life.output >= 0:  # a child of the dead rank may still hold the other end
            os.close(life.output)
            life.output = -1
        listener, address = abstract_listener()
        self.board[rank] = address
        self.pages[rank].state = rec.UNBORN
        self.fork(rank, listener, [])
        listener.close()
        self.caller.send(("event", rank, "restarted"))


def _gpus() -> int:
    from .devices import gpu_count

    return gpu_count()


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


def main(fd: int) -> int:
    """Be the host of the job that arrives on this socket. Returns the exit code."""
    name_process("labkit host")
    if sys.platform == "linux":  # elsewhere the caller's socket tells, and a thread would forbid forking
        die_with_parent(os.getppid())
    os.setpgid(0, 0)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    caller = Channel(socket.socket(fileno=fd))
    try:
        head, _ = caller.receive()
        import pickle

        try:
            os.chdir(head["cwd"])
            sys.path[:] = head["path"]
            lazy = os.environ["TORCH_GLOO_LAZY_INIT"]
            os.environ.update(head["environ"])
            for name in set(os.environ) - set(head["environ"]):
                del os.environ[name]
            os.environ.setdefault("TORCH_GLOO_LAZY_INIT", lazy)
            # Python tells a stale compiled file by its second: a module edited twice within one would stay old.
            sys.dont_write_bytecode = True
            request = dict(head, call=pickle.loads(head["call"]))
        except BaseException as why:
            caller.send(("refused", f"the function could not be loaded in a new process: {type(why).__name__}: {why}. "
                         "Are its modules saved where the notebook can import them?"))  # fmt: skip
            return 1
        host = Host(caller, request)
        try:
            host.fork_all()
        except OSError as why:
            host.end_world()
            caller.send(
                (
                    "refused",
                    f"only {sum(x.pid > 0 for x in host.lives)} of {host.spec.world_size} ranks could start: {why}",
                )
            )
            return 1
        host.run()
    except Closed:
        return 1
    finally:
        # What the ranks themselves started (a subprocess, a data loader's worker) ends with them.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.killpg(0, signal.SIGTERM)
    return 0
