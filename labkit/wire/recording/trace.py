"""The `Trace` of a run: every message, collective and span of every rank, as recorded while it happened.

It is made of the ranks' status pages and holds their records as one numpy array (`rows.py`), so that a run of a million
messages is still read in a moment; entries are made of them when they are asked for (`entries.py`).
Times are seconds since the run began.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from labkit import pictures
from labkit.wire.recording import record as rec
from labkit.wire.recording.calls import Call, calls, step_window
from labkit.wire.recording.entries import Collective, Entries, Message, Span
from labkit.wire.recording.rows import ROW, Moment, match, read_rows, shape_told

__all__ = ["ROW", "Collective", "Message", "Moment", "Span", "Trace", "from_pages", "match", "shape_told"]


class Trace:
    """What happened, by world rank. `events` is the raw array (dtype ROW), `names` the table its numbers point into."""

    def __init__(
        self, world_size: int, events: np.ndarray, names: list[str], counters: list[list[tuple[int, int]]], *,
        clock: str = "real", transport: str = "gloo", emulated: bool = False, dropped: int = 0,
        peaks: Sequence[int] = (), memory: str = "", started: int = 0, native: np.ndarray | None = None,
    ):  # fmt: skip
        self.world_size, self.clock, self.transport, self.dropped = world_size, clock, transport, dropped
        self.badge = "emulated" if emulated or clock == "virtual" else "measured"
        self.events, self.names = events, names
        self._counters, self._peaks, self.memory = counters, list(peaks), memory
        self._native = native
        self._entries = Entries(events, names, started)

    # -- bytes -------------------------------------------------------------------------------------------------

    def bytes_between(self) -> list[list[int]]:
        """Payload bytes from each rank (row) to each rank (column).

        For native collectives these are the bytes that the kernel counted on the sockets, framing included.
        """
        own = np.array([[c[0] for c in row] for row in self._counters], dtype=np.int64).reshape(self.world_size, -1)
        return (own + self._native if self._native is not None else own).tolist()

    def bytes_sent(self) -> list[int]:
        """Payload bytes that each rank sent."""
        return [sum(row) for row in self.bytes_between()]

    def messages(self) -> list[int]:
        """Messages that each rank sent through its groups (a native collective's own are not visible)."""
        return [sum(c[1] for c in row) for row in self._counters]

    def peak_bytes(self) -> list[int]:
        """Peak memory by rank, of the kind that `memory=` asked for: `resident` counts the tensors that are alive."""
        if not self._peaks:
            raise ValueError("this run did not measure memory: launch it with memory='resident' or memory='peak'")
        return list(self._peaks)

    @property
    def duration(self) -> float:
        """Seconds from the first record to the last."""
        return self._entries.duration

    def seconds(self, t: int) -> float:
        """A time in `events` (nanoseconds of the run's clock) as seconds since the run began."""
        return self._entries.seconds(t)

    # -- what happened -----------------------------------------------------------------------------------------

    def collectives(self, name: str | None = None) -> list[Collective]:
        """The collectives of all ranks (called `name`), by rank and in the order of their calls."""
        return [c for c in self._entries.collectives if name is None or c.name == name]

    def spans(self, name: str | None = None) -> list[Span]:
        """The spans of all ranks (called `name`); `group.compute` makes spans called compute."""
        return [s for s in self._entries.spans if name is None or s.name == name]

    @property
    def sends(self) -> list[Message]:
        """All messages, from their senders' side, by rank and in order."""
        return self._entries.messages[0]

    @property
    def recvs(self) -> list[Message]:
        """All messages that were received, from their receivers' side, by rank and in order."""
        return self._entries.messages[1]

    @functools.cached_property
    def groups(self) -> dict[int, tuple[int, ...]]:
        """The world ranks of each group, in its order, by the number that messages and collectives carry."""
        words = [text.split() for text in self.names if text.startswith("group ")]
        return {int(key): tuple(map(int, ranks)) for _, key, *ranks in words}

    @functools.cached_property
    def sent_at(self) -> dict[tuple[int, int, int, int, int], float]:
        """When each message was begun by its sender: (src, dst, group, lane, seq) -> seconds."""
        return {(m.src, m.dst, m.group, m.lane, m.seq): m.start for m in self.sends}

    @functools.cached_property
    def step_marks(self) -> list[tuple[int, float]]:
        """(training step, seconds) of every `group.step(n)`, of all ranks."""
        marks = self.events[self.events["kind"] == rec.STEP]
        return [(int(e["step"]), self._entries.seconds(e["t0"])) for e in marks]

    def calls(self, name: str | None = None) -> list[Call]:
        """Collective calls (called `name`) as one entry for all their members: see `labkit.wire.recording.calls`."""
        return calls(self, name)

    def during(self, name: str, nth: int = 0) -> tuple[float, float]:
        """From the first rank that makes the `nth` call of a collective to the last that returns from it, in seconds.

        Raises ValueError where there is no such call.
        """
        found = self.calls(name)
        if not -len(found) <= nth < len(found):
            raise ValueError(f"this run has {len(found)} calls of {name!r}: there is no number {nth}")
        return found[nth].start, found[nth].end

    def during_step(self, step: int) -> tuple[float, float]:
        """From the first rank that begins training step `step` to the first that begins the next one, in seconds."""
        return step_window(self, step)

    def step_breakdown(self, step: int | None = None) -> list[dict[str, float]]:
        """Where each rank's time went, in seconds: see `labkit.wire.recording.breakdown`."""
        from labkit.wire.recording.breakdown import step_breakdown

        return step_breakdown(self, step)

    def overlap(self, a: str, b: str) -> list[float]:
        """By rank: seconds during which something called `a` and something called `b` ran at once.

        Names are those of spans or collectives; "compute" and "communication" stand for all of either.
        """
        from labkit.wire.recording.breakdown import overlap

        return overlap(self, a, b)

    def critical_path(self) -> list[Any]:
        """The chain of work and messages that decided when the run ended, from first to last."""
        from labkit.wire.recording.breakdown import critical_path

        return critical_path(self)

    def to_chrome(self, path: str | None = None) -> dict[str, Any]:
        """The trace in Chrome's format, for ui.perfetto.dev or chrome://tracing; written to `path` if given."""
        from labkit.wire.recording.chrome import to_chrome

        return to_chrome(self, path)

    def timeline(self, **options: Any) -> Any:
        """The timeline as a figure."""
        return pictures.draw(self, **options)

    def __repr__(self) -> str:
        sent, messages = sum(self.bytes_sent()), sum(self.messages())
        return (f"Trace({self.world_size} ranks, {self.clock} time, {messages} messages, {sent} bytes sent, "
                f"{self.duration:.6f} s)")  # fmt: skip


def from_pages(
    pages: Sequence[rec.Page], *, clock: str, transport: str, emulated: bool, peaks: Sequence[int] = (),
    memory: str = "", since: Moment | None = None,
) -> Trace:  # fmt: skip
    """The trace of the run whose pages these are. since: only of what came after that moment, which is its second 0."""
    rows = read_rows(pages, since)
    return Trace(
        len(pages), rows.events, rows.names, rows.counters, clock=clock, transport=transport, emulated=emulated,
        dropped=rows.dropped, peaks=peaks, memory=memory, started=since.at if since is not None else 0,
        native=rows.native,
    )  # fmt: skip
