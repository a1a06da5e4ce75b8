"""Which operations have begun, by rank and peer, so that one can be asked whether its other side is on the way."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from labkit.wire import record as rec


class Begun:
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
