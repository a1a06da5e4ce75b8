"""The status page: what every rank is about to do, written down before it does it.

Each rank owns one page of shared memory. Before an operation it writes a record (who, what, how much,
when); afterwards it adds the end time. The same records serve four readers:

- the supervisor, who reads all pages to name a deadlock, a mismatch or a dead rank (`labkit.world.diagnosis.reading`);
- the `Trace` of a finished run; a live view of one that still runs;
- the report of a crash: a rank that was killed leaves its page behind, like an aircraft's flight recorder.

A page is plain memory in a file without a name, so nothing of it survives the run. Writing a record costs
about a microsecond, needs no message and no lock: each record has one writer, and its `kind` is written last.

Layout of a page: header (4096 bytes) | counters (16 bytes a rank) | strings (64 KiB) | records (96 bytes each).
The file is sparse: memory is used only for records that were written.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import tempfile
import threading
from typing import Any

import numpy as np

HEADER_BYTES = 4096
STRING_BYTES = 1 << 16
RECORD_BYTES = 96
CAPACITY = int(os.environ.get("LABKIT_RECORDS", 1 << 18))  # records a rank: with more, the last RING places are
RING = min(1 << 12, CAPACITY // 4)  # written over and over, and what was there counts as dropped
MAX_DIMS = 4
SLOTS = 32  # threads of a rank that can be inside an operation at once
MAX_NESTING = 64  # spans and collectives inside each other, as readers follow them: overwritten records may loop
# In a slot: waits for the other side; opens a connection, which the peer's program need not ask for.
BLOCKED, OPENING = 1, 2
WORLD = 1  # the number of the group of all ranks
MAIN_SLOT = 0  # of the thread that runs the reader's function: while it is free to act, its rank is not stuck

NO_ROOM = 0x7FFFFFFF  # instead of the number of a text

SEND, RECV, COLLECTIVE, SPAN, WAIT, STEP, NOTE = 1, 2, 3, 4, 5, 6, 7
KIND_NAMES = {
    SEND: "send",
    RECV: "recv",
    COLLECTIVE: "collective",
    SPAN: "span",
    WAIT: "wait",
    STEP: "step",
    NOTE: "note",
}

UNBORN, RUNNING, FINISHED, FAILED = 0, 1, 2, 3

ASYNC, NATIVE, COMBINE, EXCHANGE, NESTED, ERROR = 1, 2, 4, 8, 16, 32

# `kind` comes last: whoever sees it sees the rest of the record.
_RECORD = struct.Struct("<iiIIIIiiqqqqq4iBBBB")
_MESSAGE = struct.Struct("<iiIIIIiiqqqqq16sBBBB")  # the same, with a shape that is packed already
_SHAPE = struct.Struct("<4i")
EVENT = np.dtype(
    [
        ("peer", "<i4"), ("step", "<i4"), ("group", "<u4"), ("lane", "<u4"), ("seq", "<u4"), ("name", "<u4"),
        ("detail", "<i4"), ("parent", "<i4"), ("nbytes", "<i8"), ("offset", "<i8"), ("t0", "<i8"), ("t1", "<i8"),
        ("sent", "<i8"), ("shape", "<i4", (MAX_DIMS,)), ("dtype", "u1"), ("ndim", "u1"), ("flags", "u1"),
        ("kind", "u1"),
    ]
)  # fmt: skip
assert _RECORD.size == EVENT.itemsize <= RECORD_BYTES
_STRIDE = np.dtype({"names": EVENT.names, "formats": [EVENT.fields[n][0] for n in EVENT.names],  # type: ignore
                    "offsets": [EVENT.fields[n][1] for n in EVENT.names], "itemsize": RECORD_BYTES})  # type: ignore  # fmt: skip

_Q = struct.Struct("<q")
_TIMES = struct.Struct("<qq")
_T0, _T1 = (EVENT.fields[name][1] for name in ("t0", "t1"))  # type: ignore
_PUT = _Q.pack_into  # clears its bytes before it writes them: only for what nobody reads meanwhile
_PID, _STATE, _STEP, _COUNTED, _STRINGS, _FAULT, _DROPPED, _NOW, _THREADS, _EARLIER, _SLOTS_AT = (
    8,
    16,
    24,
    32,
    40,
    48,
    56,
    64,
    72,
    80,
    128,
)


def call_words(detail: str) -> tuple[str, str, str]:
    """Algorithm, op and what it is of, from the detail of a COLLECTIVE record; the last two may be empty."""
    algorithm, op, of = f"{detail}  ".split(" ", 2)
    return algorithm, op, of.strip()


def page_bytes(size: int, capacity: int = CAPACITY) -> int:
    """Bytes of one rank's page in a world of `size` ranks (a multiple of the memory page)."""
    raw = HEADER_BYTES + 16 * size + STRING_BYTES + RECORD_BYTES * capacity
    return -(-raw // mmap.PAGESIZE) * mmap.PAGESIZE


def create_pages(size: int, capacity: int = CAPACITY) -> int:
    """A file descriptor of sparse, nameless shared memory that holds the pages of `size` ranks."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("labkit-pages")
    else:  # macOS: a temporary file whose name is gone at once
        with tempfile.TemporaryFile() as f:
            fd = os.dup(f.fileno())
    os.ftruncate(fd, size * page_bytes(size, capacity))
    return fd


class Page:
    """One rank's page, as its writer or as a reader (`Page(fd, rank, size)`)."""

    def __init__(self, fd: int, rank: int, size: int, capacity: int = CAPACITY):
        nbytes = page_bytes(size, capacity)
        self.map = mmap.mmap(fd, nbytes, offset=rank * nbytes)
        self.rank, self.size, self.capacity = rank, size, capacity
        self._counters = HEADER_BYTES
        self._strings = HEADER_BYTES + 16 * size
        self._records = self._strings + STRING_BYTES
        # Header and counters by words of 8 bytes: whoever reads one while it is written sees the old or the new one.
        self.words = memoryview(self.map)[: self._strings].cast("q")

    # -- header words ------------------------------------------------------------------------------------------

    def _word(at: int) -> Any:  # type: ignore[misc]
        def get(self: Any) -> int:
            return self.words[at >> 3]

        def put(self: Any, value: int) -> None:
            self.words[at >> 3] = value

        return property(get, put)

    pid, state, step, count = _word(_PID), _word(_STATE), _word(_STEP), _word(_COUNTED)
    fault, dropped, now = _word(_FAULT), _word(_DROPPED), _word(_NOW)
    strings_used = _word(_STRINGS)
    threads = _word(_THREADS)  # bit n: a thread of the reader's own lives and has slot n; bit MAIN_SLOT: one without

    earlier = _word(_EARLIER)  # collectives of the whole world before this call of a kept world: not counted in words

    # -- reading -----------------------------------------------------------------------------------------------

    def records(self, since: int = 0) -> np.ndarray:
        """A copy of the finished and running records from number `since` on, oldest first (dtype EVENT)."""
        n = min(self.count, self.capacity)
        raw = self.map[self._records + since * RECORD_BYTES : self._records + n * RECORD_BYTES]  # all at once: it grows
        return np.frombuffer(raw, _STRIDE).astype(EVENT)

    def record(self, index: int) -> np.void:
        """The record at `index` (as held in a slot, counted from 0)."""
        return np.ndarray((1,), _STRIDE, self.map, self._records + index * RECORD_BYTES)[0].copy()

    def strings(self) -> list[str]:
        """All names that this rank wrote down, by their number."""
        raw = self.map[self._strings : self._strings + self.strings_used]
        return raw.decode("utf-8", "replace").split("\0")[:-1]

    def counters(self) -> list[tuple[int, int]]:
        """(payload bytes, messages) that this rank sent to each rank."""
        both = self.words[self._counters >> 3 :].tolist()
        return list(zip(both[::2], both[1::2], strict=True))

    def slots(self) -> list[tuple[int, int, int, int]]:
        """For each thread of the rank, main first: (in use, collective, send, recv); record numbers + 1, 0 for none."""
        return [s for s in self._slots() if s[0]]

    def _slots(self) -> list[tuple[int, int, int, int]]:
        words = iter(self.words[_SLOTS_AT >> 3 : (_SLOTS_AT >> 3) + 4 * SLOTS].tolist())
        return list(zip(words, words, words, words, strict=True))

    def own_threads(self) -> list[bool]:
        """For each living thread that the reader started: whether it is inside labkit."""
        bits = self.threads
        inside = [any(slot[1:]) for slot in self._slots()]
        return [n != MAIN_SLOT and inside[n] for n in range(SLOTS) if bits >> n & 1]

    def close(self) -> None:
        self.words.release()
        self.map.close()


def _four(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape as four numbers: filled up with zeros, or the fourth a number for all that is left."""
    shape = tuple(shape)
    return (shape + (0, 0, 0, 0))[:4] if len(shape) <= 4 else (*shape[:3], hash(shape) & 0x7FFFFFFF)


class Recorder:
    """The writing side of a page. One a process; its methods may be called from any thread."""

    def __init__(self, page: Page):
        self.page, self.map, self.words = page, page.map, page.words
        self._lock = threading.Lock()
        self._next = page.count
        self._names: dict[str, int] = {name: i for i, name in enumerate(page.strings())}
        for number in range(SLOTS):  # a rank that is restarted finds those of its former life
            self.slot(number, 0, used=0)
        self.slot(MAIN_SLOT, 0)
        self._free_slots = list(range(SLOTS - 1, MAIN_SLOT, -1))
        self._shapes: dict[tuple[int, ...], bytes] = {}
        self._base, self._capacity = page._records, page.capacity
        self.step = page.step

    def intern(self, text: str) -> int:
        """The number of `text` in this page's strings; NO_ROOM stands for a text that no longer fitted."""
        found = self._names.get(text)
        return self._write_down(text) if found is None else found

    def _write_down(self, text: str) -> int:
        with self._lock:
            if text in self._names:  # another thread was faster
                return self._names[text]
            raw = text.replace("\0", " ").encode() + b"\0"
            used = self.page.strings_used
            if used + len(raw) > STRING_BYTES:
                return NO_ROOM
            start = self.page._strings + used
            self.map[start : start + len(raw)] = raw
            self.page.strings_used = used + len(raw)
            found = self._names[text] = len(self._names)
            return found

    def attrs(self, attrs: dict[str, Any]) -> int:
        """The number of a span's attributes (as JSON); -1 for none, or where they would crowd out the names to come."""
        if not attrs or self.page.strings_used > STRING_BYTES // 2:
            return -1
        number = self.intern(json.dumps(attrs, sort_keys=True, default=str))
        return number if number != NO_ROOM else -1

    def begin(
        self, kind: int, now: int, *, peer: int = -1, group: int = 0, lane: int = 0, seq: int = 0, name: int = 0,
        detail: int = -1, parent: int = 0, nbytes: int = 0, offset: int = -1, sent: int = 0, dtype: int = 0,
        shape: tuple[int, ...] = (), flags: int = 0, end: int = 0,
    ) -> int:  # fmt: skip
        """Write what is about to happen; returns the record's number + 1 (so that 0 can mean none)."""
        with self._lock:  # another thread between these lines could hide a record from all readers
            index = self._next
            self._next += 1
            if index >= self._capacity:
                index = self._overwritten(index)
            else:
                self.page.count = index + 1
        _RECORD.pack_into(
            self.map, self._base + index * RECORD_BYTES, peer, self.step, group, lane, seq, name, detail, parent,
            nbytes, offset, now, end, sent, *_four(shape), dtype, len(shape), flags, kind,
        )  # fmt: skip
        return index + 1

    def message(
        self, kind: int, now: int, peer: int, group: int, lane: int, seq: int, parent: int, nbytes: int, offset: int,
        dtype: int, shape: Any, flags: int,
    ) -> int:  # fmt: skip
        """`begin` and, for a send, `count` in one: messages are written down more often than all else together."""
        packed = self._shapes.get(shape) or self._pack_shape(shape)
        with self._lock:
            index = self._next
            self._next = index + 1
            if index < self._capacity:
                self.words[_COUNTED >> 3] = index + 1
            else:
                index = self._overwritten(index)
            if kind == SEND:
                self._add(peer, nbytes)
        _MESSAGE.pack_into(
            self.map, self._base + index * RECORD_BYTES, peer, self.step, group, lane, seq, 0, -1, parent,
            nbytes, offset, now, 0, 0, packed, dtype, len(shape), flags, kind,
        )  # fmt: skip
        return index + 1

    def _pack_shape(self, shape: tuple[int, ...]) -> bytes:
        if len(self._shapes) >= 1024:  # a program that never sends the same shape twice
            self._shapes.clear()
        packed = self._shapes[shape] = _SHAPE.pack(*_four(shape))
        return packed

    def _overwritten(self, index: int) -> int:
        """Where the record goes when the page is full: over the oldest of the last `RING`."""
        self.page.dropped = self.page.dropped + 1
        return self._capacity - RING + index % RING

    def retime(self, number: int, start: int, end: int) -> None:
        """Give a record that was ended other times."""
        _PUT(self.map, self._base + (number - 1) * RECORD_BYTES + _T0, start)
        _PUT(self.map, self._base + (number - 1) * RECORD_BYTES + _T1, end or 1)

    def end(self, number: int, now: int, sent: int = 0) -> None:
        """Write when the operation ended; for a receive also when its sender began."""
        _TIMES.pack_into(self.map, self._base + (number - 1) * RECORD_BYTES + _T1, now or 1, sent)

    def flag(self, number: int, flags: int) -> None:
        """Add flags to a record that was begun."""
        at = self._base + (number - 1) * RECORD_BYTES + EVENT.fields["flags"][1]  # type: ignore
        self.map[at] |= flags

    def count(self, to: int, nbytes: int) -> None:
        """Count one message of `nbytes` payload bytes to world rank `to`."""
        with self._lock:
            self._add(to, nbytes)

    def _add(self, to: int, nbytes: int) -> None:
        at = (HEADER_BYTES >> 3) + 2 * to
        self.words[at] += nbytes
        self.words[at + 1] += 1

    def claim_slot(self) -> int:
        """A slot for one more thread; -1 when all are taken."""
        return self._free_slots.pop() if self._free_slots else -1

    def slot(self, slot: int, collective: int, send: int = 0, recv: int = 0, used: int = BLOCKED) -> None:
        """Say what the thread of `slot` is blocked on, and how (0: it is outside labkit)."""
        if slot >= 0:
            at = (_SLOTS_AT >> 3) + 4 * slot
            words = self.words
            words[at + 1], words[at + 2], words[at + 3], words[at] = collective, send, recv, used

    def free_slot(self, slot: int) -> None:
        """Give a slot back: its thread is outside labkit."""
        if slot >= 0:
            self.slot(slot, 0, used=0)
            self._free_slots.append(slot)
