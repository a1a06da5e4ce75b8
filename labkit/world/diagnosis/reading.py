"""Reading the status pages: who waits for whom, and why it cannot end well.

A rank is *blocked* when every thread of it that is inside labkit waits for somebody. Whom it waits for follows from
the records: a receive waits for its sender until the matching send has begun, a send for its receiver, a
collective for every member that has not called it. A rank that is not blocked may still do anything, and so may one
with a thread of the reader's own that is outside labkit; so the ranks that can never go on are those left over when
everyone who might is crossed out, again and again.

Nobody is accused on records that may be missing. On a page that has overflowed, an asynchronous message that
somebody waits for may have been written over by a later one: that wait is taken for one that can end. What is not
seen at all is a thread that no Python `threading.Thread` stands for; such a thread may be accused with its rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from labkit.wire.dtypes import describe
from labkit.wire.recording import record as rec
from labkit.wire.recording.trace import shape_told
from labkit.world.diagnosis.begun import Begun
from labkit.world.diagnosis.explain import call_text, ranks_text
from labkit.world.diagnosis.mismatch import collective_mismatch, in_step, message_mismatch


@dataclass
class Wait:
    """What one rank is blocked on. `on`: the ranks that have to act first; empty when the wait can end.

    threads: the same for each of its threads, where there are several. The rank can act as soon as one of them can.
    """

    rank: int
    what: str
    on: list[int] = field(default_factory=list)
    threads: list[list[int]] = field(default_factory=list)

    def ends(self, hopeful: set[int]) -> bool:
        """Whether a thread of this rank waits for nobody but ranks that may yet act."""
        return any(
            on != [self.rank] and all(r in hopeful for r in on if r != self.rank) for on in self.threads or [self.on]
        )


@dataclass
class Picture:
    """What a look at all pages shows."""

    state: list[int]
    waits: dict[int, Wait]
    stuck: list[int]
    mismatch: str | None = None

    def describe(self, rank: int) -> str:
        """What a rank was doing, in a phrase."""
        if rank in self.waits:
            wait = self.waits[rank]
            return wait.what + (f" (waits for {ranks_text(wait.on)})" if wait.on else "")
        return {rec.UNBORN: "was starting", rec.RUNNING: "was running, outside any message",
                rec.FINISHED: "had finished", rec.FAILED: "had failed"}[self.state[rank]]  # fmt: skip


class Reader:
    """All pages of a world, read together."""

    def __init__(self, pages: Sequence[rec.Page]):
        self.pages = list(pages)
        self._groups: dict[int, list[int]] = {}
        # A look costs what is new, not what the run has done so far:
        self.begun = Begun()
        self._read = [0] * len(self.pages)  # places on each page whose records `begun` knows for good
        self._total = [0] * len(self.pages)  # records that each rank had written by then
        self._agreed = [0] * len(self.pages)  # records of each rank whose other sides were all seen to agree

    def fingerprint(self) -> tuple[bytes, ...]:
        """Changes whenever any rank begins or ends something."""
        return tuple(bytes(p.map[: rec.HEADER_BYTES]) for p in self.pages)

    def members(self, group: int) -> list[int]:
        """World ranks of a group, by its number."""
        if group not in self._groups:
            for page in self.pages:
                for text in page.strings():
                    if text.startswith("group "):
                        _, key, *ranks = text.split()
                        self._groups[int(key)] = [int(r) for r in ranks]
        return self._groups.get(group, [])

    def picture(self, *, mismatches: bool = True) -> Picture:
        """Look at everyone now."""
        state = [p.state for p in self.pages]
        rows = [self.records(rank) for rank in range(len(self.pages))]
        names = [p.strings() for p in self.pages]
        waits: dict[int, Wait] = {}
        for rank, page in enumerate(self.pages):
            if state[rank] != rec.RUNNING:
                continue
            slots = page.slots()
            if not slots or not any(slots[0][1:]):
                continue  # its main thread is outside of labkit, and may yet do anything
            free = page.own_threads().count(False)
            found = [self._wait(rank, slot, rows[rank], names) for slot in slots if any(slot[1:])]
            blocked = [w for w in found if w is not None]
            # A thread that waits for another thread of its own rank adds nothing to what that one waits for.
            outside = [w for w in blocked if w.on != [rank]]
            if outside and len(blocked) == len(found):
                waits[rank] = _both(outside)
            if free and blocked:
                others = "a thread of its own is" if free == 1 else f"{free} threads of its own are"
                waits[rank] = Wait(rank, f"{_both(outside or blocked).what}, while {others} outside any message")
        stuck = _stuck(state, waits)
        return Picture(state, waits, stuck, self._mismatch(rows, names) if mismatches else None)

    def records(self, rank: int) -> np.ndarray:
        """The records on a page now; `begun` is told of what is new, and of what was overwritten before it was seen."""
        page, begun = self.pages[rank], self.begun
        before, capacity = page.count + page.dropped, page.capacity
        rows = page.records()
        after = page.count + page.dropped
        ring = capacity - rec.RING
        if after > capacity:
            kept = after - rec.RING + capacity % rec.RING
            if self._total[rank] < kept:
                begun.missed(rank, kept)
            self._read[rank], self._agreed[rank] = min(self._read[rank], ring), min(self._agreed[rank], ring)
        self._total[rank] = max(0, before - rec.SLOTS)  # the last ones may not be written yet, one a thread
        start = self._read[rank]
        numbers = np.arange(start, len(rows))
        if before > capacity:
            # Place ring + k holds the last record whose number leaves k: see Recorder.begin.
            last = before - 1 - (before - 1 - (numbers - ring)) % rec.RING
            numbers = np.where((numbers >= ring) & (last >= capacity), last, numbers)
        begun.add(rank, rows[start:], numbers)
        unwritten = np.flatnonzero(rows["kind"][start:] == 0)
        self._read[rank] = start + int(unwritten[0]) if len(unwritten) else len(rows)
        return rows

    def _mismatch(self, rows: list[np.ndarray], names: list[list[str]]) -> str | None:
        """The first place where ranks disagree, as a sentence; None if they agree so far."""
        new = [r[done:] for r, done in zip(rows, self._agreed, strict=True)]
        waiting = [r["kind"] == 0 for r in new]  # which records will have to be looked at again
        wrong = collective_mismatch(new, names, self.members, waiting, self.pages[0].earlier)
        if wrong is None and message_mismatch(new, waiting):
            wrong = message_mismatch([in_step(r, whole) for r, whole in zip(new, rows, strict=True)], waiting)
        if wrong is None:
            for rank, again in enumerate(waiting):
                self._agreed[rank] += int(np.argmax(again)) if again.any() else len(again)
        return wrong

    def _wait(
        self, rank: int, slot: tuple[int, int, int, int], rows: np.ndarray, names: list[list[str]]
    ) -> Wait | None:
        """What one thread is blocked on; None if it runs, or if what it says is written over.

        Who waits for a rank that has left their group is not blocked: it is about to learn of that.
        """
        how, outer, send, recv = slot
        page = self.pages[rank]
        ring = page.capacity - rec.RING if page.dropped else len(rows)  # from here on records may be others by now
        inside = ""
        at = outer
        for _ in range(rec.MAX_NESTING):
            if not 0 < at <= len(rows):
                break
            e = rows[at - 1]
            if e["kind"] == rec.COLLECTIVE:
                inside = f" in {call_text(e, names[rank], page.earlier)}"
                break
            at = int(e["parent"])
        if send or recv:
            texts, on = [], []
            for number, kind in ((send, rec.SEND), (recv, rec.RECV)):
                if not 0 < number <= len(rows):
                    continue
                e = rows[number - 1]
                if number > ring and (e["kind"] != kind or (e["flags"] & rec.ASYNC and how == rec.BLOCKED)):
                    return None
                if e["kind"] != kind or e["t1"]:
                    continue
                tensor, peer = describe(int(e["dtype"]), shape_told(e)), int(e["peer"])
                texts.append(
                    f"send {tensor} to rank {peer}" if kind == rec.SEND else f"receive {tensor} from rank {peer}"
                )
                if f"left {e['group']}" in names[peer]:
                    return Wait(rank, texts[-1] + inside)
                gone = self.pages[peer].state in (rec.FINISHED, rec.FAILED)
                if self.begun.other_side(rank, e) is False and (gone or how == rec.BLOCKED):
                    on.append(peer)
            return Wait(rank, " and ".join(texts) + inside, sorted(set(on))) if texts else None
        if not 0 < outer <= len(rows):
            return None
        e = rows[outer - 1]
        if e["kind"] == rec.WAIT:
            return Wait(rank, "wait for its own asynchronous work", [rank])
        if e["kind"] == rec.COLLECTIVE and e["flags"] & rec.NATIVE and not e["t1"]:
            if outer > ring and e["flags"] & rec.ASYNC:
                return None
            late = [r for r in self.members(int(e["group"])) if self.begun.collective(r, e) is False]
            return Wait(rank, f"the native {call_text(e, names[rank], page.earlier)}", late)
        return None


def _both(waits: list[Wait]) -> Wait:
    on = sorted({r for w in waits for r in w.on})
    return Wait(waits[0].rank, "; ".join(w.what for w in waits), on, [w.on for w in waits])


def _stuck(state: list[int], waits: dict[int, Wait]) -> list[int]:
    """The ranks that can never go on, whatever the others do."""
    hopeful = {r for r, s in enumerate(state) if s in (rec.UNBORN, rec.RUNNING) and r not in waits}
    grown = True
    while grown:
        grown = False
        for rank, wait in waits.items():
            if rank not in hopeful and state[rank] in (rec.UNBORN, rec.RUNNING) and wait.ends(hopeful):
                hopeful.add(rank)
                grown = True
    return [r for r in waits if r not in hopeful]


def find_unreceived(reader: Reader) -> str | None:
    """After everyone has finished, and was looked at: a message that nobody took, in a group that nobody left."""
    left = {text.partition(" ")[2] for page in reader.pages for text in page.strings() if text.startswith("left ")}
    for rank, peer, group, lane, seq in reader.begun.unreceived():
        if str(group) in left:
            continue
        r = reader.pages[rank].records()
        found = r[(r["kind"] == rec.SEND) & (r["peer"] == peer) & (r["group"] == group) & (r["lane"] == lane)]
        what = describe(int(found[-1]["dtype"]), shape_told(found[-1])) if len(found) else "a message"
        return f"rank {rank} sent {what} to rank {peer}, which never received it (message {seq} between them)"
    return None
