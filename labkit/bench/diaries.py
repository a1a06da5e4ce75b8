"""What the processes of a job write down, step by step, and what a failure cost by it: alike for every system.

Each process has a file of its own: when it was ready (libraries loaded, model and optimizer built), when each step
began, when each update was applied. Nothing is asked of the system under test, so two systems can be held side by side.
Times are seconds of the monotonic clock, which is one for all processes of a machine.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from .failures_stall import Standing


class Diary:
    """The file of this process. skip: so many first steps and updates are a warm-up that nobody waits for."""

    def __init__(self, folder: str | Path, replica: int, skip: int = 0):
        path = Path(folder, f"{replica}-{os.getpid()}.diary")
        self._file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        self._skip = {"step": skip, "commit": skip}

    def write(self, what: str, text: str = "") -> None:
        """One line, whole or not at all."""
        if self._skip.get(what, 0):
            self._skip[what] -= 1
            return
        os.write(self._file, f"{what} {time.monotonic()} {' '.join(text.split())}\n".encode())


class Watched:
    """`build` for `train`, and for any other loop: the job of `Standing`, by a process that writes a diary."""

    def __init__(self, seconds: float, folder: str | Path, skip: int = 0):
        self.seconds, self.folder, self.skip = seconds, str(folder), skip

    def __call__(self, inner: Any, seed: int) -> tuple[Any, Any, Any]:
        diary = Diary(self.folder, inner.global_ranks[0], self.skip)
        model, optimizer, usual = Standing(self.seconds)(inner, seed)
        diary.write("ready")
        optimizer.register_step_post_hook(lambda *_: diary.write("commit"))

        def loss(model: Any, numbers: Any) -> Any:
            diary.write("step")
            return usual(model, numbers)

        return model, optimizer, loss


@dataclass
class ProcessDiary:
    """One process of one replica, as its diary tells. error: what ended it, in its own words."""

    replica: int
    pid: int
    ready: float = math.inf
    begun: list[float] = field(default_factory=list)
    committed: list[float] = field(default_factory=list)
    error: str = ""


def read(folder: str | Path) -> list[ProcessDiary]:
    """All lives so far, in the order in which they were ready. A line that is being written is left for later."""
    found = []
    for path in Path(folder).glob("*.diary"):
        replica, pid = map(int, path.stem.split("-"))
        life = ProcessDiary(replica, pid)
        for line in path.read_text().split("\n")[:-1]:
            what, at, text = line.split(" ", 2)
            if what == "ready":
                life.ready = float(at)
            elif what == "error":
                life.error = text
            else:
                (life.begun if what == "step" else life.committed).append(float(at))
        found.append(life)
    return sorted(found, key=lambda life: life.ready)


def together(lives: Sequence[ProcessDiary], replicas: int) -> float:
    """When the last of the replicas had applied its first update; infinite before."""
    first = [min((t for x in lives if x.replica == r for t in x.committed), default=math.inf) for r in range(replicas)]
    return max(first)


def ordinary(life: ProcessDiary, since: float, until: float = math.inf) -> float:
    """Median seconds between two updates of this life, of those in this time; NaN if there are none."""
    gaps = [b - a for a, b in pairwise(life.committed) if since <= a and b <= until]
    return statistics.median(gaps) if gaps else math.nan


def cost(lives: Sequence[ProcessDiary], replicas: int, victim: int, killed: float) -> dict[str, float]:
    """What it cost the others that `victim` was killed; the survivor that it cost most counts. NaN: did not happen.

    kill stall: the gap between two updates in which the kill fell, in ordinary steps beyond one. rejoin stall: the same
    for the gap that the newcomer's first update ended; NaN if that is the gap of the kill. lost: steps that could have
    been made from the last update before the kill until the last update of all, beyond those that were. away s: from
    the kill until the newcomer has applied an update. ready s: until it was ready, which is part of it. step s: an
    ordinary step before the kill.
    """
    since = together([x for x in lives if x.ready < killed], replicas)
    back = [x for x in lives if x.replica == victim and x.ready > killed and x.committed]
    at = back[0].committed[0] if back else math.nan
    found: dict[str, list[float]] = {"kill stall": [], "rejoin stall": [], "lost": [], "step s": []}
    for life in (x for x in lives if x.replica != victim):
        usual, gaps = ordinary(life, since, killed), list(pairwise(life.committed))
        if math.isnan(usual):
            continue
        found["step s"].append(usual)
        hit = next((n for n, (a, b) in enumerate(gaps) if a <= killed <= b), None)
        if hit is None:
            continue
        found["kill stall"].append((gaps[hit][1] - gaps[hit][0]) / usual - 1)
        found["lost"].append((gaps[-1][1] - gaps[hit][0]) / usual - (len(gaps) - hit))
        if back:
            ended = min(range(len(gaps)), key=lambda n: abs(gaps[n][1] - at))
            if ended != hit:
                around = [ended, *(n for n, (a, b) in enumerate(gaps) if a <= at <= b)]
                found["rejoin stall"].append(max((gaps[n][1] - gaps[n][0]) / usual - 1 for n in around))
    worst = {what: max(values, default=math.nan) for what, values in found.items()}
    return {**worst, "away s": at - killed, "ready s": back[0].ready - killed if back else math.nan}
