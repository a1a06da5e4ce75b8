"""The verdict on a world in trouble: what went wrong first, who is to blame, what everyone else was doing.

Trouble comes in two ways. A rank fails: then a moment is waited, because the true cause may be the second to arrive,
and the failure that explains the others is chosen. Or the host sees it on the status pages: a mismatch, a deadlock, a
wait that takes too long. Either way the world ends with one verdict.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from labkit.wire.recording import record as rec
from labkit.world.diagnosis.explain import awaits, culprit, explain_stuck, explain_timeout
from labkit.world.diagnosis.reading import Picture, Reader, find_unreceived
from labkit.world.life import RankProcess
from labkit.world.spec import Spec

SETTLE = 0.06  # seconds between the first sign of trouble and the verdict, in which no rank moves
BUSY = 0.25  # the same at most, if some compute: they are about to come to a call in which they wait
CALM = 0.5  # the same at most, if some go on moving: on a busy machine they may not have come to the failed call yet
DYING = 1.0  # the same at most, if nothing is known but lost peers, and a rank is on its way out
RELOOK = 0.3  # seconds between two looks at the records of a world in which everyone moves
LOOK = 0.1  # seconds between two looks at the pages
STARTING = 30.0  # seconds beyond `timeout` that many ranks on a busy machine may need until they run
_NAMES = {"deadlock": "Deadlock", "mismatch": "Mismatch", "timeout": "WaitTimeout", "deadline": "DeadlineExceeded",
          "stopped": "Stopped"}  # fmt: skip
_ORDER = {"mismatch": 0, "deadlock": 0, "timeout": 0, "died": 1, "raised": 2, "exit": 2, "wire": 3, "lost": 4}


class Judge:
    """Of one job. `end_world` kills all ranks; `epoch` is the beginning of the run on the clock of the host.

    failures: of the ranks, the verdict first. ending: the world is being ended, well or badly.
    """

    def __init__(
        self,
        spec: Spec,
        pages: Sequence[rec.Page],
        lives: Sequence[RankProcess],
        epoch: int,
        end_world: Callable[[], None],
    ):
        self.spec, self.pages, self.lives, self.epoch, self.end_world = spec, pages, lives, epoch, end_world
        self.reader = Reader(pages)
        self.failures: list[dict[str, Any]] = []
        self._lost: dict[int, list[int]] = {}  # ranks that failed in a message: its other end
        self.verdict: dict[str, Any] | None = None
        self.trouble_at: float | None = None
        self._calm: tuple[Any, float] = (None, 0.0)  # the pages after the first sign of trouble, and since when so
        self.ending = False
        self._seen: tuple[bytes, ...] = ()
        self._moved = [time.monotonic()] * len(pages)  # when each rank's page was last seen to change
        self._judged: Any = None
        self._next_picture = 0.0

    # -- ranks that fail -----------------------------------------------------------------------------------------

    def failed(self, kind: str, rank: int, name: str, text: str, trace: str = "", peer: int = -1) -> None:
        """A rank failed (in a message with `peer`). Unless the others may go on, the world is judged in a moment."""
        if peer >= 0:
            self._lost[rank] = [peer]
        self.failures.append(self._failure(kind, rank, name, text, trace))
        if self.spec.on_failure != "continue" and not self.ending and self.trouble_at is None:
            self.trouble_at = time.monotonic()
            self._calm = self.reader.fingerprint(), self.trouble_at

    def is_settled(self, now: float) -> bool:
        """Whether it is time for the verdict on what failed.

        A process that dies lets go of its sockets first, so those who lose it may be heard of before it is.
        """
        if self.trouble_at is None or now < self.trouble_at + SETTLE:
            return False
        if now < self.trouble_at + CALM:
            pages = self.reader.fingerprint()
            if pages != self._calm[0]:
                self._calm = pages, now
            if now < self._calm[1] + SETTLE:
                return False
        if now < self.trouble_at + BUSY and self._somebody_computes():
            return False
        lost = all(f["kind"] == "lost" for f in self.failures)
        return not lost or now >= self.trouble_at + DYING or not any(life.is_dying for life in self.lives)

    def _somebody_computes(self) -> bool:
        """Whether a rank neither waits nor has ended."""
        picture, failed = self.reader.picture(mismatches=False), {f["rank"] for f in self.failures}
        busy = {rank for rank, state in enumerate(picture.state) if state == rec.RUNNING}
        return bool(busy - failed - set(picture.waits))

    def judge(self) -> None:
        """Choose the failure that explains the others, write down what the rest was doing, end the world."""
        picture = self.reader.picture(mismatches=self.spec.check)
        first = min(self.failures, key=lambda f: (_ORDER[f["kind"]], f["seconds"]))
        aborted = first["kind"] == "died" and "SIGABRT" in first["message"]
        if picture.mismatch and (first["kind"] in ("wire", "lost") or aborted):
            cause = self._failure("mismatch", -1, "Mismatch", picture.mismatch, first["traceback"])
            self.failures.insert(0, cause)
            first = cause
        ended = {f["rank"]: f"ended in consequence, with {f['error']}" for f in self.failures if f["kind"] != "died"}
        others = (r for r in range(self.spec.world_size) if r != first["rank"])
        first["waiting"] = {r: ended.get(r) or picture.describe(r) for r in others}
        first["awaits"] = {**awaits(picture), **self._lost}
        self.failures.remove(first)
        self.failures.insert(0, first)
        self._pronounce(first)

    # -- what the host finds by itself ---------------------------------------------------------------------------

    def condemn(self, kind: str, rank: int, text: str, seen: Picture | None = None, now: bool = False) -> None:
        """The host itself found the trouble. seen: the picture that the text is about."""
        verdict = self._failure(kind, rank, _NAMES[kind], text)
        if seen is None and not now:
            seen = self.reader.picture(mismatches=False)
            verdict["waiting"] = {r: seen.describe(r) for r in range(self.spec.world_size)}
        if seen is not None:
            verdict["awaits"] = awaits(seen)
        self.failures.insert(0, verdict)
        self._pronounce(verdict)

    def look(self, now: float) -> None:
        """Read the pages: deadlock, mismatch, a wait that takes too long."""
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
        stopped = [life.rank for life in self.lives if life.stopped]
        if self.spec.check:
            # Twice, for a record may be caught while it is written.
            if picture.mismatch and picture.mismatch == self.reader.picture().mismatch:
                self.condemn("mismatch", -1, picture.mismatch)
            elif picture.stuck and not stopped and not self._unheard(picture):
                self.condemn("deadlock", -1, explain_stuck(picture), picture)
        if not self.ending and any(r in picture.waits and after[r] == seen[r] for r in late):
            self.condemn("timeout", culprit(picture), explain_timeout(picture, self.spec.timeout, stopped), picture)
        unborn = [r for r in late if picture.state[r] == rec.UNBORN and after[r] == seen[r]]
        if unborn and not self.ending and (stopped or now - self._moved[unborn[0]] > self.spec.timeout + STARTING):
            # No rank is ready before all are: gloo connects them to each other.
            who = stopped[0] if len(stopped) == 1 else unborn[0] if len(unborn) == 1 else -1
            self.condemn("timeout", who, explain_timeout(picture, self.spec.timeout, stopped), picture)

    def finish(self) -> None:
        """Everyone is through: what was left lying?"""
        if self.spec.check and not self.failures:
            look = self.reader.picture()
            wrong = look.mismatch or find_unreceived(self.reader)
            if wrong:
                self.verdict = self._failure("mismatch", -1, "Mismatch", wrong)
                self.failures.append(self.verdict)
        self.ending = True

    # -- inside --------------------------------------------------------------------------------------------------

    def _unheard(self, picture: Picture) -> bool:
        """Whether a rank has failed and is still writing down why: its words explain more than that others wait."""
        return any(picture.state[life.rank] == rec.FAILED and not life.over for life in self.lives)

    def _failure(self, kind: str, rank: int, name: str, text: str, trace: str = "") -> dict[str, Any]:
        step = self.pages[rank].step if rank >= 0 else max(p.step for p in self.pages)
        return {"kind": kind, "rank": rank, "error": name, "message": text, "traceback": trace, "step": step,
                "seconds": (time.perf_counter_ns() - self.epoch) / 1e9, "waiting": {}}  # fmt: skip

    def _pronounce(self, verdict: dict[str, Any]) -> None:
        self.verdict, self.ending, self.trouble_at = verdict, True, None
        self.end_world()
