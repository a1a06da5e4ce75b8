"""Rows of a run made readable: `Message`, `Collective` and `Span`, built once, when first asked for."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from labkit.wire.dtypes import NAMES
from labkit.wire.recording import record as rec
from labkit.wire.recording.rows import match, shape_of


@dataclass(frozen=True)
class Message:
    """One message, seen from its sender (`trace.sends`) or its receiver (`trace.recvs`).

    start, end: that side's own operation. recv_start, arrived: when the receiver began to wait, and had it
    (NaN for a message that nobody received). offset: element offset of the data in the tensor of the (outermost)
    collective, -1 if it lies elsewhere (`places.py`). collective: index into `trace.collectives()`, -1 for none.
    combine: the receiver added it to what it had. index, recv_index: the numbers of the two records on their ranks'
    pages, which keep the order of what happened there even where the clock stood still.
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


class Entries:
    """What `events` (dtype ROW) say, with `names` for their numbers. started: nanoseconds of the clock at second 0."""

    def __init__(self, events: np.ndarray, names: list[str], started: int):
        self.events, self.names, self.started = events, names, started

    def name(self, number: int) -> str:
        return self.names[number] if 0 <= number < len(self.names) else "?"

    def seconds(self, t: int) -> float:
        """A time of the clock as seconds since the run began."""
        return (int(t) - self.started) / 1e9

    @functools.cached_property
    def duration(self) -> float:
        """Seconds from the beginning of the run to the last record."""
        times = self.events[self.events["kind"] != rec.NOTE]
        return self.seconds(times["t1"].max()) if len(times) else 0.0

    def _end(self, row: np.void) -> float:
        """The end of a record; one that never ended counts as ending with the run."""
        return self.seconds(row["t1"]) if row["t1"] else self.duration

    @functools.cached_property
    def _by_number(self) -> dict[tuple[int, int], int]:
        """(rank, record number) -> row in `events`."""
        return {
            (int(r), int(i) + 1): n
            for n, (r, i) in enumerate(zip(self.events["rank"], self.events["index"], strict=True))
        }

    @property
    def collectives(self) -> list[Collective]:
        """By rank, in the order of their calls."""
        return self._collectives[0]

    @functools.cached_property
    def _collectives(self) -> tuple[list[Collective], dict[int, int]]:
        """The list, and the place in it of a row."""
        found: list[Collective] = []
        place: dict[int, int] = {}
        for n in np.flatnonzero(self.events["kind"] == rec.COLLECTIVE):
            e = self.events[n]
            algorithm, op, _ = rec.call_words(self.name(e["detail"]))
            place[int(n)] = len(found)
            flags = int(e["flags"])
            found.append(
                Collective(
                    int(e["rank"]), self.name(e["name"]), algorithm, op, NAMES.get(int(e["dtype"]), "none"),
                    shape_of(e), int(e["nbytes"]), int(e["peer"]), self.seconds(e["t0"]), self._end(e), int(e["group"]),
                    int(e["seq"]), int(e["step"]), bool(flags & rec.NATIVE), bool(flags & rec.ASYNC),
                    bool(flags & rec.NESTED), bool(e["t1"]),
                )
            )  # fmt: skip
        return found, place

    @functools.cached_property
    def spans(self) -> list[Span]:
        found = []
        for e in self.events[self.events["kind"] == rec.SPAN]:
            attrs = json.loads(self.name(e["detail"])) if e["detail"] >= 0 else {}
            when = self.seconds(e["t0"]), self._end(e)
            found.append(Span(int(e["rank"]), self.name(e["name"]), *when, attrs, int(e["step"])))
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
    def messages(self) -> tuple[list[Message], list[Message]]:
        """All messages as their senders saw them, and as their receivers did: each by rank and in order."""
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
                recv_start=self.seconds(r["t0"]) if r is not None else nan,
                arrived=self.seconds(r["t1"]) if r is not None and r["t1"] else nan,
                group=int(known["group"]), lane=int(known["lane"]), seq=int(known["seq"]),
                offset=_elements(s, itemsize), recv_offset=_elements(r, itemsize), step=int(known["step"]),
                collective=self._inside(s) if s is not None else -1,
                recv_collective=self._inside(r) if r is not None else -1,
                combine=bool(r is not None and r["flags"] & rec.COMBINE),
                index=int(s["index"]) if s is not None else -1, recv_index=int(r["index"]) if r is not None else -1,
            )  # fmt: skip
            if s is not None:
                sends.append((n, Message(start=self.seconds(s["t0"]), end=self._end(s), **message)))
            if r is not None:
                recvs.append((m, Message(start=self.seconds(r["t0"]), end=self._end(r), **message)))
        return [m for _, m in sorted(sends, key=_first)], [m for _, m in sorted(recvs, key=_first)]


def _first(pair: tuple[int, Any]) -> int:
    return pair[0]


def _elements(e: np.void | None, itemsize: int) -> int:
    return -1 if e is None or e["offset"] < 0 else int(e["offset"]) // itemsize
