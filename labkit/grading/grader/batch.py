"""Grades all submissions, several at a time, in processes of their own; nothing that one does ends another.

    batch = Batch(folder, out, pristine, how, jobs=2)
    for done in batch.run(tasks): done.result, done.kept

A result is written as soon as it is there, and kept by the next run as long as the submission, the notebook's source,
the overlay, the seed and labkit are what they were. A grader that dies or hangs at an exercise is replaced, and tries
once more; then that exercise is put aside, and the rest of the submission graded.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import selectors
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labkit.files import write_atomically
from labkit.grading.grader import reading
from labkit.grading.grader.door import Pace
from labkit.grading.grader.one import How, could_not, info, is_trouble
from labkit.grading.grader.pristine import Pristine
from labkit.grading.grader.results import Result, ResultError, from_json, to_json
from labkit.grading.grader.submissions import find_notebook

START = 180.0  # seconds until a grader has loaded what it needs
BESIDE = 60.0  # seconds that an exercise may take beside its runs: reading, checking, opening sandboxes


@dataclass
class Task:
    """One notebook of one student. factor: of all its limits. only: the exercises to grade, all if empty."""

    student: str
    notebook: str
    factor: float = 1.0
    only: Sequence[str] = ()
    before: Result | None = None
    condemned: dict[str, str] = field(default_factory=dict)
    ended: list[str] = field(default_factory=list)  # exercises at which a grader ended


@dataclass(frozen=True)
class Done:
    """A result, and whether it is one of an earlier run that still holds."""

    result: Result
    kept: bool = False


class Batch:
    """folder: of the submissions. out: results go below it. how.tier: a tier that stands, by name."""

    def __init__(
        self, folder: Path, out: Path, pristine: Mapping[str, Pristine], how: How, *, overlay: Path | None = None,
        jobs: int = 1, fresh: bool = False,
    ):  # fmt: skip
        self.folder, self.out, self.pristine, self.how = folder, out, pristine, how
        self.overlay, self.jobs, self.fresh = overlay, jobs, fresh

    def run(self, tasks: Sequence[Task]) -> Iterator[Done]:
        """Every task's result, those that are kept first, then as they come. They are on disk when they are given."""
        waiting: deque[Task] = deque()
        for task in tasks:
            kept = self._kept(task)
            if kept is not None:
                yield Done(kept, True)
            else:
                waiting.append(task)
        graders: list[Grader] = []
        try:
            yield from self._graded(waiting, graders)
        finally:
            for grader in graders:
                grader.stop()

    def _graded(self, waiting: deque[Task], graders: list[Grader]) -> Iterator[Done]:
        while waiting or any(grader.task for grader in graders):
            graders[:] = [grader for grader in graders if grader.alive]
            while len(graders) < self.jobs and len([g for g in graders if g.task is None]) < len(waiting):
                graders.append(Grader(self._plan()))
            for grader in graders:
                if grader.task is None and waiting:
                    grader.give(waiting.popleft())
            for grader in _heard(graders):
                done = self._listen(grader, waiting)
                if done is not None:
                    self._write(done)
                    yield Done(done)

    def _listen(self, grader: Grader, waiting: deque[Task]) -> Result | None:
        """News of a grader: a result; or None, perhaps with its task given back because it ended."""
        task = grader.task
        result, trouble = grader.news()
        if result is not None or not trouble or task is None:
            return result
        place = grader.at
        grader.stop()
        task.ended.append(place)
        if task.ended.count(place) < 2:
            waiting.appendleft(task)
        elif place:
            task.condemned[place] = trouble
            waiting.appendleft(task)
        else:
            return could_not(task.student, self.pristine[task.notebook], self._how(task), trouble)
        return None

    def _how(self, task: Task) -> How:
        return dataclasses.replace(self.how, factor=task.factor)

    def _plan(self) -> dict[str, Any]:
        how = {k: v for k, v in dataclasses.asdict(self.how).items() if k != "factor"}
        sources = [str(p.path.resolve()) for p in self.pristine.values()]
        overlay = str(self.overlay.resolve()) if self.overlay is not None else ""
        return {"sources": sources, "overlay": overlay, "folder": str(self.folder.resolve()), "how": how}

    # -- what is on disk -----------------------------------------------------------------------------------------

    def path(self, student: str, notebook: str) -> Path:
        """Where a result is kept."""
        return self.out / "results" / student / f"{notebook}.json"

    def _kept(self, task: Task) -> Result | None:
        """The earlier result, if it still holds. With `only`, it is noted in the task instead."""
        if self.fresh:
            return None
        try:
            old = from_json(self.path(task.student, task.notebook).read_text(encoding="utf-8"))
        except (OSError, ResultError, UnicodeDecodeError):
            return None
        sha256, received = self._handed(task)
        if old.submission.sha256 != sha256:
            return None
        if task.only:
            task.before = old
            return None
        now = info(self.pristine[task.notebook], self._how(task))
        if old.grader != now or any(is_trouble(graded) for graded in old.exercises):
            return None
        if received and old.submission.received and received < old.submission.received:  # the same bytes, earlier
            handed = dataclasses.replace(old.submission, received=received)
            old = dataclasses.replace(old, submission=handed)
            self._write(old)
        return old

    def _handed(self, task: Task) -> tuple[str, str]:
        """Hash and time of what is handed in now; "" where nothing is, or nothing that can be read."""
        path = find_notebook(self.folder, task.student, task.notebook, [])
        try:
            taken = reading.take_file(path) if path is not None else None
        except reading.Unreadable:
            taken = None
        return (taken.sha256, taken.received) if taken is not None else ("", "")

    def _write(self, result: Result) -> None:
        path = self.path(result.student, result.notebook)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, to_json(result))


class Grader:
    """A worker process, and what it is at. task: None while it has none. at: the exercise that it began last."""

    def __init__(self, plan: dict[str, Any]):
        ours, theirs = socket.socketpair()
        script = Path(__file__).with_name("worker.py")
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-B", str(script), str(theirs.fileno())], pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        self.sock, self._buffer = ours, bytearray()
        self.task: Task | None = None
        self.at, self._ready = "", False
        self._watch()
        self._say(plan)

    @property
    def alive(self) -> bool:
        return self.sock.fileno() >= 0

    def give(self, task: Task) -> None:
        """Let it grade `task`."""
        self.task, self.at = task, ""
        self._watch()
        self._say({
            "student": task.student, "notebook": task.notebook, "factor": task.factor, "only": list(task.only),
            "before": to_json(task.before) if task.before is not None else "", "condemned": task.condemned,
        })  # fmt: skip

    def news(self) -> tuple[Result | None, str]:
        """(result, why it is of no use any more): at most one of them."""
        if time.monotonic() > self.deadline:
            return None, "checking it took longer than it may."
        try:
            raw = self.sock.recv(1 << 20, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None, ""
        except OSError:
            raw = b""
        if not raw:
            return None, "the process that graded it ended."
        self._buffer += raw
        while b"\n" in self._buffer:
            text, _, rest = self._buffer.partition(b"\n")
            self._buffer = bytearray(rest)
            said = json.loads(text)
            if "result" in said:
                self.task = None
                return from_json(said["result"]), ""
            if "failed" in said:
                print(said["traceback"], file=sys.stderr)
                return None, f"the grader has a mistake here ({said['failed']})"
            self._ready = self._ready or "ready" in said
            self.at = said.get("begun", self.at)
            self._watch()
        return None, ""

    def _watch(self) -> None:
        pace = Pace(self.task.factor if self.task is not None else 1.0)
        self.deadline = time.monotonic() + (pace.together + 2 * pace.run + BESIDE if self._ready else START)

    def _say(self, what: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # it has ended: the next news say so
            self.sock.sendall(json.dumps(what).encode() + b"\n")

    def stop(self) -> None:
        """End it, and what it runs. What it was at is lost; what it had finished is not."""
        self.task = None
        self.sock.close()
        self._process.terminate()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _heard(graders: Sequence[Grader]) -> list[Grader]:
    """The graders that said something, or are late; waits for the first."""
    with selectors.DefaultSelector() as selector:
        for grader in graders:
            if grader.task is not None:
                selector.register(grader.sock, selectors.EVENT_READ, grader)
        first = min((g.deadline for g in graders if g.task is not None), default=0.0)
        events = selector.select(max(0.0, min(1.0, first - time.monotonic())))
    heard = [key.data for key, _ in events]
    now = time.monotonic()
    return heard + [g for g in graders if g.task is not None and g not in heard and now > g.deadline]


def cores() -> int:
    """How many submissions to grade at a time: one for each core that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
