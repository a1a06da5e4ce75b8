"""Ranks that failed: which of them failed by itself, and which only because another one did."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Protocol

from .waits import Clue

_NAMES = re.compile(r"(?:lost rank|reach rank|waited [\d.e+-]+ s for rank) (\d+)")
_SENT = re.compile(r"rank (\d+) sent rank (\d+) (.*)", re.DOTALL)
OWN = ("died", "raised", "exit")  # kinds of a rank that needed nobody else to fail


class Failed(Protocol):
    """What is read of a `labkit.world.job.Failure`."""

    @property
    def rank(self) -> int: ...
    @property
    def kind(self) -> str: ...
    @property
    def error(self) -> str: ...
    @property
    def message(self) -> str: ...


def roots(failures: Iterable[Failed], finished: Collection[int] = ()) -> list[Clue]:
    """What the failures of a run say about who began: nothing for a run whose ranks all failed for no reason of theirs.

    A rank that lost another one, or waited for it in vain, points to it; what these pointers lead to is the root. A
    message that arrived as another than expected leaves sender and receiver. Of a rank that has finished, and one that
    still waited for it, either may be wrong.
    """
    by_rank = {f.rank: f for f in reversed(list(failures)) if f.rank >= 0}
    own = [f for f in by_rank.values() if f.kind in OWN]
    if own:
        return [Clue(frozenset({f.rank}), "dead" if f.kind == "died" else "raised", _words(f)) for f in own]
    found = []
    for f in by_rank.values():
        sent = _SENT.search(f.message)
        if sent is not None:
            ends = int(sent[1]), int(sent[2])
            kind = "lost" if "was lost" in sent[3] else "mismatch"
            found.append(Clue(frozenset(ends), kind, f.message.splitlines()[0], ends))
    if found:
        return found
    points = {f.rank: int(m[1]) for f in by_rank.values() if (m := _NAMES.search(f.message))}
    ends_at = {rank: _follow(rank, points) for rank in points}
    return [
        Clue(frozenset({rank, last}), "finished", f"{_words(by_rank[rank])}, and rank {last} has finished")
        if last in finished else
        Clue(frozenset({last}), "absent", f"{_words(by_rank[rank])}, and rank {last} waits for nobody")
        for rank, last in ends_at.items()
        if last is not None and (last not in finished or points[rank] == last)
    ]  # fmt: skip


def _follow(rank: int, points: dict[int, int]) -> int | None:
    seen = set()
    while rank in points and rank not in seen:
        seen.add(rank)
        rank = points[rank]
    return None if rank in seen else rank


def _words(f: Failed) -> str:
    first = (f.message.splitlines() or [""])[0]
    return first if f.kind in ("died", "lost", "wire") else f"rank {f.rank} raised {f.error}: {first}"
