"""A live view of a job: what each rank does, whom it waits for, what happened, and buttons to interfere.

The cell that shows it is over at once; a thread of its own looks at the status pages a few times a second and ends with
the job. The ranks are not asked and do not notice.
"""

from __future__ import annotations

import re
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

from labkit.book.drawing.tables import Table
from labkit.book.drawing.units import bytes_text, plural, seconds_text
from labkit.book.frontend import VIEW, cell_id, live
from labkit.wire.errors import RefusedError
from labkit.wire.faults import Hang, Slow
from labkit.world.diagnosis.explain import ranks_text
from labkit.world.diagnosis.look import Now
from labkit.world.job import Job

if TYPE_CHECKING:
    from labkit.resilience.supervising.run import FtJob

INTERVAL = 0.25  # seconds between two looks
MOST_EVENTS = 50
SLOWER = 4.0  # what the button Slow multiplies the time of group.compute by
MARKS = {"starting": "○", "running": "►", "waiting": "…", "stopped": "■", "finished": "✓", "failed": "✗", "ended": "□"}
CALL = re.compile(r"\b(\w+)\([^()]*\), call (\d+)")
_shown: weakref.WeakValueDictionary[str, Dashboard] = weakref.WeakValueDictionary()  # by the cell that shows it


def dashboard(job: Job | FtJob, controls: bool = False) -> Dashboard:
    """Watch `job`, which `labkit.start` or `start_ft_hsdp` returned, while it runs.

    controls: buttons that kill, hang and slow down a rank, beside the one that stops the run. Without a reader the
    display is a summary of that moment; nothing waits for the run. `.text` is the summary of now.
    """
    if type(job).__module__ == "labkit.resilience.supervising.run":
        from labkit.book.fault_tolerant.watching import ReplicaDashboard

        return ReplicaDashboard(job, controls)  # type: ignore[arg-type]
    if not isinstance(job, Job):
        raise TypeError(f"dashboard needs a job that runs, such as labkit.start(fn, 4) returns: got {job!r}")
    return Dashboard(job, controls)


class Dashboard:
    """What `dashboard` returns. `close()` ends the view and its thread; the job goes on."""

    def __init__(self, job: Job, controls: bool = False) -> None:
        self.job, self.controls = job, controls
        self._watch = job.watch()
        self._lock = threading.Lock()
        self._view: Any = None
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    # -- what it shows -------------------------------------------------------------------------------------------

    def ranks(self) -> list[Now]:
        """Every rank as it is now."""
        with self._lock:
            return self._watch.look()

    def table(self) -> Table:
        """Every rank as it is now: a row each."""
        rows = [
            {"rank": n.rank, "state": n.state, "step": n.step if n.step >= 0 else None, "doing": n.doing or "-",
             "for (s)": round(n.since, 1), "bytes sent": n.nbytes, "messages": n.messages}
            for n in self.ranks()
        ]  # fmt: skip
        return Table(rows, caption=self.headline)

    @property
    def headline(self) -> str:
        """The job in a line: how many ranks, for how long, and how it ended if it did."""
        how = self._watch.outcome() or "running"
        return f"{plural(self.job.spec.world_size, 'rank')} over {self.job.spec.transport}, {how}, " + seconds_text(
            round(self._watch.seconds, 2)
        )

    @property
    def events(self) -> list[str]:
        """What happened so far, oldest first."""
        return [f"{seconds:.2f} s  rank {rank}: {text}" for seconds, rank, text in list(self.job.events)]

    @property
    def text(self) -> str:
        """Ranks and events of now, in words."""
        told = self.events[-MOST_EVENTS:]
        return "\n".join([self.headline, "", str(self.table()), *(["", "What happened:", *told] if told else [])])

    # -- what its buttons do -------------------------------------------------------------------------------------

    def stop(self) -> None:
        """End every rank."""
        self.job.stop()

    def strike(self, action: str, rank: int) -> None:
        """Do to `rank` what the button `action` ("kill", "hang", "slow") does. A job that is over is left alone."""
        if action == "kill":
            self.job.kill(rank)
        elif action in ("hang", "slow"):
            self.job.inject(Hang(rank) if action == "hang" else Slow(rank, factor=SLOWER))
        else:
            raise ValueError(f"action {action!r} does not exist: use kill, hang or slow")

    def _received(self, _: Any, content: Any, __: Any) -> None:
        """A button was pressed: {"action", "rank"}. Runs on whatever thread the kernel serves the page with."""
        if not isinstance(content, dict):
            return
        action, rank = content.get("action"), content.get("rank")
        if action == "stop":  # which waits for the ranks to be gone, so not here
            threading.Thread(target=self.job.stop, name="labkit-stop", daemon=True).start()
        elif self.controls and isinstance(rank, int):
            try:
                self.strike(str(action), rank)
            except (RefusedError, ValueError) as why:
                if self._view is not None:
                    self._view.said = str(why)

    # -- the live view -------------------------------------------------------------------------------------------

    @property
    def widget(self) -> Any:
        """The live view (an anywidget) and its thread, made when first asked for."""
        if self._view is None:
            from labkit.book.forms.view import DashboardView

            self._view = DashboardView(controls=self.controls, slower=SLOWER, **self._state())
            self._view.on_msg(self._received)
            heard_while_busy(self._view)
            self._thread = threading.Thread(target=self._follow, name="labkit-dashboard", daemon=True)
            self._thread.start()
        return self._view

    def _state(self) -> dict[str, Any]:
        """What the page shows, by trait."""
        over = self._watch.over  # first: what is read afterwards is then the last word
        rows = [
            {"rank": n.rank, "state": n.state, "mark": MARKS[n.state], "step": n.step if n.step >= 0 else "",
             "doing": in_short(n), "since": f" {n.since:.0f} s" if n.since >= 1 and n.doing else "",
             "bytes": bytes_text(n.nbytes), "messages": n.messages}
            for n in self.ranks()
        ]  # fmt: skip
        return {"rows": rows, "events": self.events[-MOST_EVENTS:], "headline": self.headline, "over": over}

    def refresh(self) -> bool:
        """Show the state of now; return whether there is anything more to come."""
        view = self._view
        if view is None or self._closed.is_set():
            return False
        state = self._state()
        with view.hold_sync():
            for name, value in state.items():
                setattr(view, name, value)
        return not state["over"]

    def _follow(self) -> None:
        """Refresh the view until the job is over or the view is closed."""
        pause = INTERVAL
        while not self._closed.wait(pause):
            begun = time.perf_counter()
            if not self.refresh():
                return
            pause = max(INTERVAL, 10 * (time.perf_counter() - begun))  # long runs have long pages: leave them the cores

    def close(self) -> None:
        """End the view and its thread. The job goes on."""
        self._closed.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(5)
        if self._view is not None:
            self._view.close()
            self._view = None

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        bundle: dict[str, Any] = {"text/plain": self.text}
        if live():
            cell = cell_id()
            before = _shown.get(cell) if cell else None
            if before is not None and before is not self:
                before.close()  # the cell was run again
            if cell:
                _shown[cell] = self
            bundle[VIEW] = {"version_major": 2, "version_minor": 0, "model_id": self.widget.model_id}
        return bundle


def heard_while_busy(view: Any) -> None:
    """Let the page's messages to `view` be served while a cell runs, on the subshell that JupyterLab sends them to.

    From 7.4 on ipykernel sends them to where the view was last written from instead: the main thread, which is busy.
    """
    comm = getattr(view, "comm", None)
    if comm is not None and hasattr(comm, "_reply_subshell_for"):
        comm._reply_subshell_for = lambda data, asked_for: asked_for


def in_short(now: Now) -> str:
    """What a rank does, in a line that does not jump: whom it waits for, and in which call."""
    if now.state != "waiting":
        return now.doing
    call = CALL.search(now.doing)
    where = f" in {call[1]}, call {call[2]}" if call else f": {now.doing}"
    return (f"for {ranks_text(now.waits_for)}" if now.waits_for else "for its messages") + where
