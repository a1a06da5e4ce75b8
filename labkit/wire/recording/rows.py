"""The records of all ranks as one numpy array: read from their status pages, and paired into messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from labkit.wire.recording import record as rec

ROW = np.dtype([("rank", "<i4"), ("index", "<i4"), *rec.EVENT.descr])


@dataclass(frozen=True)
class Rows:
    """What the pages of a run hold.

    events: the records of all ranks, by rank and in order (dtype ROW). names: the table that their numbers point into.
    counters: (bytes, messages) by sender and receiver. native: bytes from rank (row) to rank that the kernel counted on
    the sockets of native collectives, None where there were none. dropped: records that found no room.
    """

    events: np.ndarray
    names: list[str]
    counters: list[list[tuple[int, int]]]
    native: np.ndarray | None
    dropped: int


@dataclass(frozen=True)
class Moment:
    """Where pages stood when the clock was at `at` nanoseconds: a trace may leave out what was there by then."""

    at: int
    records: list[int]
    counters: list[list[tuple[int, int]]]
    native: np.ndarray

    @classmethod
    def now(cls, pages: Sequence[rec.Page], at: int) -> Moment:
        native = _native(pages, [page.strings() for page in pages])
        return cls(at, [page.count for page in pages], [page.counters() for page in pages], native)


def read_rows(pages: Sequence[rec.Page], since: Moment | None = None) -> Rows:
    """The records of all pages, with one table of names instead of one a page. since: only what came after it."""
    names: list[str] = []
    number: dict[str, int] = {}
    blocks, counters, dropped = [], [], 0
    texts = [page.strings() for page in pages]
    for page, strings in zip(pages, texts, strict=True):
        mapping = np.empty(len(strings) + 1, dtype=np.int64)
        for i, text in enumerate(strings):
            if text not in number:
                number[text] = len(names)
                names.append(text)
            mapping[i] = number[text]
        first = since.records[page.rank] if since is not None else 0
        rows = page.records(first)
        block = np.zeros(len(rows), ROW)
        for field in rec.EVENT.names or ():
            block[field] = rows[field]
        block["rank"], block["index"] = page.rank, first + np.arange(len(rows))
        known = block["name"] < len(strings)
        block["name"][known] = mapping[block["name"][known]]
        detail = (block["detail"] >= 0) & (block["kind"] != rec.WAIT) & (block["detail"] < len(strings))
        block["detail"][detail] = mapping[block["detail"][detail]]
        blocks.append(block[block["kind"] > 0])
        counters.append(_less(page.counters(), since.counters[page.rank]) if since is not None else page.counters())
        dropped += page.dropped
    native = _native(pages, texts) - (since.native if since is not None else 0)
    events = np.concatenate(blocks) if blocks else np.zeros(0, ROW)
    return Rows(events, names, counters, native if native.any() else None, dropped)


def _less(now: list[tuple[int, int]], then: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return [(a - c, b - d) for (a, b), (c, d) in zip(now, then, strict=True)]


def _native(pages: Sequence[rec.Page], texts: Sequence[Sequence[str]]) -> np.ndarray:
    """Bytes from rank (row) to rank on the sockets of native collectives, as they were written down last."""
    tcp: dict[tuple[int, int], tuple[int, int]] = {}
    for page, strings in zip(pages, texts, strict=True):
        for text in strings:
            if text.startswith("tcp "):
                mine, theirs, nbytes = map(int, text.split()[1:])
                tcp[mine, theirs] = (page.rank, nbytes)
    native = np.zeros((len(pages), len(pages)), dtype=np.int64)
    for (mine, theirs), (rank, nbytes) in tcp.items():
        if (theirs, mine) in tcp:
            native[rank, tcp[theirs, mine][0]] += nbytes
    return native


def shape_of(e: np.void) -> tuple[int, ...]:
    """The shape in a record (the fourth number stands for all the rest where there are more than four)."""
    return tuple(int(d) for d in e["shape"][: min(int(e["ndim"]), rec.MAX_DIMS)])


def shape_told(e: np.void) -> tuple[int | str, ...]:
    """`shape_of` for a reader: of more than four numbers the first three, and "..."."""
    known = shape_of(e)
    return known if int(e["ndim"]) <= rec.MAX_DIMS else (*known[:-1], "...")


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
