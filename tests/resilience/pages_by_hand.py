"""Status pages written by hand: what ranks would have recorded, without any rank."""

from __future__ import annotations

import os

from labkit.resilience.diagnose.reading import Pages
from labkit.wire.recording import record as rec

COLLECTIVE, USER = 1, 0


class Desk:
    """The pages of `size` ranks that all run. Groups are named by their ranks."""

    def __init__(self, size: int, transport: str = "local") -> None:
        fd = rec.create_pages(size, 4096)
        self.pages = [rec.Page(fd, r, size, 4096) for r in range(size)]
        os.close(fd)
        self.recorders = [rec.Recorder(page) for page in self.pages]
        for page in self.pages:
            page.state, page.pid = rec.RUNNING, 1000 + page.rank
        self.reader = Pages(self.pages, transport)
        self.time = 1000
        self.calls: dict[tuple[int, tuple[int, ...]], int] = {}
        self.messages: dict[tuple[int, int, str, int], int] = {}

    def look(self):
        return self.reader.look()

    def key(self, ranks) -> int:
        key = 1 + 2 * sum(1 << r for r in ranks)
        for r in ranks:
            self.recorders[r].intern(f"group {key} {' '.join(map(str, ranks))}")
        return key

    def tick(self) -> int:
        self.time += 1000
        return self.time

    def step(self, rank, n) -> None:
        """`rank` marks step n."""
        self.recorders[rank].step = n
        self.recorders[rank].begin(rec.STEP, self.tick(), end=self.time)

    def enter(self, rank, ranks, name="all_reduce", algorithm="ring", shape=(8,), dtype=1, flags=0) -> int:
        """`rank` calls a collective of the group of `ranks`, and is in it from here on."""
        group, r = self.key(ranks), self.recorders[rank]
        self.calls[rank, tuple(ranks)] = seq = self.calls.get((rank, tuple(ranks)), 0) + 1
        number = r.begin(rec.COLLECTIVE, self.tick(), group=group, lane=COLLECTIVE, seq=seq, name=r.intern(name),
                         detail=r.intern(f"{algorithm} sum"), shape=shape, dtype=dtype, flags=flags)  # fmt: skip
        r.slot(rec.MAIN_SLOT, number)
        return number

    def leave(self, rank, number) -> None:
        self.recorders[rank].end(number, self.tick())
        self.recorders[rank].slot(rec.MAIN_SLOT, 0)

    def post(self, rank, way, peer, ranks, lane=COLLECTIVE, parent=0, flags=0, nbytes=32, wait=True) -> int:
        """`rank` begins a message, and waits for it."""
        r = self.recorders[rank]
        place = (rank, peer, way, self.key(ranks) * 2 + lane)
        seq = self.messages[place] = self.messages.get(place, 0) + 1
        number = r.message(rec.SEND if way == "send" else rec.RECV, self.tick(), peer, self.key(ranks), lane, seq,
                           parent, nbytes, -1, 1, (nbytes // 4,), flags)  # fmt: skip
        if wait:
            r.slot(rec.MAIN_SLOT, parent, *((number, 0) if way == "send" else (0, number)))
        return number

    def exchange(self, rank, to, source, ranks, parent, nbytes=32) -> tuple[int, int]:
        out = self.post(rank, "send", to, ranks, parent=parent, flags=rec.EXCHANGE, nbytes=nbytes, wait=False)
        into = self.post(rank, "recv", source, ranks, parent=parent, flags=rec.EXCHANGE, nbytes=nbytes, wait=False)
        self.recorders[rank].slot(rec.MAIN_SLOT, parent, out, into)
        return out, into

    def done(self, rank, *numbers, parent=0) -> None:
        for number in numbers:
            self.recorders[rank].end(number, self.tick())
        self.recorders[rank].slot(rec.MAIN_SLOT, parent)
