"""What every rank of a running job does now, read from the status pages, without asking anyone."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from labkit.wire.recording import record as rec
from labkit.world.diagnosis.explain import name_text
from labkit.world.diagnosis.reading import Reader

if TYPE_CHECKING:
    from labkit.world.job import Job


@dataclass(frozen=True)
class Now:
    """One rank at one moment. state: "starting", "running", "waiting", "stopped", "finished", "failed" or "ended".

    step: the last one marked, -1 for none. doing: in words. waits_for: the ranks that have to act first. since:
    seconds that it has been doing this, as far as was seen. nbytes, messages: what it has sent (payload).
    """

    rank: int
    state: str
    step: int
    doing: str
    waits_for: tuple[int, ...]
    since: float
    nbytes: int
    messages: int


LOOK_BACK = 64  # records that are searched for a span that is still open
STATES = {rec.UNBORN: "starting", rec.RUNNING: "running", rec.FINISHED: "finished", rec.FAILED: "failed"}


def stopped_ranks(job: Job) -> set[int]:
    """Ranks whose process is stopped, as the system says: known on their own host only."""
    found: set[int] = set()
    for _, rank, text in list(job.events):
        if text == "stopped":
            found.add(rank)
        elif text in ("continued", "ended", "restarted"):
            found.discard(rank)
    return found


class Watch:
    """Looks at the pages of `job`; still shows the last state when the job is over. For one thread at a time."""

    def __init__(self, job: Job):
        self.job = job
        self._reader: Reader | None = None
        self._last: list[Now] | None = None  # what the ranks were in the end
        self._seen: dict[int, tuple[str, float]] = {}  # rank -> what it did, and since when

    @property
    def over(self) -> bool:
        """Whether the job is over, in whatever way."""
        return self.job._over.is_set()

    @property
    def seconds(self) -> float:
        """How long the job has been running, or did run."""
        return self.job._seconds if self.over else time.perf_counter() - self.job._start

    def outcome(self) -> str:
        """How the job ended, in a phrase; "" while it runs."""
        if not self.over:
            return ""
        if self.job._refused is not None or self.job._end is None:
            return f"was refused: {self.job._refused}"
        first = self.job._end[0] or (self.job._end[1] or [None])[0]
        if first is None:
            return "ended well"
        if first["kind"] == "stopped":
            return "was stopped"
        who = f"rank {first['rank']}: " if first["rank"] >= 0 else ""
        return f"failed: {who}{first['message'].splitlines()[0]}"

    def look(self) -> list[Now]:
        """Every rank now; before the ranks exist, all of them as starting."""
        if self._last is not None:
            return self._last
        over = self.over  # first: what is seen afterwards is then final
        reader = self._pages()
        if reader is None:
            return [Now(r, "ended" if over else "starting", -1, "", (), 0.0, 0, 0)
                    for r in range(self.job.spec.world_size)]  # fmt: skip
        picture = reader.picture(mismatches=False)
        stopped = stopped_ranks(self.job)
        seen = [self._now(reader.pages[r], picture.waits.get(r), r in stopped, over) for r in range(len(reader.pages))]
        if over:
            self._last, self._reader = seen, None  # the pages of a long run are large
        return seen

    def marks(self) -> list[tuple[int, bytes]]:
        """For each rank: the state on its page (`record.RUNNING`, ...), and bytes that change when it begins something.

        [] before the ranks exist.
        """
        reader = self._pages()
        return [] if reader is None else list(zip([p.state for p in reader.pages], reader.fingerprint(), strict=True))

    def _pages(self) -> Reader | None:
        job = self.job
        if self._reader is None and job._started.is_set():
            with job._lock:  # the file is closed when the Run is made; what is mapped stays
                if job._pages_fd >= 0:
                    size = job.spec.world_size
                    self._reader = Reader([rec.Page(job._pages_fd, r, size) for r in range(size)])
        return self._reader

    def _to_blame(self) -> set[int]:
        return {failure["rank"] for failure in self.job._end[1]} if self.job._end is not None else set()

    def _now(self, page: rec.Page, wait: object, stopped: bool, over: bool) -> Now:
        state, doing, on = STATES.get(page.state, "failed"), "", ()  # type: str, str, tuple[int, ...]
        if state == "failed" and over and page.rank not in self._to_blame():
            state = "ended"  # killed with the others
        if state == "running":
            if over:
                state = "ended"  # with the others, when the run was ended
            elif stopped:
                state, doing = "stopped", "stopped from outside (SIGSTOP)"
            elif wait is not None:
                state, doing, on = "waiting", wait.what, tuple(wait.on)  # type: ignore[attr-defined]
            else:
                doing = self._inside(page)
        at = time.monotonic()
        known, since = self._seen.get(page.rank, ("", at))
        if known != (same := f"{state} {page.step} {doing}"):
            since = at
            self._seen[page.rank] = same, at
        counts = page.counters()
        return Now(page.rank, state, page.step, doing, on, at - since, sum(n for n, _ in counts),
                   sum(m for _, m in counts))  # fmt: skip

    def _inside(self, page: rec.Page) -> str:
        """The innermost span or collective that a running rank is in."""
        last = min(page.count, page.capacity)
        if page.dropped:  # the newest records are somewhere in the ring
            return "its own code"
        for number in range(last - 1, max(-1, last - 1 - LOOK_BACK), -1):
            e = page.record(number)
            if not e["t1"] and e["kind"] in (rec.SPAN, rec.COLLECTIVE):
                return f"in {name_text(page.strings(), int(e['name']))}"
        return "its own code"
