"""One call of a submission's function, on the grader's side: a loop over sockets, in the caller's own thread.

Everything that comes from a rank is bytes to be counted, forwarded or decoded as plain data. Nothing of it is run,
and nothing of it can end the loop other than as a `Failure`.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import struct
import time
from typing import Any

from . import asleep, plain_data
from .evidence import Evidence, Failure
from .limits import Limits
from .switch import IllFormed, Switch
from .transport import DIAL

START = 30.0  # seconds until all ranks are there; no limit of the submission's
LONGER = 9.0  # times its limit that a call is given at most when others have the cores
LAST_WORDS = 0.4  # seconds for a better reason, once a rank says that it lost another
_CREDENTIALS = struct.Struct("3i")  # process, user, group
KINDS = ("raised", "data", "missing", "lost", "wire", "memory")


class Over(Exception):
    """The call has ended, well or badly."""


class Call:
    """Sends the ranks their jobs, runs the switch, collects results; `run` returns the evidence."""

    def __init__(
        self, control: socket.socket, jobs: list[list[Any]], inputs: list[int], size: int, limits: Limits,
        rounds: bool = False,
    ):  # fmt: skip
        self.control, self.limits, self.size = control, limits, size
        self.count, self.inputs = len(jobs), inputs
        self.selector = selectors.DefaultSelector()
        self.output, self.printed = bytearray(), 0
        self.results: dict[int, Any] = {}
        self.failures: list[Failure] = []
        self.deadline = time.monotonic() + START
        self.running = False
        self.begun, self.longer, self.seconds = 0.0, 0.0, 0.0
        self.before: list[tuple[float, float]] = []  # what each rank had of the cores when the call began
        self.over: dict[str, Any] | None = None
        pairs = [socket.socketpair() for _ in jobs]
        bells = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in jobs]
        pipes = [os.pipe() for _ in jobs]
        self.bells = [ours for ours, _ in bells]
        self.pipes = [reader for reader, _ in pipes]
        fds = []
        for (_, talk), (_, bell), (_, writer) in zip(pairs, bells, pipes, strict=True):
            fds += [talk.fileno(), bell.fileno(), writer]
        order = {"ranks": self.count, "inputs": inputs}
        socket.send_fds(control, [json.dumps(order).encode()], fds)
        for (_, talk), (_, bell), (_, writer) in zip(pairs, bells, pipes, strict=True):
            talk.close()
            bell.close()
            os.close(writer)
        for bell in self.bells:
            bell.setblocking(False)
        self.switch = Switch(size, self.bells, limits, self.selector, rounds)
        self.pause = 0.0005 if rounds else 1.0
        self.talks = [Talk(self, r, ours, job) for r, ((ours, _), job) in enumerate(zip(pairs, jobs, strict=True))]
        for reader in self.pipes:
            os.set_blocking(reader, False)
            self.selector.register(reader, selectors.EVENT_READ, self._printed)
        self.selector.register(control, selectors.EVENT_READ, self._warden)

    def run(self) -> Evidence:
        """Until all ranks have answered, one has failed, or a limit is reached."""
        try:
            while len(self.results) < self.count:
                left = self.deadline - time.monotonic()
                if left <= 0:
                    self._late()
                events_now = self.selector.select(min(left, self.pause))
                if not events_now and self.running and self.switch.hold:
                    self._round()
                for key, events in events_now:
                    if key.data == self._printed:
                        self._read(key.fd)
                    elif key.fileobj in self.selector.get_map():  # not closed by an earlier one
                        key.data(events)
        except Over:
            pass
        except IllFormed as wrong:
            self.failures.append(Failure("protocol", f"rank {wrong.rank} {wrong}", wrong.rank))
        finally:
            self.seconds = self._own_seconds()
            self._end()
        return self._evidence()

    def _own_seconds(self) -> float:
        """Since the ranks had their inputs, less what one of them stood in line for a core on average."""
        if not self.running:
            return 0.0
        stood = [t.had[1] if t.finished else asleep.cores(t.pid)[1] for t in self.talks]
        waited = sum(max(0.0, s - b[1]) for s, b in zip(stood, self.before, strict=True)) / self.count
        return max(0.0, time.monotonic() - self.begun - waited)

    def _round(self) -> None:
        """If every rank waits, deliver what is held."""
        pids = [talk.pid for talk in self.talks if not talk.finished]
        before = asleep.signature(pids)
        if before is not None and not self.selector.select(0) and asleep.signature(pids) == before:
            self.switch.release()

    def fail(self, kind: str, text: str, rank: int = -1) -> None:
        """End the call."""
        self.failures.append(Failure(kind, text, rank))
        raise Over

    def _late(self) -> None:
        if self.failures:
            raise Over
        if not self.running:
            self.fail("sandbox", f"the ranks were not ready within {START:g} s: the machine is overloaded")
        if not self._stood_in_line():
            self.fail("time", f"it did not end within {self.limits.seconds:g} s")

    def _stood_in_line(self) -> bool:
        """Whether the ranks get more time, because they had less of the cores than on a machine of their own."""
        limit, ran, stood = self.limits.seconds, 0.0, 0.0
        for talk, (had_run, had_stood) in zip(self.talks, self.before, strict=True):
            if not talk.finished:
                now = asleep.cores(talk.pid)
                ran, stood = ran + now[0] - had_run, stood + now[1] - had_stood
        if ran > 0.8 * limit * min(self.count, len(os.sched_getaffinity(0))):
            return False
        self.longer = min(stood, LONGER * limit)
        self.deadline = self.begun + limit + self.longer
        return self.deadline > time.monotonic()

    def _printed(self, _: int) -> None: ...

    def _read(self, fd: int) -> None:
        try:
            raw = os.read(fd, 1 << 16)
        except BlockingIOError:
            return
        if not raw:
            self.selector.unregister(fd)
            return
        self.printed += len(raw)
        self.output += raw[: max(0, self.limits.output - len(self.output))]
        if self.printed > self.limits.output:
            self.fail("output", f"it printed more than {self.limits.output} bytes")

    def _warden(self, _: int) -> None:
        news = hear(self.control)
        if news is None:
            self.fail("sandbox", "the sandbox's warden is gone")
        elif "go" in news:
            self.running, self.begun = True, time.monotonic()
            self.before = [asleep.cores(talk.pid) for talk in self.talks]
            self.deadline = self.begun + self.limits.seconds
        elif "broken" in news:
            self.fail("sandbox", f"rank {news['broken']} could not be confined: {self._words()}")
        elif "disk" in news:
            self.fail("disk", f"its files took more than {self.limits.disk} bytes")
        elif "over" in news:
            self.over = news
            self.fail("sandbox", "the sandbox's warden ended the call")
        elif "exit" in news and news["exit"] not in self.results:
            self._died(news["exit"], news["status"])

    def _died(self, rank: int, status: int) -> None:
        talk = self.talks[rank]
        talk.drain()
        if talk.finished:
            return
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            name = signal.Signals(number).name if number in list(signal.Signals) else f"signal {number}"
            kind = "time" if number == signal.SIGXCPU else "died"
            self.fail(kind, f"the process of rank {rank} was ended by {name}", rank)
        self.fail("died", f"the process of rank {rank} exited before it returned anything", rank)

    def _words(self) -> str:
        for fd in self.pipes:
            try:
                self.output += os.read(fd, 1 << 16)[: max(0, self.limits.output - len(self.output))]
            except OSError:
                pass
        return self._text()[-400:]

    def _text(self) -> str:
        return clean(self.output.decode("utf-8", "replace"))

    def _end(self) -> None:
        """Nothing of this call stays: ranks, sockets, pipes."""
        end = time.monotonic() + START
        try:
            if self.over is None:
                self.control.send(b'{"end": true}')
            while self.over is None and time.monotonic() < end:
                self.control.settimeout(max(0.01, end - time.monotonic()))
                news = hear(self.control)
                if news is None:
                    break
                if "over" in news:
                    self.over = news
        except OSError:
            pass
        finally:
            self._words()
            self.switch.close()
            self.selector.close()
            for talk in self.talks:
                talk.sock.close()
            for bell in self.bells:
                bell.close()
            for pipe in self.pipes:
                os.close(pipe)

    def _evidence(self) -> Evidence:
        failure = next((f for f in self.failures if f.kind != "lost"), None)
        failure = failure or next(iter(self.failures), None)
        if self.over is None and (failure is None or failure.kind != "sandbox"):
            failure = Failure("sandbox", "the sandbox's warden did not answer")
        exits, bases = (self.over or {}).get("over", {}), (self.over or {}).get("bases", [])
        peaks = [max(0, exits[str(r)][1] - bases[r]) if str(r) in exits else 0 for r in range(len(bases))]
        results = [] if failure else [self.results[r] for r in range(self.count)]
        switch = self.switch
        return Evidence(results, switch.bytes_between, switch.messages, switch.order(), peaks, self.inputs, failure,
                        self._text(), self.longer, self.seconds)  # fmt: skip


class Talk:
    """The socket between the grader and one rank: out goes its job, in come questions and its answer."""

    def __init__(self, call: Call, rank: int, sock: socket.socket, job: list[Any]):
        self.call, self.rank, self.sock = call, rank, sock
        self.job = [memoryview(part) for part in job]
        self.buffer = bytearray()
        self.due = 0  # bytes of the answer, once its beginning is there
        self.finished = False
        self.pid = 0  # as the kernel says it
        self.had = (0.0, 0.0)  # of the cores, when it had answered
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        call.selector.register(sock, selectors.EVENT_READ | selectors.EVENT_WRITE, self.step)

    def step(self, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self._send()
        if events & selectors.EVENT_READ:
            self.drain()

    def _send(self) -> None:
        try:
            while self.job:
                n = self.sock.send(self.job[0][: 1 << 20])
                self.job[0] = self.job[0][n:]
                if not self.job[0]:
                    self.job.pop(0)
        except BlockingIOError:
            return
        except OSError:
            self.job.clear()
        self.call.selector.modify(self.sock, selectors.EVENT_READ, self.step)

    def drain(self) -> None:
        """Take what there is."""
        while not self.finished:
            try:
                raw = self.sock.recv(1 << 20) if self.pid else self._first()
            except BlockingIOError:
                return
            except OSError:
                raw = b""
            if not raw:
                self._quiet()
                return
            self.buffer += raw
            self._understand()

    def _first(self) -> bytes:
        """The rank's first word, with the number of its process."""
        raw, notes, _, _ = self.sock.recvmsg(1, socket.CMSG_SPACE(_CREDENTIALS.size))
        for level, kind, note in notes:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
                self.pid = _CREDENTIALS.unpack(note)[0]
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
        return raw

    def _quiet(self) -> None:
        """Nothing more will come; the warden says why."""
        if self.sock in self.call.selector.get_map():
            self.call.selector.unregister(self.sock)

    def _understand(self) -> None:
        while self.buffer and not self.finished:
            kind = self.buffer[:1]
            if kind == b"H":
                del self.buffer[:1]
                continue
            if kind == b"D":
                if len(self.buffer) < DIAL.size:
                    return
                _, group, lane, peer = DIAL.unpack(self.buffer[: DIAL.size])
                del self.buffer[: DIAL.size]
                self._dial(peer, group, lane)
            elif kind in (b"R", b"F"):
                if not self._answer(kind == b"R"):
                    return
            else:
                raise IllFormed(self.rank, "wrote to the grader what is neither a question nor an answer")

    def _dial(self, peer: int, group: int, lane: int) -> None:
        end = self.call.switch.dial(self.rank, peer, group, lane)
        try:
            if end is None:
                self.sock.send(b"0")
            else:
                socket.send_fds(self.sock, [b"1"], [end.fileno()])
        except BlockingIOError:
            raise IllFormed(self.rank, "asks without reading the answers") from None
        except OSError:
            pass  # it has ended meanwhile
        finally:
            if end is not None:
                end.close()

    def _answer(self, good: bool) -> bool:
        """Whether the whole answer is there."""
        limit = self.call.limits.result
        if not self.due:
            if len(self.buffer) < 1 + plain_data.PREFIX.size:
                return False
            try:
                lengths = plain_data.lengths(self.buffer[1 : 1 + plain_data.PREFIX.size], limit)
            except plain_data.BadData as wrong:
                self.call.fail("data", f"what rank {self.rank} returned cannot be taken: {wrong}", self.rank)
                return False
            self.due = 1 + plain_data.PREFIX.size + sum(lengths)
        if len(self.buffer) < self.due:
            return False
        self.finished, self.had = True, asleep.cores(self.pid)
        try:
            value = plain_data.decode(memoryview(self.buffer)[1 : self.due], limit)
        except plain_data.BadData as wrong:
            self.call.fail("data", f"what rank {self.rank} returned cannot be taken: {wrong}", self.rank)
        self.buffer = bytearray()
        if good:
            self.call.results[self.rank] = value
            self.call.switch.leave(self.rank)
        else:
            self._failed(value)
        return True

    def _failed(self, said: Any) -> None:
        said = said if isinstance(said, dict) else {}
        words = {
            k: clean(v) if isinstance(v := said.get(k), str) else "" for k in ("kind", "error", "text", "traceback")
        }
        kind = words["kind"] if words["kind"] in KINDS else "raised"
        call = self.call
        call.failures.append(Failure(kind, words["text"], self.rank, words["error"], words["traceback"]))
        if kind != "lost":
            raise Over
        call.switch.leave(self.rank)
        call.deadline = min(call.deadline, time.monotonic() + LAST_WORDS)


def hear(control: socket.socket) -> dict[str, Any] | None:
    """What the warden says; None if it is gone."""
    try:
        raw = control.recv(1 << 16)
    except TimeoutError:
        return None
    except OSError:
        return None
    return json.loads(raw) if raw else None


def clean(text: str) -> str:
    """Text of a submission without what a terminal would take for a command."""
    return "".join(c if c in "\n\t" or (c.isprintable()) else "\N{REPLACEMENT CHARACTER}" for c in text)[:1_000_000]
