"""A live view of a fault-tolerant run: throughput, loss, membership and standstills, drawn while they happen.

What it shows comes from the audit log of the leaders, the supervisor and the status pages. No rank is asked.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from labkit.book.drawing.tables import Table
from labkit.book.drawing.units import plural, seconds_text
from labkit.book.fault_tolerant.figure import drawn
from labkit.book.fault_tolerant.story import AWAY, TRAINS, Story, tell
from labkit.book.fault_tolerant.tail import Tail
from labkit.book.fault_tolerant.words import happenings, membership_rows, sentence
from labkit.book.watching import MARKS, MOST_EVENTS, SLOWER, Dashboard, heard_while_busy, in_short
from labkit.resilience.supervising.run import FtJob
from labkit.wire.errors import RefusedError
from labkit.wire.faults import Corrupt, Fault, Hang, Kill, Slow

TITLE = "The run so far"
STRIKES: dict[str, Callable[[int], Fault]] = {
    "kill": Kill, "hang": Hang, "slow": lambda rank: Slow(rank, factor=SLOWER),
    "flip": lambda rank: Corrupt(rank, at="exchange"),
}  # fmt: skip
GONE = ("finished", "failed", "ended")


class ReplicaDashboard(Dashboard):
    """What `dashboard` returns for a fault-tolerant run. `.story` is the run so far as data, `.figure` its picture."""

    def __init__(self, run: FtJob, controls: bool = False) -> None:
        super().__init__(run.job, controls)
        self.run = run
        self._tail = Tail(run.log_dir)
        self._reading = threading.Lock()
        self._slowed: dict[int, int] = {}  # rank -> the process of it that was slowed down
        self._flips: dict[int, int] = defaultdict(int)  # rank -> flips that it has seen when the last one is done

    # -- what it shows -------------------------------------------------------------------------------------------

    @property
    def story(self) -> Story:
        """The run as it is now."""
        supervisor, config, over = self.run.supervisor, self.run.config, self._watch.over
        with self._reading:
            lines = list(self._tail.read())
        if self.run.outcome is not None:  # the folder goes, or has gone before its last lines were seen
            lines = self.run.outcome.lines
        return tell(lines, list(supervisor.incidents), config.replicas, config.batch, supervisor.zero,
                    self._watch.seconds, over)  # fmt: skip

    @property
    def figure(self) -> Any:
        """Throughput, loss and membership until now."""
        return drawn(self.story, TITLE)

    @property
    def headline(self) -> str:
        """The run in a line: how many replicas, for how long, and how it ended if it did."""
        config, how = self.run.config, self._watch.outcome() or "running"
        if self._watch.over and (told := self.story).steps and told.steps[-1].step + 1 >= self.run.steps:
            how = f"came to the end of its {self.run.steps} steps"  # whoever was lost on the way
        world = f"{plural(config.replicas, 'replica')} of {plural(config.ranks, 'rank')}"
        return f"{world}, {how}, {seconds_text(round(self._watch.seconds, 2))}"

    def states(self, story: Story | None = None) -> list[str]:
        """What each replica is doing, in a few words: by the supervisor, and by its last step."""
        told = story or self.story
        found = ["has no processes"] * self.run.config.replicas
        for unit in self.run.supervisor.units:
            if unit.replica is None:
                continue
            words = {"ending": "is being ended", "starting": "is being started", "down": "was given up"}
            role = told.steps[-1].role(unit.replica) if told.steps else AWAY
            if any(m.replica == unit.replica and m.at > told.steps[-1].at for m in told.marks if role != AWAY):
                role = AWAY  # it was lost since
            elif role == TRAINS and self._watch.over:
                role = "is through"
            found[unit.replica] = words.get(unit.state, role if role != AWAY else "is on its way to the others")
        return found

    def table(self) -> Table:
        """Every rank as it is now, with its replica: a row each."""
        return Table(self._rows(self.states()), caption=self.headline)

    def _rows(self, states: list[str]) -> list[dict[str, Any]]:
        ranks = self.run.config.ranks
        return [
            {"rank": n.rank, "replica": f"{n.rank // ranks}: {states[n.rank // ranks]}", "state": n.state,
             "step": n.step if n.step >= 0 else None, "doing": in_short(n) or "-"}
            for n in self.ranks()[: self.run.config.replicas * ranks]
        ]  # fmt: skip

    @property
    def events(self) -> list[str]:
        """What was lost and what came back, oldest first."""
        return happenings(self.story)

    @property
    def text(self) -> str:
        """The run until now in words: how far, who trained which steps, what happened, what each rank does."""
        story = self.story
        told = happenings(story)[-MOST_EVENTS:]
        members = Table(membership_rows(story), caption="Who trained which steps")
        parts = [self.headline, sentence(story), "", str(self.table())]
        parts += ["", str(members)] if story.steps else []
        return "\n".join([*parts, *(["", "What happened:", *told] if told else [])])

    # -- what its buttons do -------------------------------------------------------------------------------------

    def strike(self, action: str, rank: int) -> None:
        """Do to world rank `rank` what a button does: kill, hang, slow, or flip (a bit of the next gradient it sends).

        Refused where it has no process. One process is slowed once: twice, and it would miss all deadlines for ever.
        One flip waits at a time: two in one exchange, and the second would reach some replicas and not the others.
        """
        if action not in STRIKES:
            raise ValueError(f"action {action!r} does not exist: use {', '.join(STRIKES)}")
        if self.ranks()[rank].state in GONE:
            raise RefusedError(f"rank {rank} has no process now")
        if action == "slow":
            if self._slowed.get(rank) == self.job.pids[rank]:
                raise RefusedError(f"rank {rank} is slow already")
            self._slowed[rank] = self.job.pids[rank]
        if action == "flip":
            done = sum(r == rank and text.startswith("fault: Corrupt") for _, r, text in list(self.job.events))
            if self._flips[rank] > done:
                raise RefusedError(f"the last flip still waits for rank {rank} to send a gradient")
            self._flips[rank] = done + 1
        self.job.inject(STRIKES[action](rank))

    # -- the live view -------------------------------------------------------------------------------------------

    @property
    def widget(self) -> Any:
        """The live view (an anywidget) and its thread, made when first asked for."""
        if self._view is None:
            from labkit.book.forms.view import ReplicasView

            ranks = self.run.config.ranks
            world = [f"{r} (rank {r % ranks} of replica {r // ranks})" for r in range(self.run.config.replicas * ranks)]
            self._view = ReplicasView(controls=self.controls, slower=SLOWER, ranks=world, **self._state())
            self._view.on_msg(self._received)
            heard_while_busy(self._view)
            self._thread = threading.Thread(target=self._follow, name="labkit-dashboard", daemon=True)
            self._thread.start()
        return self._view

    def _state(self) -> dict[str, Any]:
        """What the page shows, by trait."""
        over = self._watch.over  # first: what is read afterwards is then the last word
        story = self.story
        rows = [row | {"mark": MARKS[row["state"]], "step": "" if row["step"] is None else row["step"]}
                for row in self._rows(self.states(story))]  # fmt: skip
        return {
            "rows": rows, "events": happenings(story)[-MOST_EVENTS:], "headline": self.headline, "over": over,
            "svg": drawn(story, TITLE).svg if story.steps else "", "words": sentence(story),
            "members": membership_rows(story),
        }  # fmt: skip
