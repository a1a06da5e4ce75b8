"""`Job` and `Run`: a world that runs, and what is left of it."""

from __future__ import annotations

import contextlib
import functools
import linecache
import os
import pickle
import re
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

from labkit.telling import Telling, kernel
from labkit.wire.errors import RefusedError
from labkit.wire.faults import Fault, check_faults
from labkit.wire.recording import record as rec
from labkit.wire.recording.trace import Trace, from_pages
from labkit.world.diagnosis.look import Watch

from .channel import Channel, Closed
from .spec import Spec

MOST_SHOWN = 100_000  # characters of a rank's output that a notebook shows: a megabyte makes the page stand still

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Failure:
    """How one rank, or the world, failed. rank: -1 where no single rank is to blame. step: the last one marked.

    kind: "raised", "exit", "died", "lost", "wire", "mismatch", "deadlock", "timeout", "deadline" or "stopped".
    waiting: what each other rank was doing at that moment. awaits: the ranks that each of them waited for.
    """

    kind: str
    rank: int
    error: str
    message: str
    traceback: str
    step: int
    seconds: float
    waiting: dict[int, str] = field(default_factory=dict)
    awaits: dict[int, list[int]] = field(default_factory=dict)


class RankFailed(RuntimeError):
    """A run that failed. `failure` is the first cause, `run` everything that is left (results, trace, logs)."""

    def __init__(self, failure: Failure, run: Run):
        self.failure, self.run = failure, run
        super().__init__(explain(failure))

    @property
    def rank(self) -> int:
        return self.failure.rank

    @property
    def reason(self) -> str:
        """What went wrong, with the traceback of the rank where it did: without what the others did meanwhile."""
        return reason(self.failure)


def plainly(fn: Callable[P, T]) -> Callable[P, T]:
    """A function that readers call: what it raises for them has the line of their cell, and no frame of labkit.

    IPython and pytest leave out frames with `__tracebackhide__`. An error of another kind is a bug, and keeps all.
    """

    @functools.wraps(fn)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        __tracebackhide__ = True
        try:
            return fn(*args, **kwargs)
        except (RankFailed, RefusedError, TimeoutError, KeyboardInterrupt) as error:
            raise error.with_traceback(None) from None  # its message says what there is to say

    return call


def explain(failure: Failure) -> str:
    """The failure for the person who typed the cell: its reason, and what the other ranks were doing."""
    doing = "\n".join(f"  rank {r}: {what}" for r, what in failure.waiting.items())
    return reason(failure) + (f"\n\nMeanwhile:\n{doing}" if doing else "")


def reason(failure: Failure) -> str:
    """What went wrong, and the traceback where a rank has left one."""
    f = failure
    who = f"rank {f.rank} " if f.rank >= 0 else ""
    if f.kind == "raised" or f.kind == "exit":
        head = f"{who}raised {f.error}: {f.message.removeprefix(f'rank {f.rank}: ')}"
    elif f.kind in ("lost", "wire"):
        head = f"{f.error} on {who.strip()}: {f.message}"
    else:
        head = f"{f.error}: {f.message}"
    parts = [head]
    if f.traceback and f.kind in ("raised", "wire", "lost", "exit"):
        parts.append(with_lines_of_cells(f.traceback).rstrip())
    return "\n\n".join(parts)


def with_lines_of_cells(traceback: str) -> str:
    """A rank's traceback with the lines of notebook cells: they are known here, and were not where it was raised."""

    def look_up(frame: re.Match[str]) -> str:
        path, number, name, below = frame.groups()
        text = "" if below else linecache.getline(path, int(number)).strip()
        return f"  File your cell, line {number}, in {name}\n" + (f"    {text}\n" if text else "") + below

    return re.sub(r'  File "(.*ipykernel_\d+[/\\]\d+\.py)", line (\d+), in (.*)\n((?:    )?)', look_up, traceback)


class Interrupted(KeyboardInterrupt):
    """Somebody interrupted a run, and this is what became of its ranks."""

    def __init__(self, over: bool) -> None:
        super().__init__("all ranks have ended" if over else "the ranks are being ended, which takes longer than usual")

    def _render_traceback_(self) -> list[str]:
        """What Jupyter shows in place of a traceback: the reader knows where they pressed the button."""
        return [f"Interrupted: {self}."]


class Run:
    """What a run left: `results` by rank, `failures`, `logs` by rank, `trace`, `seconds`, and `events`."""

    def __init__(self, spec: Spec, results: list[Any], failures: list[Failure], logs: list[str], trace: Trace | None,
                 seconds: float, events: list[tuple[float, int, str]], unfired: list[str]):  # fmt: skip
        self.spec, self.results, self.failures, self.logs = spec, results, failures, logs
        self._trace, self.seconds, self.events, self.unfired = trace, seconds, events, unfired

    @property
    def trace(self) -> Trace:
        if self._trace is None:
            raise ValueError("this run has no trace here: under torchrun only rank 0 holds it")
        return self._trace

    def __repr__(self) -> str:
        how = "ok" if not self.failures else f"{len(self.failures)} failed"
        return f"Run({self.spec.world_size} ranks over {self.spec.transport}, {how}, {self.seconds:.3f} s)"


def _host_failure(kind: str, rank: int, error: str, seconds: float, message: str) -> dict[str, Any]:
    return {"kind": kind, "rank": rank, "error": error, "message": message, "traceback": "", "step": -1,
            "seconds": seconds, "waiting": {}}  # fmt: skip


class Job:
    """A world that runs. It belongs to the process that started it and dies with it."""

    def __init__(self, spec: Spec, channel: Channel, telling: Telling | None = None):
        self.spec = spec
        self._telling = telling or Telling(False)
        self._born = 0
        self._watch: Watch | None = None
        self.events: list[tuple[float, int, str]] = []
        self.pids: list[int] = []
        self._channel = channel
        self._results: list[Any] = [None] * spec.world_size
        self._blobs: dict[int, int] = {}
        self._done: set[int] = set()
        self._kinds: dict[int, str] = {}
        self._peaks = [0] * spec.world_size
        self._logs = [""] * spec.world_size
        self._pages_fd = -1
        self._epoch = 0
        self._end: tuple[Any, ...] | None = None
        self._refused: str | None = None
        self._over = threading.Event()
        self._started = threading.Event()
        self._lock = threading.Lock()
        self._news = threading.Condition()
        self._run: Run | None = None
        self._start = time.perf_counter()
        self._seconds = 0.0
        self._thread = threading.Thread(target=self._listen, name="labkit-job", daemon=True)
        self._thread.start()

    # -- what a caller does --------------------------------------------------------------------------------------

    @plainly
    def wait(self, timeout: float | None = None) -> Run:
        """Until the run is over. Interrupting it (Ctrl-C, the stop button) ends every rank.

        Where somebody looks, a line says after two seconds what the ranks do (see `progress` in `Spec`).
        """
        try:
            end = None if timeout is None else time.monotonic() + timeout
            while not self._over.wait(0.2 if end is None else min(0.2, max(0.0, end - time.monotonic()))):
                if end is not None and time.monotonic() >= end:
                    raise TimeoutError(
                        f"the run is not over after {timeout:g} s; it goes on: call wait() again or stop()"
                    )
                self._telling.tell(self._doing)
        except KeyboardInterrupt:
            self.stop()
            raise Interrupted(self.over) from None
        finally:
            self._telling.clear()
        run = self._finished()
        if run.failures and self.spec.on_failure == "raise":
            raise RankFailed(run.failures[0], run)
        return run

    def poll(self) -> Run | None:
        """The Run if it is over, else None."""
        return self._finished() if self._over.is_set() else None

    def inject(self, fault: Fault) -> None:
        """Inject a fault into the running world."""
        (fault,) = check_faults([fault], self.spec.world_size)
        self._order("inject", fault)

    def kill(self, rank: int) -> None:
        """Kill one rank's process, at once."""
        self._order("kill", self._rank(rank))

    def restart(self, rank: int) -> None:
        """Start a rank anew that is gone, or was killed and will be (needs on_failure='continue')."""
        if self.spec.on_failure != "continue":
            raise RefusedError("restart needs a job started with on_failure='continue'")
        self._order("restart", self._rank(rank))

    def hold(self, on: bool) -> None:
        """Hold the run open though all ranks may be over, so that they can be restarted; False lets it end again."""
        if on and self.spec.on_failure != "continue":
            raise RefusedError("hold needs a job started with on_failure='continue'")
        self._order("hold", bool(on))

    def await_events(self, seen: int, timeout: float) -> list[tuple[float, int, str]]:
        """The events after the first `seen`, as soon as there are any; [] after `timeout` s or when the run is over."""
        with self._news:
            self._news.wait_for(lambda: len(self.events) > seen or self._over.is_set(), timeout)
            return self.events[seen:]

    @property
    def over(self) -> bool:
        """Whether the run is over, in whatever way."""
        return self._over.is_set()

    def how_it_failed(self, rank: int) -> str:
        """The kind (see `Failure`) of this rank's last failure so far, "" for none; with on_failure='continue'."""
        return self._kinds.get(rank, "")

    @property
    def finished(self) -> list[int]:
        """The ranks that have handed in a result so far, and were not restarted since."""
        with self._news:
            return sorted(self._done)

    def stop(self) -> None:
        """End every rank and wait until they are gone."""
        with contextlib.suppress(RefusedError):
            self._order("stop")
        if self._over.wait(5):
            with contextlib.suppress(RefusedError):
                self._finished()

    def trace(self) -> Trace:
        """The trace so far, of a run that may still go on."""
        if self._run is not None:
            return self._run.trace
        self._started.wait(10)
        if self._pages_fd < 0:
            raise ValueError("this run has no trace: its ranks never started")
        pages = [rec.Page(self._pages_fd, r, self.spec.world_size) for r in range(self.spec.world_size)]
        return from_pages(
            pages, clock=self.spec.clock, transport=self.spec.transport, emulated=self.spec.network is not None,
            peaks=self._peaks if self.spec.memory else (), memory=self.spec.memory or "",
        )  # fmt: skip

    def watch(self) -> Watch:
        """A view on what every rank does now: `watch().look()`, as often as one likes."""
        return Watch(self)

    def __del__(self) -> None:
        """What nobody asked for is let go; until it is over, the listening thread keeps the job alive."""
        if self._run is None:
            for fd in (*self._blobs.values(), self._pages_fd):
                with contextlib.suppress(OSError):
                    os.close(fd)

    # -- inside --------------------------------------------------------------------------------------------------

    def _rank(self, rank: int) -> int:
        if not isinstance(rank, int) or not 0 <= rank < self.spec.world_size:
            raise RefusedError(f"rank {rank!r}: this world has ranks 0 to {self.spec.world_size - 1}")
        return rank

    def _doing(self) -> str:
        """How many ranks are up, and what they wait for."""
        size = self.spec.world_size
        if not self._started.is_set():
            return f"{self._born} of {size} ranks have begun"
        self._watch = self._watch or self.watch()
        seen = self._watch.look()
        if starting := sum(now.state == "starting" for now in seen):
            return f"{size - starting} of {size} ranks are up"
        waiting = [now for now in seen if now.state == "waiting"]
        step = max(now.step for now in seen)
        words = [f"all {size} ranks are up"] + ([f"step {step}"] if step > 0 else [])
        if over := sum(now.state in ("finished", "failed", "ended") for now in seen):
            words.append(f"{over} are over")
        if waiting:
            words.append(f"{len(waiting)} wait (rank {waiting[0].rank}: {waiting[0].doing})")
        return ", ".join(words)

    def _order(self, *order: Any) -> None:
        if self._over.is_set():
            raise RefusedError("this run is over")
        with self._lock:
            try:
                self._channel.send(order)
            except Closed:
                pass

    def _listen(self) -> None:
        """Take what the host tells, in a thread of its own."""
        try:
            while self._end is None and self._refused is None:
                (what, *rest), fds = self._channel.receive()
                if what == "output":
                    self._show(*rest)
                elif what == "result":
                    self._blobs[rest[0]] = fds[0]
                    self._peaks[rest[0]] = rest[2]
                    with self._news:
                        self._done.add(rest[0])
                        self._news.notify_all()
                elif what == "born":
                    self._born = rest[0]
                elif what == "event":
                    self._event(*rest)
                elif what == "failed":
                    self._kinds[rest[0]] = rest[1]
                elif what == "pid":
                    self.pids[rest[0]] = rest[1]
                elif what == "step":
                    print(f"[rank {rest[0]}] step {rest[1]}", flush=True)
                elif what == "started":
                    self.pids, self._epoch = rest
                    self._pages_fd = fds[0]
                    self._started.set()
                elif what == "refused":
                    self._refused = rest[0]
                elif what == "ended":
                    self._end = tuple(rest)
        except Closed:
            seconds = time.perf_counter() - self._start
            gone = _host_failure("died", -1, "HostDied", seconds,
                                 "the process that watched the ranks was killed; the ranks died with it")  # fmt: skip
            self._end = (gone, [gone], [])
        finally:
            self._seconds = time.perf_counter() - self._start
            self._channel.close()
            self._started.set()
            self._over.set()
            with self._news:
                self._news.notify_all()

    def _event(self, rank: int, text: str) -> None:
        if text == "restarted":  # what its former life may have handed in counts no more
            old = self._blobs.pop(rank, None)
            if old is not None:
                os.close(old)
        with self._news:
            if text == "restarted":
                self._done.discard(rank)
            self.events.append((time.perf_counter() - self._start, rank, text))
            self._news.notify_all()

    def _show(self, rank: int, text: str) -> None:
        room = MOST_SHOWN - len(self._logs[rank]) if kernel() is not None else len(text)
        self._logs[rank] += text
        if room < len(text):
            if room < 0:
                return
            text = f"{text[:room]}\n... labkit shows no more of this rank here: all of it is in the run's logs[{rank}]"
        mark = f"[rank {rank}] "
        lines = text[: -text.endswith("\n") or None].split("\n")  # not splitlines(): a bare "\r" ends no line
        self._telling.clear()
        with contextlib.suppress(OSError, ValueError):  # nobody reads it any more; the run goes on
            sys.stdout.write("".join(f"{mark}{line}\n" for line in lines))
            sys.stdout.flush()

    def _finished(self) -> Run:
        with self._lock:
            if self._run is None:
                self._run = self._collect()
        return self._run

    def _collect(self) -> Run:
        if self._refused is not None:
            raise RefusedError(self._refused)
        assert self._end is not None
        _, failures, unfired = self._end
        while self._blobs:
            rank, fd = self._blobs.popitem()
            with os.fdopen(fd, "rb") as f:
                f.seek(0)
                try:
                    self._results[rank] = pickle.load(f)
                except Exception as why:
                    text = f"the result of rank {rank} cannot be loaded here: {type(why).__name__}: {why}"
                    failures = [*failures, _host_failure("raised", rank, type(why).__name__, self._seconds, text)]
        trace = None
        if self._pages_fd >= 0:
            trace = self.trace()
            os.close(self._pages_fd)
            self._pages_fd = -1
        stopped = any(failure["kind"] == "stopped" for failure in failures)  # then nobody knows what would have come
        for text in [] if stopped else unfired:
            print(f"labkit: this fault never fired: {text}", file=sys.stderr)
        return Run(self.spec, self._results, [Failure(**f) for f in failures], self._logs, trace, self._seconds,
                   self.events, list(unfired))  # fmt: skip
