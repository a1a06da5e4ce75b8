"""The `Trace` of a run: every message, collective and span of every rank, as recorded while it happened.

It is made of the ranks' status pages and holds their records as one numpy array, so that a run of a million
messages is still read in a moment. Times are seconds since the run began.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import record as rec
from .calls import Call, calls, step_window
from .dtypes import NAMES


@dataclass(frozen=True)
class Message:
    """One message, seen from its sender (`trace.sends`) or its receiver (`trace.recvs`).

    start, end: that side's own operation. recv_start, arrived: when the receiver began to wait, and had it
    (NaN for a message that nobody received). offset: element offset of the data in the tensor of the (outermost)
    collective, -1 if it lies elsewhere (`labkit.wire.places`). collective: index into `trace.collectives()`, -1 for
    none. combine: the receiver added it to what it had. index, recv_index: the numbers of the two records on their
    ranks' pages, which keep the order of what happened there even where the clock stood still.
    """

    src: int
    dst: int
    nbytes: int
    dtype: str
    shape: tuple[int, ...]
    start: float
    end: float
    recv_start: float
    arrived: float
    group: int
    lane: int
    seq: int
    offset: int
    recv_offset: int
    collective: int
    recv_collective: int
    step: int
    combine: bool
    index: int
    recv_index: int


@dataclass(frozen=True)
class Collective:
    """One rank's call of a collective. nbytes, dtype, shape: its input tensor. root: a world rank, -1 for none."""

    rank: int
    name: str
    algorithm: str
    op: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    root: int
    start: float
    end: float
    group: int
    seq: int
    step: int
    native: bool
    is_async: bool
    nested: bool
    finished: bool


@dataclass(frozen=True)
class Span:
    """A named box on one rank's timeline."""

    rank: int
    name: str
    start: float
    end: float
    attrs: dict[str, Any]
    step: int


ROW = np.dtype([("rank", "<i4"), ("index", "<i4"), *rec.EVENT.descr])


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
        self._started, self._native = started, native

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
        times = self.events[self.events["kind"] != rec.NOTE]
        return float(times["t1"].max() - self._started) / 1e9 if len(times) else 0.0

    # -- what happened -----------------------------------------------------------------------------------------

    def collectives(self, name: str | None = None) -> list[Collective]:
        """The collectives of all ranks (called `name`), by rank and in the order of their calls."""
        return [c for c in self._collectives[0] if name is None or c.name == name]

    def spans(self, name: str | None = None) -> list[Span]:
        """The spans of all ranks (called `name`); `group.compute` makes spans called compute."""
        return [s for s in self._spans if name is None or s.name == name]

    @property
    def sends(self) -> list[Message]:
        """All messages, from their senders' side, by rank and in order."""
        return self._messages[0]

    @property
    def recvs(self) -> list[Message]:
        """All messages that were received, from their receivers' side, by rank and in order."""
        return self._messages[1]

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
        return [(int(e["step"]), self._time(e["t0"])) for e in marks]

    def calls(self, name: str | None = None) -> list[Call]:
        """Collective calls (called `name`) as one entry for all their members: see `labkit.wire.calls`."""
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
        """Where each rank's time went, in seconds: see `labkit.wire.breakdown`."""
        from .breakdown import step_breakdown

        return step_breakdown(self, step)

    def overlap(self, a: str, b: str) -> list[float]:
        """By rank: seconds during which something called `a` and something called `b` ran at once.

        Names are those of spans or collectives; "compute" and "communication" stand for all of either.
        """
        from .breakdown import overlap

        return overlap(self, a, b)

    def critical_path(self) -> list[Any]:
        """The chain of work and messages that decided when the run ended, from first to last."""
        from .breakdown import critical_path

        return critical_path(self)

    def to_chrome(self, path: str | None = None) -> dict[str, Any]:
        """The trace in Chrome's format, for ui.perfetto.dev or chrome://tracing; written to `path` if given."""
        from .chrome import to_chrome

        return to_chrome(self, path)

    def timeline(self, **options: Any) -> Any:
        """The timeline as a figure."""
        from labkit.book import timeline

        return timeline(self, **options)

    def __repr__(self) -> str:
        sent, messages = sum(self.bytes_sent()), sum(self.messages())
        return (f"Trace({self.world_size} ranks, {self.clock} time, {messages} messages, {sent} bytes sent, "
                f"{self.duration:.6f} s)")  # fmt: skip

    # -- building the views, once, when asked for ----------------------------------------------------------------

    def _name(self, number: int) -> str:
        return self.names[number] if 0 <= number < len(self.names) else "?"

    def _time(self, t: int) -> float:
        return (int(t) - self._started) / 1e9

    def _end(self, row: np.void) -> float:
        """The end of a record; one that never ended counts as ending with the run."""
        return self._time(row["t1"]) if row["t1"] else self.duration

    @functools.cached_property
    def _by_number(self) -> dict[tuple[int, int], int]:
        """(rank, record number) -> row in `events`."""
        return {
            (int(r), int(i) + 1): n
            for n, (r, i) in enumerate(zip(self.events["rank"], self.events["index"], strict=True))
        }

    @functools.cached_property
    def _collectives(self) -> tuple[list[Collective], dict[int, int]]:
        found: list[Collective] = []
        place: dict[int, int] = {}
        for n in np.flatnonzero(self.events["kind"] == rec.COLLECTIVE):
            e = self.events[n]
            algorithm, _, op = self._name(e["detail"]).partition(" ")
            place[int(n)] = len(found)
            flags = int(e["flags"])
            found.append(
                Collective(
                    int(e["rank"]), self._name(e["name"]), algorithm, op, NAMES.get(int(e["dtype"]), "none"),
                    shape_of(e), int(e["nbytes"]), int(e["peer"]), self._time(e["t0"]), self._end(e), int(e["group"]),
                    int(e["seq"]), int(e["step"]), bool(flags & rec.NATIVE), bool(flags & rec.ASYNC),
                    bool(flags & rec.NESTED), bool(e["t1"]),
                )
            )  # fmt: skip
        return found, place

    @functools.cached_property
    def _spans(self) -> list[Span]:
        found = []
        for e in self.events[self.events["kind"] == rec.SPAN]:
            attrs = json.loads(self._name(e["detail"])) if e["detail"] >= 0 else {}
            found.append(
                Span(
                    int(e["rank"]),
                    self._name(e["name"]),
                    self._time(e["t0"]),
                    self._end(e),
                    attrs,
                    int(e["step"]),
                )
            )
        return found

    def _inside(self, e: np.void) -> int:
        """The innermost collective that a record lies in, as an index into `collectives()`; -1 for none."""
        rank, parent = int(e["rank"]), int(e["parent"])
        for _ in range(rec.MAX_NESTING):
            n = self._by_number.get((rank, parent))
            if n is None:
                return -1
            if n in self._collectives[1]:
                return self._collectives[1][n]
            parent = int(self.events[n]["parent"])
        return -1

    @functools.cached_property
    def _messages(self) -> tuple[list[Message], list[Message]]:
        events = self.events
        pairs = match(events)
        sends, recvs = [], []
        for n, m in pairs:
            s = events[n] if n >= 0 else None
            r = events[m] if m >= 0 else None
            known: np.void = s if s is not None else r  # type: ignore[assignment]
            itemsize = int(max(1, known["nbytes"] // max(1, int(np.prod(shape_of(known), dtype=np.int64)))))
            nan = float("nan")
            src, dst = (known["rank"], known["peer"]) if s is not None else (known["peer"], known["rank"])
            message: dict[str, Any] = dict(
                src=int(src), dst=int(dst), nbytes=int(known["nbytes"]), dtype=NAMES.get(int(known["dtype"]), "?"),
                shape=shape_of(known),
                recv_start=self._time(r["t0"]) if r is not None else nan,
                arrived=self._time(r["t1"]) if r is not None and r["t1"] else nan,
                group=int(known["group"]), lane=int(known["lane"]), seq=int(known["seq"]),
                offset=_elements(s, itemsize), recv_offset=_elements(r, itemsize), step=int(known["step"]),
                collective=self._inside(s) if s is not None else -1,
                recv_collective=self._inside(r) if r is not None else -1,
                combine=bool(r is not None and r["flags"] & rec.COMBINE),
                index=int(s["index"]) if s is not None else -1, recv_index=int(r["index"]) if r is not None else -1,
            )  # fmt: skip
            if s is not None:
                sends.append((n, Message(start=self._time(s["t0"]), end=self._end(s), **message)))
            if r is not None:
                recvs.append((m, Message(start=self._time(r["t0"]), end=self._end(r), **message)))
        return [m for _, m in sorted(sends, key=_first)], [m for _, m in sorted(recvs, key=_first)]


def _first(pair: tuple[int, Any]) -> int:
    return pair[0]


def _elements(e: np.void | None, itemsize: int) -> int:
    return -1 if e is None or e["offset"] < 0 else int(e["offset"]) // itemsize


def shape_of(e: np.void) -> tuple[int, ...]:
    """The shape in a record (the fourth number stands for all the rest where there are more than four)."""
    return tuple(int(d) for d in e["shape"][: min(int(e["ndim"]), rec.MAX_DIMS)])


def match(events: np.ndarray) -> list[tuple[int, int]]:
    """Pairs (row of the send, row of its receive), -1 where one is missing.

    The k-th send from a to b on a lane of a group belongs to the k-th receive of b from a on that lane.
    """
    rows = np.flatnonzero((events["kind"] == rec.SEND) | (events["kind"] == rec.RECV))
    e = events[rows]
    taken = e["kind"] == rec.RECV
    src, dst = np.where(taken, e["peer"], e["rank"]), np.where(taken, e["rank"], e["peer"])
    columns = [src, dst, e["group"], e["lane"], e["seq"]]
    order = np.lexsort([taken, *reversed(columns)])  # the two sides of a message next to each other, its send first
    same = np.ones(max(0, len(rows) - 1), bool)
    for column in columns:
        same &= column[order][1:] == column[order][:-1]
    same &= taken[order][1:] & ~taken[order][:-1]
    second = np.append(False, same)[: len(rows)]
    pairs = np.full((len(rows), 2), -1, np.int64)
    pairs[np.arange(len(rows)), taken[order].astype(int)] = rows[order]
    pairs[np.flatnonzero(second) - 1, 1] = rows[order][second]
    return [(a, b) for a, b in pairs[~second].tolist()]


def from_pages(
    pages: Sequence[rec.Page],
    *,
    clock: str,
    transport: str,
    emulated: bool,
    peaks: Sequence[int] = (),
    memory: str = "",
) -> Trace:
    """The trace of the run whose pages these are."""
    names: list[str] = []
    number: dict[str, int] = {}
    blocks, counters, dropped = [], [], 0
    tcp: dict[tuple[int, int], tuple[int, int]] = {}
    for page in pages:
        strings = page.strings()
        mapping = np.empty(len(strings) + 1, dtype=np.int64)
        for i, text in enumerate(strings):
            if text.startswith("tcp "):
                mine, theirs, nbytes = map(int, text.split()[1:])
                tcp[mine, theirs] = (page.rank, nbytes)
            if text not in number:
                number[text] = len(names)
                names.append(text)
            mapping[i] = number[text]
        rows = page.records()
        block = np.zeros(len(rows), ROW)
        for field in rec.EVENT.names or ():
            block[field] = rows[field]
        block["rank"], block["index"] = page.rank, np.arange(len(rows))
        known = block["name"] < len(strings)
        block["name"][known] = mapping[block["name"][known]]
        detail = (block["detail"] >= 0) & (block["kind"] != rec.WAIT) & (block["detail"] < len(strings))
        block["detail"][detail] = mapping[block["detail"][detail]]
        blocks.append(block[block["kind"] > 0])
        counters.append(page.counters())
        dropped += page.dropped
    native = np.zeros((len(pages), len(pages)), dtype=np.int64)
    for (mine, theirs), (rank, nbytes) in tcp.items():
        if (theirs, mine) in tcp:
            native[rank, tcp[theirs, mine][0]] += nbytes
    events = np.concatenate(blocks) if blocks else np.zeros(0, ROW)
    return Trace(
        len(pages), events, names, counters, clock=clock, transport=transport, emulated=emulated, dropped=dropped,
        peaks=peaks, memory=memory, native=native if native.any() else None,
    )  # fmt: skip
