"""Thousands of boxes as a few stretches: what a rank does, and for how much of the time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import NamedTuple, Protocol

MIXED = "mixed"
STREAK = 3  # boxes of one kind in a row are a stretch of that kind; fewer belong to kinds by turns
MOST_RUNS = 1500


class Box(Protocol):
    """What is read of a box."""

    @property
    def kind(self) -> str: ...
    @property
    def start(self) -> float: ...
    @property
    def end(self) -> float: ...


class Run(NamedTuple):
    """A stretch in which a rank does one kind of instruction, or several by turns.

    share: of the stretch in which it computes; the gaps inside are too short to be seen.
    """

    rank: int
    kind: str
    start: float
    end: float
    share: float


def runs(boxes: Mapping[int, Sequence[Box]], window: tuple[float, float]) -> list[Run]:
    """Stretches of the boxes of each rank, which are in order. Gaps of two pixels part them, wider ones if too many."""
    whole = window[1] - window[0]
    for parts in (343, 170, 85, 40, 20, 1):
        found = [run for rank, mine in boxes.items() for run in _of_rank(rank, mine, window, whole / parts)]
        if len(found) <= MOST_RUNS:
            break
    return found


def _of_rank(rank: int, boxes: Sequence[Box], window: tuple[float, float], gap: float) -> list[Run]:
    found: list[Run] = []
    kind, begin, end, busy = "", 0.0, 0.0, 0.0

    def close() -> None:
        if kind and end > begin:
            found.append(Run(rank, kind, begin, end, busy / (end - begin)))

    for group, members in groupby(boxes, key=lambda b: b.kind):
        streak = list(members)
        now = group if len(streak) >= STREAK else MIXED
        for box in streak:
            start, until = max(box.start, window[0]), min(box.end, window[1])
            if now != kind or start - end > gap:
                close()
                kind, begin, busy = now, start, 0.0
            end = until
            busy += until - start
    close()
    return found
