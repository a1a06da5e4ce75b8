"""Watching a job from outside: does it stand still, who is heard of, and then: who is at fault."""

from __future__ import annotations

import re
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from labkit.wire.errors import RefusedError
from labkit.wire.recording import record as rec
from labkit.world.diagnosis.look import stopped_ranks

from .reading import Pages
from .report import Report
from .verdict import Verdict, diagnose

if TYPE_CHECKING:
    from labkit.world.job import Job

_OF_RANK = ("died", "raised", "exit", "lost", "wire")  # kinds of failures that a rank has, and not the world
QUIET = 0.5  # seconds without a record until a job counts as standing still
LOOK = 0.05  # seconds between two looks
_KINDS = (
    ("died", re.compile(r"^rank \d+ (was killed|exited)")), ("lost", re.compile(r"^rank \d+ (lost|cannot reach)")),
    ("wire", re.compile(r"^rank \d+ (waited|sent)")),
)  # fmt: skip


@dataclass(frozen=True)
class Heard:
    """A failure of one rank as the events of a job tell of it."""

    rank: int
    kind: str
    error: str
    message: str


class Detector:
    """Of one job of this process. `quiet`: seconds without a sign of progress before ranks are suspected.

    Made while the job runs, it can still say afterwards what went wrong.
    """

    def __init__(self, job: Job, quiet: float = QUIET) -> None:
        if not 0 < quiet < 10**5:
            raise RefusedError(f"Detector(quiet={quiet!r}): needs a number of seconds above 0")
        self.job, self.quiet = job, quiet
        self._pages: Pages | None = None
        self._marks: tuple[bytes, ...] = ()
        self._moved: list[float] = []
        self._opened()

    @property
    def stopped(self) -> set[int]:
        """Ranks whose process is stopped, as the system says: known on their own host only."""
        return stopped_ranks(self.job)

    @property
    def failures(self) -> list[Heard]:
        """Ranks that have failed and were not restarted since, in the order in which that was heard of."""
        run = self.job.poll()
        if run is not None and run.failures and self.job.spec.on_failure != "continue":
            return [
                Heard(f.rank, f.kind, f.error, f.message) for f in run.failures if f.rank >= 0 and f.kind in _OF_RANK
            ]
        found: dict[int, Heard] = {}
        for _, rank, text in list(self.job.events):
            if text.startswith("failed: "):
                words = text.removeprefix("failed: ")
                kind = next((kind for kind, shape in _KINDS if shape.match(words)), "raised")
                found.setdefault(rank, Heard(rank, kind, kind, words))
            elif text == "restarted":
                found.pop(rank, None)
        return list(found.values())

    def look(self) -> dict[int, Report]:
        """Reports of all ranks, and a note of who has moved since the last look; {} before the ranks exist."""
        pages = self._note()
        if pages is None:
            return {}
        ended = self.job.over and self.job.spec.on_failure != "continue"  # with the first failure all ranks are ended
        by_themselves = {f.rank for f in self.failures} if ended else set()
        return pages.look([r for r in range(self.job.spec.world_size) if r not in by_themselves] if ended else ())

    def moving(self) -> set[int]:
        """Ranks that have begun or ended something during the last `quiet` seconds, as far as was looked."""
        now = time.monotonic()
        return {rank for rank, at in enumerate(self._moved) if now - at < self.quiet}

    def now(self, silent: Collection[int] | None = None) -> Verdict:
        """The verdict on what is seen now. silent: see `diagnose`; by default the processes that are stopped."""
        reports = self.look()
        moving = set() if self.job.over else self.moving()
        return diagnose(reports, self.failures, self.stopped if silent is None else silent, moving)

    def wait(self, timeout: float, silent: Collection[int] | None = None) -> Verdict:
        """Look until somebody is at fault, or `timeout` seconds have passed, or the job is over; then the verdict.

        A verdict is given when ranks wait that have not moved for `quiet` seconds, or when a rank has failed and the
        others had as long to do so, too.
        """
        end, before = time.monotonic() + timeout, False
        self._opened()  # as long as there are pages
        while time.monotonic() < end and not self.job.over:
            if self._note() is not None and len(self.moving()) < len(self._moved):  # else nothing is read but marks
                reports = self.look()
                waiting = {r for r, report in reports.items() if report.blocked}
                still = not self.moving() & waiting and bool(waiting or self.failures)
                verdict = self.now(silent) if still else None
                if verdict is not None and verdict.kind != "nothing" and (before or verdict.kind in ("dead", "raised")):
                    return verdict
                before = still  # looked at twice: a record may be caught while it is written
            time.sleep(LOOK)
        return self.now(silent)

    def close(self) -> None:
        """Let go of the pages."""
        self._pages = None

    def _note(self) -> Pages | None:
        """Who has moved since the last time; None before the ranks exist."""
        pages = self._opened()
        if pages is None:
            return None
        marks, now = pages.fingerprint(), time.monotonic()
        if not self._marks:
            self._marks, self._moved = marks, [now] * len(marks)
        self._moved = [now if a != b else at for a, b, at in zip(marks, self._marks, self._moved, strict=True)]
        self._marks = marks
        return pages

    def _opened(self) -> Pages | None:
        job = self.job
        if self._pages is None and job._started.wait(30):
            with job._lock:
                if job._pages_fd >= 0:
                    size = job.spec.world_size
                    self._pages = Pages([rec.Page(job._pages_fd, r, size) for r in range(size)], job.spec.transport)
        return self._pages
