"""A world whose ranks stay between calls, so that a call costs a message and not a start.

    with labkit.world(4) as world:
        run = world.run(fn, x)         # fn(group, x) on every rank: a Run, as launch gives it
        world.run(step)                # again, at once; what a rank put into `group.kept` is still there

The ranks run `serve`: each has a socket to the process that called, takes a function, runs it, hands its result over,
and waits for the next. All else is as in `launch`: a rank that raises, or dies, or a deadlock, ends the world with its
reason, and the next call begins with new ranks; so does a call after an edit of one of the reader's modules.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import secrets
import select
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from labkit.wire.errors import RefusedError
from labkit.wire.group import Group
from labkit.wire.recording import record as rec
from labkit.wire.recording.trace import Moment, from_pages
from labkit.wire.transports.local import abstract_listener

from .channel import Channel, Closed
from .diagnosis.reading import Reader, find_unreceived
from .engine import pack, start
from .job import Failure, Interrupted, Job, RankFailed, Run, plainly
from .result import store_result
from .spec import make_spec

IDLE_SECONDS = 600.0  # without a call, after which the ranks end
BEGIN_SECONDS = 120.0  # for all ranks to be up


class World:
    """`size` ranks that are kept: options as for `launch`. `deadline` is that of one call.

    The ranks start with the first call. `kept` tells whether they still hold what earlier calls left.
    """

    def __init__(self, size: int, **options: Any):
        self.deadline = options.pop("deadline", None)
        self.idle = float(options.pop("idle", IDLE_SECONDS))
        for name in ("on_failure", "faults"):
            if options.get(name) not in (None, [], "raise"):
                raise RefusedError(f"a world that is kept takes no {name}: a rank that fails ends it; use launch()")
        make_spec(size, options | {"deadline": self.deadline})
        self.size, self.options = size, options
        self._job: Job | None = None
        self._channels: list[Channel] = []
        self._sources: dict[str, float] = {}
        self._pages: list[rec.Page] = []
        self._starting = self._unwanted = False  # unwanted: stopped before there were ranks

    def __enter__(self) -> World:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()

    @property
    def kept(self) -> bool:
        """Whether the ranks of the last call are still there."""
        return self._job is not None and not self._job.over and not self._edited()

    def close(self) -> None:
        """Let the ranks go. The next call starts new ones."""
        job, self._job = self._job, None
        for channel in self._channels:
            with contextlib.suppress(Closed):
                channel.send(("leave",))
            channel.close()
        for page in self._pages:
            page.close()
        self._channels, self._pages = [], []
        if job is not None and not job._over.wait(2):
            job.stop()

    def stop(self) -> None:
        """End the call that is under way, from another thread: there it raises RankFailed (kind "stopped")."""
        self._unwanted = self._starting
        job = self._job
        if job is not None and not job.over:
            job.stop()

    @plainly
    def run(self, fn: Callable[..., Any], *args: Any) -> Run:
        """`fn(group, *args)` on every rank; its Run. Raises RankFailed as `launch` does, and the world is over then."""
        if os.environ.get("LABKIT_RANK") is not None:
            raise RefusedError("a rank cannot have a world of its own")
        if not callable(fn):
            raise RefusedError(f"world.run needs a function fn(group, *args), not {type(fn).__name__}")
        self._starting, self._unwanted = True, False
        try:
            call = pack(fn, args)
            if not self.kept or self._full():
                self.close()
                self._begin(fn)
        finally:
            self._starting = False
        try:
            if self._unwanted and self._job is not None:
                self._job.stop()
            return self._call(call)
        except KeyboardInterrupt:
            job = self._job
            self._end()
            raise Interrupted(job is None or job.over) from None
        except BaseException:  # a rank failed: nobody knows where the others are
            self._end()
            raise

    # -- inside ------------------------------------------------------------------------------------------------

    def _begin(self, fn: Callable[..., Any]) -> None:
        """Start the ranks, and hear from each. What `fn` needs is imported once, before they are forked."""
        self._sources = _sources()
        listener, address = abstract_listener()
        secret = secrets.token_bytes(16)
        self._job = job = start(serve, self.size, address, secret, self.idle, fn, **self.options)
        found: dict[int, Channel] = {}
        end = time.monotonic() + BEGIN_SECONDS
        try:
            while len(found) < self.size:
                if job.over or time.monotonic() > end:
                    job.stop()
                    job.wait()  # raises what it failed of
                    raise TimeoutError(f"{len(found)} of {self.size} ranks were up after {BEGIN_SECONDS:g} s")
                if select.select([listener], [], [], 0.1)[0]:
                    channel = Channel(listener.accept()[0])
                    (told, rank), _ = channel.receive()
                    if secrets.compare_digest(told, secret):
                        found[rank] = channel
        except Closed:
            job.wait()
            raise
        finally:
            listener.close()
        self._channels = [found[rank] for rank in range(self.size)]
        job._started.wait(10)
        self._pages = [rec.Page(job._pages_fd, rank, self.size) for rank in range(self.size)]
        self._reader = Reader(self._pages)
        self._now = 0

    def _call(self, call: bytes) -> Run:
        job = self._job
        assert job is not None
        seen, logged, begun = len(job.events), [len(log) for log in job._logs], time.perf_counter()
        at = self._now if job.spec.clock == "virtual" else time.perf_counter_ns() - job._epoch
        since = Moment.now(self._pages, at)
        for page in self._pages:  # said here, so that nobody seems to wait for a rank that has not heard of the call
            page.state = rec.RUNNING
        for channel in self._channels:
            with contextlib.suppress(Closed):  # of one that has died: its job says so
                channel.send(("run", call, self._now))
        results, peaks = self._results(begun)
        self._agree(job)
        seconds = time.perf_counter() - begun
        trace = from_pages(
            self._pages, clock=job.spec.clock, transport=job.spec.transport, emulated=job.spec.network is not None,
            peaks=peaks if job.spec.memory else (), memory=job.spec.memory or "", since=since,
        )  # fmt: skip
        logs = [log[n:] for log, n in zip(job._logs, logged, strict=True)]
        return Run(job.spec, results, [], logs, trace, seconds, job.events[seen:], [])

    def _results(self, begun: float) -> tuple[list[Any], list[int]]:
        """What the ranks returned, and the memory of each. Raises what their job failed of."""
        job = self._job
        assert job is not None
        results, peaks = [None] * self.size, [0] * self.size
        waiting, lost = list(self._channels), False
        while waiting and not job.over:
            left = 0.2 if self.deadline is None else begun + self.deadline - time.perf_counter()
            if left <= 0:
                words = f"the call took longer than deadline={self.deadline:g} s"
                raise RankFailed(Failure("deadline", -1, "Deadline", words, "", -1, self.deadline), _nothing(job))
            for channel in select.select(waiting, [], [], min(0.2, left))[0]:
                waiting.remove(channel)
                rank = self._channels.index(channel)
                try:
                    (now, peaks[rank]), (fd,) = channel.receive()
                except Closed:
                    lost = True
                    continue
                with os.fdopen(fd, "rb") as file:
                    file.seek(0)
                    results[rank] = pickle.load(file)
                self._now = max(self._now, now)
        if lost or waiting:
            job.wait()  # raises what its ranks failed of
            raise RuntimeError("a rank has ended, and did not say why")
        return results, peaks

    def _agree(self, job: Job) -> None:
        """Raise RankFailed if ranks disagreed in this call: it may have ended before its host looked."""
        if not job.spec.check:
            return
        wrong = self._reader.picture().mismatch or find_unreceived(self._reader)
        if wrong:
            step = max(page.step for page in self._pages)
            seconds = (time.perf_counter_ns() - job._epoch) / 1e9
            raise RankFailed(Failure("mismatch", -1, "Mismatch", wrong, "", step, seconds), _nothing(job))

    def _end(self) -> None:
        job = self._job
        if job is not None and not job.over:
            job.stop()
        self.close()

    def _full(self) -> bool:
        """Whether so much was written down that the next call might find no room."""
        full = (rec.CAPACITY // 2, rec.STRING_BYTES // 2)
        return any(page.count > full[0] or page.strings_used > full[1] for page in self._pages)

    def _edited(self) -> bool:
        return any(_changed(path) != when for path, when in self._sources.items())


def serve(group: Group, address: Any, secret: bytes, idle: float, first: Any) -> str:
    """What a kept rank does: calls, until nobody asks any more. first: a function whose modules are loaded by now."""
    sock = socket.socket(socket.AF_UNIX if isinstance(address, (str, bytes)) else socket.AF_INET)
    sock.connect(address)
    channel, context = Channel(sock), group.context
    channel.send((secret, group.rank))
    no_step = context.recorder.step
    while True:
        if not select.select([sock], [], [], idle)[0]:
            return "idle"
        try:
            (what, *rest), _ = channel.receive()
        except Closed:
            return "left alone"
        if what == "leave":
            return "let go"
        call, now = rest
        fn, args = pickle.loads(call)
        del rest, call
        if context.clock.virtual:
            context.clock.reach(now)
        if context.sampler is not None:
            context.sampler.restart()
        context.recorder.page.earlier = group.calls
        context.recorder.step = context.recorder.page.step = no_step  # the last of the call before is over
        result = fn(group, *args)
        del fn, args
        context.settle()
        context.close_books()
        if context.sampler is not None:
            context.sampler.sample()
        fd, _ = store_result(result, group.rank, 1 << 30)
        del result
        peak = context.sampler.peak() if context.sampler is not None else 0
        context.recorder.page.state = rec.FINISHED  # who waits for it now waits in vain
        channel.send((context.clock.now(), peak), (fd,))
        os.close(fd)


def _nothing(job: Job) -> Run:
    return Run(job.spec, [], [], [], None, 0.0, [], [])


def _sources() -> dict[str, float]:
    """The files of modules that a reader may edit, and when each was changed last."""
    others = (sys.prefix, sys.base_prefix, str(Path(__file__).parents[1]))
    found = {}
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if path and path.endswith(".py") and not path.startswith(others):
            found[path] = _changed(path)
    return found


def _changed(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0
