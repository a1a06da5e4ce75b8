"""Which operations have begun, by rank and peer, so that one can be asked whether its other side is on the way.

A page has room for so many records; with more, the last places are written over and over (`wire/recording/record.py`).
Between two looks more may come than these places hold, and then some were never seen. So every answer here is one of
three: yes, no, or None where the records that would tell may be among those.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from labkit.wire.recording import record as rec


class Begun:
    """The last operation seen of each kind, by rank, peer, group and lane, and how far each rank was seen whole."""

    def __init__(self) -> None:
        self._last: dict[tuple[int, ...], tuple[int, int]] = {}  # place -> its number there, the record's number
        self._whole: dict[int, int] = {}  # rank -> the records from this number on were all seen

    def add(self, rank: int, rows: np.ndarray, numbers: np.ndarray) -> None:
        """Take note of more records of a rank. numbers: which ones they are, counted from its first."""
        for kind in (rec.SEND, rec.RECV, rec.COLLECTIVE):
            chosen = rows["kind"] == kind
            if kind == rec.COLLECTIVE:
                chosen &= (rows["flags"] & rec.NESTED) == 0
            e, at = rows[chosen], numbers[chosen]
            if not len(e):
                continue
            if kind == rec.COLLECTIVE:
                e["peer"] = -1
            order = np.lexsort((e["seq"], e["lane"], e["group"], e["peer"]))
            e, at = e[order], at[order]
            same = np.ones(len(e) - 1, bool)
            for column in ("peer", "group", "lane"):
                same &= e[column][1:] == e[column][:-1]
            last = np.append(~same, True)
            for row, number in zip(e[last], at[last].tolist(), strict=True):
                place = rank, kind, int(row["peer"]), int(row["group"]), int(row["lane"])
                self._last[place] = max(self._last.get(place, (0, -1)), (int(row["seq"]), number))

    def missed(self, rank: int, until: int) -> None:
        """Some records of a rank before number `until` were overwritten before they were seen."""
        self._whole[rank] = until

    def table(self, rank: int) -> tuple[list[tuple[int, ...]], int]:
        """What is known of a rank: rows (kind, peer, group, lane, its number there, the record's), and from where."""
        rows = [(*place[1:], *last) for place, last in self._last.items() if place[0] == rank]
        return rows, self._whole.get(rank, -1)

    def take(self, rank: int, rows: Iterable[Sequence[int]], whole: int) -> None:
        """Know of a rank what a `table` says, which may have come from another host."""
        for kind, peer, group, lane, seq, number in rows:
            self._last[rank, kind, peer, group, lane] = seq, number
        self._whole[rank] = whole

    def has(self, rank: int, kind: int, peer: int, group: int, lane: int, seq: int) -> bool | None:
        """Whether `rank` has begun the operation with this number at this place; peer is -1 for a collective."""
        return self._has((rank, kind, peer, group, lane), seq)

    def unreceived(self) -> Iterator[tuple[int, ...]]:
        """(sender, receiver, group, lane, number) of the last message of each pair that its receiver never took."""
        for (rank, kind, peer, group, lane), (seq, _) in self._last.items():
            if kind == rec.SEND and self._has((peer, rec.RECV, rank, group, lane), seq) is False:
                yield rank, peer, group, lane, seq

    def other_side(self, rank: int, e: np.void) -> bool | None:
        """Whether the peer has begun its side of this send or receive of `rank`."""
        other = rec.RECV if e["kind"] == rec.SEND else rec.SEND
        return self._has((int(e["peer"]), other, rank, int(e["group"]), int(e["lane"])), int(e["seq"]))

    def collective(self, rank: int, e: np.void) -> bool | None:
        """Whether `rank` has begun this collective of another member."""
        return self._has((rank, rec.COLLECTIVE, -1, int(e["group"]), int(e["lane"])), int(e["seq"]))

    def _has(self, place: tuple[int, ...], seq: int) -> bool | None:
        last, number = self._last.get(place, (0, -1))
        if last >= seq:
            return True
        return False if number >= self._whole.get(place[0], -1) else None
