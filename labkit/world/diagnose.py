"""Reading the status pages: who waits for whom, and why it cannot end well.

A rank is *blocked* when every thread of it that is inside labkit waits for somebody. Whom it waits for follows from
the records: a receive waits for its sender until the matching send has begun, a send for its receiver, a
collective for every member that has not called it. A rank that is not blocked may still do anything; so the
ranks that can never go on are those left over when everyone who might is crossed out, again and again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from labkit.wire import record as rec
from labkit.wire.dtypes import describe
from labkit.wire.trace import ROW, match, shape_of


@dataclass
class Wait:
    """What one rank is blocked on. `on`: the ranks that have to act first; empty when the wait can end."""

    rank: int
    what: str
    on: list[int] = field(default_factory=list)


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


def ranks_text(ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 1 and 2`, `ranks 0 to 5 and 7`."""
    ranks = sorted(ranks)
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    runs: list[list[int]] = []
    for r in ranks:
        if runs and r == runs[-1][-1] + 1:
            runs[-1].append(r)
        else:
            runs.append([r])
    parts = [str(x) for run in runs for x in ([f"{run[0]} to {run[-1]}"] if len(run) > 2 else run)]
    return "ranks " + (", ".join(parts[:-1]) + " and " if len(parts) > 1 else "") + parts[-1]


class Reader:
    """All pages of a world, read together."""

    def __init__(self, pages: Sequence[rec.Page]):
        self.pages = list(pages)
        self._groups: dict[int, list[int]] = {}
        # A look costs what is new, not what the run has done so far:
        self.begun = _Begun()
        self._read = [0] * len(self.pages)  # records of each rank that `begun` knows
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
        rows = [p.records() for p in self.pages]
        names = [p.strings() for p in self.pages]
        if any(p.dropped for p in self.pages):  # records are overwritten: their numbers mean nothing any more
            self._read, self._agreed = [0] * len(rows), [0] * len(rows)
        begun = self.begun
        for rank, r in enumerate(rows):
            begun.add(rank, r[self._read[rank] :])
            unwritten = np.flatnonzero(r["kind"][self._read[rank] :] == 0)
            self._read[rank] = self._read[rank] + int(unwritten[0]) if len(unwritten) else len(r)
        waits: dict[int, Wait] = {}
        for rank, page in enumerate(self.pages):
            if state[rank] != rec.RUNNING:
                continue
            slots = page.slots()
            if not slots or not any(slots[0][1:]):
                continue  # its main thread is outside of labkit, and may yet do anything
            found = [self._wait(rank, slot, rows[rank], names[rank], begun) for slot in slots if any(slot[1:])]
            blocked = [w for w in found if w is not None]
            # A thread that waits for another thread of its own rank adds nothing to what that one waits for.
            outside = [w for w in blocked if w.on != [rank]]
            if outside and len(blocked) == len(found):
                waits[rank] = _both(outside)
        stuck = _stuck(state, waits)
        return Picture(state, waits, stuck, self._mismatch(rows, names) if mismatches else None)

    def _mismatch(self, rows: list[np.ndarray], names: list[list[str]]) -> str | None:
        """The first place where ranks disagree, as a sentence; None if they agree so far."""
        new = [r[done:] for r, done in zip(rows, self._agreed, strict=True)]
        waiting = [r["kind"] == 0 for r in new]  # which records will have to be looked at again
        wrong = _collective_mismatch(new, names, self.members, waiting) or _message_mismatch(new, waiting)
        if wrong is None:
            for rank, again in enumerate(waiting):
                self._agreed[rank] += int(np.argmax(again)) if again.any() else len(again)
        return wrong

    def _wait(
        self, rank: int, slot: tuple[int, int, int, int], rows: np.ndarray, names: list[str], begun: _Begun
    ) -> Wait | None:
        """What one thread is blocked on; None if it runs."""
        _, outer, send, recv = slot
        inside = ""
        at = outer
        for _ in range(rec.MAX_NESTING):
            if not 0 < at <= len(rows):
                break
            e = rows[at - 1]
            if e["kind"] == rec.COLLECTIVE:
                inside = f" in {_call(e, names)}"
                break
            at = int(e["parent"])
        if send or recv:
            texts, on = [], []
            for number, kind in ((send, rec.SEND), (recv, rec.RECV)):
                if not 0 < number <= len(rows):
                    continue
                e = rows[number - 1]
                if e["kind"] != kind or e["t1"]:
                    continue
                tensor, peer = describe(int(e["dtype"]), shape_of(e)), int(e["peer"])
                texts.append(
                    f"send {tensor} to rank {peer}" if kind == rec.SEND else f"receive {tensor} from rank {peer}"
                )
                if not begun.other_side(rank, e):
                    on.append(peer)
            return Wait(rank, " and ".join(texts) + inside, sorted(set(on))) if texts else None
        if not 0 < outer <= len(rows):
            return None
        e = rows[outer - 1]
        if e["kind"] == rec.WAIT:
            return Wait(rank, "wait for its own asynchronous work", [rank])
        if e["kind"] == rec.COLLECTIVE and e["flags"] & rec.NATIVE and not e["t1"]:
            late = [r for r in self.members(int(e["group"])) if not begun.collective(r, e)]
            return Wait(rank, f"the native {_call(e, names)}", late)
        return None


class _Begun:
    """Which operations have begun anywhere, to be asked whether the other side of one has."""

    def __init__(self) -> None:
        self._last: dict[tuple[int, ...], int] = {}

    def add(self, rank: int, rows: np.ndarray) -> None:
        """Take note of more records of a rank."""
        for kind in (rec.SEND, rec.RECV, rec.COLLECTIVE):
            e = rows[rows["kind"] == kind]
            if kind == rec.COLLECTIVE:
                e = e[(e["flags"] & rec.NESTED) == 0]
                e["peer"] = -1
            if not len(e):
                continue
            e = e[np.lexsort((e["seq"], e["lane"], e["group"], e["peer"]))]
            same = np.ones(len(e) - 1, bool)
            for column in ("peer", "group", "lane"):
                same &= e[column][1:] == e[column][:-1]
            for row in e[np.append(~same, True)]:
                place = rank, kind, int(row["peer"]), int(row["group"]), int(row["lane"])
                self._last[place] = max(self._last.get(place, 0), int(row["seq"]))

    def unreceived(self) -> Iterator[tuple[int, ...]]:
        """(sender, receiver, group, lane, number) of the last message of each pair that its receiver never took."""
        for (rank, kind, peer, group, lane), seq in self._last.items():
            if kind == rec.SEND and self._last.get((peer, rec.RECV, rank, group, lane), 0) < seq:
                yield rank, peer, group, lane, seq

    def other_side(self, rank: int, e: np.void) -> bool:
        other = rec.RECV if e["kind"] == rec.SEND else rec.SEND
        return self._last.get((int(e["peer"]), other, rank, int(e["group"]), int(e["lane"])), 0) >= e["seq"]

    def collective(self, rank: int, e: np.void) -> bool:
        return self._last.get((rank, rec.COLLECTIVE, -1, int(e["group"]), int(e["lane"])), 0) >= e["seq"]


def _both(waits: list[Wait]) -> Wait:
    return Wait(waits[0].rank, "; ".join(w.what for w in waits), sorted({r for w in waits for r in w.on}))


def _stuck(state: list[int], waits: dict[int, Wait]) -> list[int]:
    """The ranks that can never go on, whatever the others do."""
    hopeful = {r for r, s in enumerate(state) if s in (rec.UNBORN, rec.RUNNING) and (r not in waits or not waits[r].on)}
    grown = True
    while grown:
        grown = False
        for rank, wait in waits.items():
            if rank not in hopeful and all(r in hopeful for r in wait.on if r != rank) and wait.on != [rank]:
                hopeful.add(rank)
                grown = True
    return [r for r in waits if r not in hopeful]


def _call(e: np.void, names: list[str]) -> str:
    tensor = describe(int(e["dtype"]), shape_of(e)) if e["dtype"] else ""
    return f"{_text(names, e['name'])}({tensor}), call {int(e['seq'])}"


def _text(names: list[str], number: int) -> str:
    return names[number] if 0 <= number < len(names) else "?"  # the table of names was full


def _collective_mismatch(
    rows: list[np.ndarray], names: list[list[str]], members: Callable[[int], list[int]], waiting: list[np.ndarray]
) -> str | None:
    """Compare the calls of collectives; those that some member has not called yet are marked in `waiting`."""
    calls: dict[tuple[int, int, int], dict[str, list[int]]] = {}
    where: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
    for rank, r in enumerate(rows):
        at = np.flatnonzero((r["kind"] == rec.COLLECTIVE) & ((r["flags"] & rec.NESTED) == 0))
        own = r[at]
        # most calls look like others of the same rank: describe each kind once
        _, first, kind = np.unique(own[_SIGNED], return_index=True, return_inverse=True)
        texts = [_signature(own[i], names[rank]) for i in first]
        places = zip(own["group"].tolist(), own["lane"].tolist(), own["seq"].tolist(), strict=True)
        for place, k, n in zip(places, kind.ravel().tolist(), at.tolist(), strict=True):
            calls.setdefault(place, {}).setdefault(texts[k], []).append(rank)
            where.setdefault(place, []).append((rank, n))
    for (_, _, seq), said in sorted(calls.items(), key=lambda item: item[0][2]):
        if len(said) > 1:
            most = max(said, key=lambda text: len(said[text]))
            odd = "; ".join(f"{ranks_text(ranks)} called {text}" for text, ranks in said.items() if text != most)
            return f"{odd}, but {ranks_text(said[most])} called {most} (call {seq} of the group)"
    for (group, _, _), found in where.items():
        if len(found) != len(members(group)):
            for rank, n in found:
                waiting[rank][n] = True
    return None


_SIGNED = ["name", "detail", "dtype", "ndim", "shape", "peer"]  # what a signature is made of
_SAME_SHAPE = {"all_reduce", "reduce", "reduce_scatter", "broadcast"}


def _signature(e: np.void, names: list[str]) -> str:
    name = _text(names, e["name"])
    algorithm, _, op = _text(names, e["detail"]).partition(" ") if e["detail"] >= 0 else ("", "", "")
    if not e["dtype"] or name in ("scatter", "gather", "barrier", "all_to_all"):
        tensor = ""
    elif name in _SAME_SHAPE:
        tensor = f" on {describe(int(e['dtype']), shape_of(e))}"
    else:
        tensor = f" on {describe(int(e['dtype']), ('any', *shape_of(e)[1:]))}"  # type: ignore[arg-type]
    root = f", root {int(e['peer'])}" if e["peer"] >= 0 else ""
    return f"{name}{tensor}{f' ({op})' if op and op != 'sum' else ''}{root} by {algorithm!r}"


def _message_mismatch(rows: list[np.ndarray], waiting: list[np.ndarray]) -> str | None:
    """Compare sends with their receives; those without another side are marked in `waiting`."""
    blocks = []
    for rank, r in enumerate(rows):
        at = np.flatnonzero((r["kind"] == rec.SEND) | (r["kind"] == rec.RECV))
        block = np.zeros(len(at), ROW)
        for name in rec.EVENT.names or ():
            block[name] = r[name][at]
        block["rank"], block["index"] = rank, at
        blocks.append(block)
    events = np.concatenate(blocks)
    pairs = np.array(match(events), np.int64).reshape(-1, 2)
    alone = (pairs < 0).any(axis=1)
    for e in events[pairs[alone].max(axis=1)]:
        waiting[e["rank"]][e["index"]] = True
    pairs = pairs[~alone]
    sends, recvs = events[pairs[:, 0]], events[pairs[:, 1]]
    differ = (sends["dtype"] != recvs["dtype"]) | (sends["ndim"] != recvs["ndim"])
    differ |= (sends["shape"] != recvs["shape"]).any(axis=1)
    if not differ.any():
        return None
    first = np.flatnonzero(differ)[np.argmin(np.minimum(sends["t0"], recvs["t0"])[differ])]
    s, r = sends[first], recvs[first]
    return (
        f"rank {s['rank']} sent rank {r['rank']} {describe(int(s['dtype']), shape_of(s))}, but rank {r['rank']} "
        f"receives {describe(int(r['dtype']), shape_of(r))} (message {int(s['seq'])} between them)"
    )


def find_unreceived(reader: Reader) -> str | None:
    """After everyone has finished, and was looked at: a message that nobody took."""
    for rank, peer, group, lane, seq in reader.begun.unreceived():
        r = reader.pages[rank].records()
        found = r[(r["kind"] == rec.SEND) & (r["peer"] == peer) & (r["group"] == group) & (r["lane"] == lane)]
        what = describe(int(found[-1]["dtype"]), shape_of(found[-1])) if len(found) else "a message"
        return f"rank {rank} sent {what} to rank {peer}, which never received it (message {seq} between them)"
    return None


def explain_stuck(picture: Picture) -> str:
    """Why the stuck ranks cannot go on, with the wait-for picture."""
    gone = sorted(
        {r for s in picture.stuck for r in picture.waits[s].on if picture.state[r] in (rec.FINISHED, rec.FAILED)}
    )
    if gone:
        ended = "finished" if all(picture.state[r] == rec.FINISHED for r in gone) else "failed"
        has, them = ("has", "it") if len(gone) == 1 else ("have", "them")
        first = f"{ranks_text(gone)} {has} {ended} while others wait for {them}"
    else:
        first = f"{ranks_text(picture.stuck)} wait for each other"
    return first + "\n" + wait_for_picture(picture, picture.stuck)


def wait_for_picture(picture: Picture, ranks: Sequence[int]) -> str:
    """A line a rank: what it does and whom it waits for."""
    return "\n".join(f"  rank {r}: {picture.describe(r)}" for r in ranks)
