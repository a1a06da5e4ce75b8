"""One run of a job, and one failure in it, struck alike from outside whatever system the job runs under.

`episode` watches the diaries, kills one process in the middle of a step, and goes on until the others have made some
steps with the one that took its place. The jobs are in `rivals`.
"""

from __future__ import annotations

import math
import os
import signal
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Protocol

from .diaries import ProcessDiary, read, together

LOOK = 0.01  # seconds between two looks at the diaries and the processes


class Broken(Exception):
    """The job did not go on: a process ended that nobody had killed, or nothing happened for too long."""


class Job(Protocol):
    """A job that runs since it was made, without an end."""

    def look(self, struck: int | None) -> None:
        """Start again what was struck, once; raise Broken if any other process has ended, or the new one."""

    def close(self) -> None:
        """End every process, and wait until it is gone."""


@dataclass
class Episode:
    """What was seen of one run. killed: when; NaN without a kill. error: why it was broken off, if it was."""

    lives: list[ProcessDiary] = field(default_factory=list)
    killed: float = math.nan
    error: str = ""


def episode(
    start: Callable[[Path], Job], folder: Path, replicas: int, *, before: int, after: int = 0,
    victim: int | None = None, patience: float = 120.0,
) -> Episode:  # fmt: skip
    """Run a job; see every replica make `before` steps with the others; kill `victim`; see `after` steps with it again.

    victim: None: nobody is killed, and it ends after `before` steps. It dies by SIGKILL half a step after it has begun
    one. patience: seconds that each of the three may take. A job that breaks is told in the episode, never raised.
    """
    found = Episode()
    job: Job | None = None
    try:
        job = start(folder)
        _until(job, found, folder, patience, None, f"the replicas did not make {before} steps together",
               lambda lives: _made(lives, replicas, before))  # fmt: skip
        if victim is None:
            return found
        _strike(job, found, folder, victim, patience)
        _until(job, found, folder, patience, victim, "the others and the new process did not make steps together",
               lambda lives: _again(lives, victim, found.killed, after))  # fmt: skip
    except Broken as why:
        found.error = str(why)
    finally:
        if job is not None:
            job.close()
    return found


def _until(job: Job, found: Episode, folder: Path, patience: float, struck: int | None, otherwise: str,
           done: Callable[[Sequence[ProcessDiary]], bool]) -> None:  # fmt: skip
    end = time.monotonic() + patience
    while True:
        found.lives = read(folder)
        if done(found.lives):
            return
        job.look(struck)
        if time.monotonic() > end:
            raise Broken(f"{otherwise} within {patience:g} s")
        time.sleep(LOOK)


def _made(lives: Sequence[ProcessDiary], replicas: int, steps: int) -> bool:
    """Whether all replicas have made so many steps since the last of them had made its first."""
    since = together(lives, replicas)
    counts = [sum(t > since for x in lives if x.replica == r for t in x.committed) for r in range(replicas)]
    return math.isfinite(since) and min(counts) >= steps


def _again(lives: Sequence[ProcessDiary], victim: int, killed: float, steps: int) -> bool:
    """Whether the others have made so many steps since the new process made its first."""
    back = [x.committed[0] for x in lives if x.replica == victim and x.ready > killed and x.committed]
    others = [x for x in lives if x.replica != victim]
    return bool(back) and all(sum(t > back[0] for t in x.committed) >= steps for x in others)


def _strike(job: Job, found: Episode, folder: Path, victim: int, patience: float) -> None:
    """SIGKILL for the victim, half a step after it has begun the next one."""

    def mine(lives: Sequence[ProcessDiary]) -> ProcessDiary:
        return next(x for x in lives if x.replica == victim)

    begun = len(mine(found.lives).begun)
    _until(job, found, folder, patience, None, f"replica {victim} began no further step",
           lambda lives: len(mine(lives).begun) > begun)  # fmt: skip
    life = mine(found.lives)
    usual = statistics.median(b - a for a, b in pairwise(life.begun))
    time.sleep(max(0.0, life.begun[-1] + usual / 2 - time.monotonic()))
    found.killed = time.monotonic()
    os.kill(life.pid, signal.SIGKILL)
