"""From status pages to reports: everything a rank has written down before it did it, read without asking it."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Collection, Sequence

import numpy as np

from labkit.wire.dtypes import describe
from labkit.wire.messenger import USER
from labkit.wire.recording import record as rec
from labkit.wire.recording.trace import shape_told
from labkit.world.diagnosis.begun import Begun
from labkit.world.diagnosis.explain import call_text, name_text, ranks_text
from labkit.world.diagnosis.mismatch import signature
from labkit.world.diagnosis.reading import Reader

from .habits import Habits
from .majority import after, shape
from .report import CallId, Made, Post, Report, Thread
from .spent import communication

KEPT_CALLS = 48  # of the last collective calls and messages of its own, a report carries so many
KEPT_MESSAGES = 256  # of those that are under way
LOOK_BACK = 64  # records that are searched for a span that is still open


class Pages:
    """Reports of the ranks whose status pages are here. `look` costs what is new since the last one.

    transport: the name of the run's, as far as it is known: what a sender's record proves depends on it.
    """

    def __init__(self, pages: Sequence[rec.Page], transport: str = "") -> None:
        self._ranks = [_Rank(page, transport) for page in pages]

    def look(self, ended: Collection[int] = ()) -> dict[int, Report]:
        """Every rank now, by its number. ended: ranks whose process was ended in the middle of what their pages say,
        because of others: they are reported as they were then."""
        return {rank.page.rank: rank.look(rank.page.rank in ended) for rank in self._ranks}

    def fingerprint(self) -> tuple[bytes, ...]:
        """Changes whenever a rank begins or ends something."""
        return tuple(bytes(rank.page.map[: rec.HEADER_BYTES]) for rank in self._ranks)


class _Rank:
    """One page, and what was read of it before."""

    def __init__(self, page: rec.Page, transport: str) -> None:
        self.page, self.transport = page, transport
        self._reader = Reader([page])
        self._pid = page.pid
        self._seen = -1  # end of the last collective that was counted, in nanoseconds of the run's clock
        self._spent: dict[int, list[float]] = {}
        self._made: deque[tuple[int, Made]] = deque(maxlen=KEPT_CALLS)  # with the places of their records
        self._last_made = (-1, -1)
        self._habits = Habits()

    def look(self, ended: bool) -> Report:
        page = self.page
        if page.pid != self._pid and page.pid:  # another life: what the former one had begun says nothing
            self._pid, self._reader.begun = page.pid, Begun()
        state, slots, count = page.state, page.slots(), page.count + page.dropped
        state = rec.RUNNING if ended and state == rec.FAILED else state
        rows = self._reader.records(0)
        names = page.strings()
        groups = self._groups(names)
        self._add_up(rows)
        self._take_note(rows, names, groups)
        ring = page.capacity - rec.RING if page.dropped else len(rows)
        found = (_thread(s, rows, names, ring, n == rec.MAIN_SLOT) for n, s in enumerate(slots) if any(s[1:]))
        inside = tuple(thread for thread in found if thread is not None)
        begun, whole = self._reader.begun.table(0)
        steps, odd = self._habits.odd(state == rec.FINISHED)
        sent = _sent_in(rows, self._made[0][0]) if self._made else {}
        return Report(
            page.rank, state, page.step, count, main_free=not any(thread.main for thread in inside),
            others_free=page.own_threads().count(False), doing=_open_span(rows, names, bool(page.dropped)),
            threads=inside if state == rec.RUNNING else (), groups=groups,
            begun=tuple(tuple(int(x) for x in row) for row in begun), whole=whole, under_way=_under_way(rows),
            sent={r: n for r, (_, n) in enumerate(page.counters()) if n},
            spent={g: (s, int(n)) for g, (s, n) in self._spent.items()},
            made=tuple(
                m if m.ends else dataclasses.replace(m, ended=_has_ended(rows[at], m.call),
                                                     sent=-1 if _failed(rows[at]) else sent.get(at + 1, 0))
                for at, m in self._made
            ),
            steps=steps, odd=() if page.own_threads() else odd,  # threads of its own may come in any order
            transport=self.transport,
        )  # fmt: skip

    def _groups(self, names: list[str]) -> dict[int, tuple[int, ...]]:
        words = [text.split() for text in names if text.startswith("group ")]
        return {int(key): tuple(map(int, ranks)) for _, key, *ranks in words}

    def _add_up(self, rows: np.ndarray) -> None:
        """The time of what has ended."""
        waits = np.flatnonzero(communication(rows) & (rows["t1"] > max(self._seen, 0)))
        for e in rows[waits]:
            group = int(rows[int(e["detail"]) - 1]["group"]) if e["kind"] == rec.WAIT else int(e["group"])
            spent = self._spent.setdefault(group, [0.0, 0])
            spent[0] += (int(e["t1"]) - int(e["t0"])) / 1e9
            spent[1] += 1
        if len(waits):
            self._seen = int(rows["t1"][waits].max())

    def _take_note(self, rows: np.ndarray, names: list[str], groups: dict[int, tuple[int, ...]]) -> None:
        """Of collectives, messages of the program's own, and marks of steps that are new."""
        kind = rows["kind"]
        chosen = (kind == rec.COLLECTIVE) & ((rows["flags"] & rec.NESTED) == 0)
        chosen |= ((kind == rec.SEND) | (kind == rec.RECV)) & (rows["lane"] == USER)
        chosen |= kind == rec.STEP
        at = np.flatnonzero(chosen)
        if self.page.dropped:  # places are used again: their order says nothing
            at = at[rows["t0"][at] >= self._last_made[0]]
            at = at[np.lexsort((at, rows["t0"][at]))]
            at = at[[(int(rows["t0"][i]), i) > self._last_made for i in at.tolist()]]
        else:
            at = at[at > self._last_made[1]]
        if not len(at):
            return
        self._last_made = int(rows["t0"][at[-1]]), int(at[-1])
        new = rows[at]
        # Most are like others: each kind is described once.
        _, first, kinds = np.unique(new[_DESCRIBED], return_index=True, return_inverse=True)
        texts = [_describe(new[i], self.page.rank, names, groups) for i in first]
        columns = zip(at.tolist(), kinds.ravel().tolist(), *(new[c].tolist() for c in _COUNTED), strict=True)
        last = self._made[-1][1] if self._made else None
        nth, past = (0, 0) if last is None else (last.nth + 1, after(last))
        for place, which, group, seq, step, nbytes in columns:
            words, role, text, ends = texts[which]
            if not text:
                self._habits.mark(step, nth)
                continue
            self._habits.act(text, nth)
            made = Made((group, seq), words, role, nth, False, nbytes if ends else 0, step, past, ends)
            self._made.append((place, made))
            nth, past = nth + 1, after(made)


_DESCRIBED = ["kind", "peer", "group", "name", "detail", "dtype", "ndim", "shape"]
_COUNTED = ["group", "seq", "step", "nbytes"]


def _describe(
    e: np.void, rank: int, names: list[str], groups: dict[int, tuple[int, ...]]
) -> tuple[str, str, str, tuple[int, ...]]:
    """(words, role, what it is for this rank alone, sender and receiver); empty for the mark of a step."""
    ranks, peer = groups.get(int(e["group"]), ()), int(e["peer"])
    if e["kind"] == rec.STEP:
        return "", "", "", ()
    if e["kind"] == rec.COLLECTIVE:
        words = signature(e, names)
        role = words.replace(f"root {peer} ", f"root at place {ranks.index(peer)} ") if peer in ranks else words
        return words, f"{role} on {shape(ranks)}", f"{words} of {ranks_text(ranks) if ranks else 'a group'}", ()
    words = describe(int(e["dtype"]), shape_told(e))
    way, ends = ("send to", (rank, peer)) if e["kind"] == rec.SEND else ("receive from", (peer, rank))
    away = (ranks.index(peer) - ranks.index(rank)) % len(ranks) if {peer, rank} <= set(ranks) else 0
    return words, f"{words} {way} rank +{away} of {shape(ranks)}", f"{words} {way} rank {peer}", ends


def _under_way(rows: np.ndarray) -> tuple[tuple[int, ...], ...]:
    messages = (rows["kind"] == rec.SEND) | (rows["kind"] == rec.RECV)
    open_ = rows[messages & (rows["t1"] == 0)][-KEPT_MESSAGES:]
    names = ("kind", "peer", "group", "lane", "seq")
    return tuple(tuple(int(e[name]) for name in names) for e in open_)


def _has_ended(e: np.void, call: CallId) -> bool:
    """Whether a call is over, by the record at its place: another one has overwritten it, or it says so."""
    return bool(e["t1"] or (int(e["group"]), int(e["seq"])) != call or e["kind"] != rec.COLLECTIVE)


def _failed(e: np.void) -> bool:
    return bool(e["flags"] & rec.ERROR)


def _sent_in(rows: np.ndarray, start: int) -> dict[int, int]:
    """For each outermost collective from place `start` on, by its record's number: the messages sent in it."""
    parents = rows["parent"][start:][rows["kind"][start:] == rec.SEND].astype(np.int64)
    for _ in range(rec.MAX_NESTING):
        inner = np.flatnonzero((parents > 0) & (parents <= len(rows)))
        inner = inner[(rows["flags"][parents[inner] - 1] & rec.NESTED) > 0]
        if not len(inner):
            break
        parents[inner] = rows["parent"][parents[inner] - 1]
    numbers, counts = np.unique(parents[parents > 0], return_counts=True)
    return dict(zip(numbers.tolist(), counts.tolist(), strict=True))


def _thread(
    slot: tuple[int, int, int, int], rows: np.ndarray, names: list[str], ring: int, main: bool
) -> Thread | None:
    """What one thread waits for, or is at work in; None if it is outside any message, or if its records are gone."""
    how, outer, send, recv = slot
    if how == rec.OPENING:
        return None
    call: CallId | None = None
    native, inside, at = False, "", outer
    for _ in range(rec.MAX_NESTING):
        if not 0 < at <= len(rows):
            break
        e = rows[at - 1]
        if e["kind"] == rec.COLLECTIVE and not e["flags"] & rec.NESTED and not e["t1"]:
            if at > ring and e["flags"] & rec.ASYNC:
                return None
            call, native = (int(e["group"]), int(e["seq"])), native or bool(e["flags"] & rec.NATIVE)
            inside = f"{'the native ' if native else ''}{call_text(e, names)}"
        at = int(e["parent"])
    posts = []
    for number, kind, way in ((send, rec.SEND, "send"), (recv, rec.RECV, "recv")):
        if not 0 < number <= len(rows):
            continue
        e = rows[number - 1]
        if e["kind"] != kind:
            return None  # written over
        if not e["t1"]:
            tensor, peer = describe(int(e["dtype"]), shape_told(e)), int(e["peer"])
            what = f"send {tensor} to rank {peer}" if way == "send" else f"receive {tensor} from rank {peer}"
            posts.append(Post(way, peer, int(e["group"]), int(e["lane"]), int(e["seq"]), int(e["nbytes"]), what,
                              bool(e["flags"] & rec.EXCHANGE)))  # fmt: skip
    if posts:
        where = f" in {inside}" if inside else ""
        return Thread(" and ".join(p.what for p in posts) + where, call, None, tuple(posts), main=main)
    e = rows[outer - 1] if 0 < outer <= len(rows) else None
    if e is not None and e["kind"] == rec.WAIT and not e["t1"]:
        own = rows[int(e["detail"]) - 1] if 0 < e["detail"] <= len(rows) else None
        if own is None or own["kind"] != rec.COLLECTIVE:
            return None
        ident = int(own["group"]), int(own["seq"])
        return Thread(f"wait for its own {call_text(own, names)}", call, ident, main=main)
    return Thread(f"in {inside}", call, native=native, main=main) if call is not None else None


def _open_span(rows: np.ndarray, names: list[str], dropped: bool) -> str:
    """The innermost span that is still open, as `in compute`; "" for none, or where the newest records are hidden."""
    if dropped:
        return ""
    for e in rows[::-1][:LOOK_BACK]:
        if e["kind"] == rec.SPAN and not e["t1"]:
            return f"in {name_text(names, int(e['name']))}"
    return ""
