"""What ranks are blocked in: collectives and single messages, each with what every member has done about it.

A message between two ranks that belongs to no collective is taken for an operation of those two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from labkit.wire.messenger import COLLECTIVES
from labkit.wire.recording import record as rec
from labkit.world.diagnosis.begun import Begun
from labkit.world.diagnosis.explain import ranks_text

from .report import Post, Report, Thread

Key = tuple[Any, ...]  # ("call", group, number) or ("message", from, to, group, lane, number)


@dataclass
class Operation:
    """One operation that some rank is blocked in, or at work in.

    inside: members that are in it. posted: they have asked for it, and their communication thread has not come to it.
    absent: they have not called it. left: they are through with it. unknown: the records that would tell are gone.
    """

    key: Key
    name: str
    members: tuple[int, ...]
    inside: list[int] = field(default_factory=list)
    posted: list[int] = field(default_factory=list)
    absent: list[int] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    unknown: list[int] = field(default_factory=list)

    def status(self, rank: int) -> str:
        """What a member has done about it, in a word."""
        for word in ("inside", "posted", "absent", "left"):
            if rank in getattr(self, word):
                return word
        return "unknown"


class Operations:
    """All operations that the ranks of `reports` are in, and who stands where in each."""

    def __init__(self, reports: Mapping[int, Report]) -> None:
        self.reports = reports
        self.begun = Begun()
        self.groups: dict[int, tuple[int, ...]] = {}
        for rank, report in reports.items():
            self.begun.take(rank, report.begun, report.whole)
            self.groups.update(report.groups)
        self.threads: dict[int, list[tuple[Thread, list[Key]]]] = {
            rank: [(t, _keys(rank, t)) for t in report.threads] for rank, report in reports.items()
        }
        inside: dict[Key, list[int]] = {}
        for rank, of_rank in self.threads.items():
            for thread, keys in of_rank:
                for key in keys:
                    ranks = inside.setdefault(key, [])
                    if thread.own is None and rank not in ranks[-1:]:
                        ranks.append(rank)
        self._words = {m.call: m.words for report in reports.values() for m in report.made if not m.ends}
        self.found = {key: self._operation(key, ranks) for key, ranks in inside.items()}

    def main(self, rank: int) -> list[Key]:
        """What the thread of the rank's function is in; [] where it is outside any message."""
        return [key for thread, keys in self.threads[rank] if thread.main for key in keys]

    def others(self, rank: int) -> list[Key]:
        """What its other threads are in."""
        return [key for thread, keys in self.threads[rank] if not thread.main for key in keys]

    def posts(self, rank: int, key: Key) -> list[Post]:
        """The messages of an operation that a rank waits for."""
        return [p for thread, keys in self.threads[rank] if key in keys for p in thread.posts]

    def other_side(self, rank: int, post: Post) -> bool | None:
        """Whether the peer has begun its side of a message; None where the records that would tell are gone."""
        kind = rec.RECV if post.way == "send" else rec.SEND
        return self.begun.has(post.peer, kind, rank, post.group, post.lane, post.seq)

    def under_way(self, rank: int, post: Post) -> bool:
        """Whether the peer, which has begun its side of this message, has not ended it either."""
        kind = rec.RECV if post.way == "send" else rec.SEND
        return (kind, rank, post.group, post.lane, post.seq) in self.reports[post.peer].under_way

    # -- inside ----------------------------------------------------------------------------------------------------

    def _operation(self, key: Key, inside: list[int]) -> Operation:
        members = self.groups.get(key[1], ()) if key[0] == "call" else (key[1], key[2])
        found = Operation(key, self._name(key), members or tuple(inside), inside)
        here = set(inside)
        for rank in found.members:
            if rank not in here:
                getattr(found, self._status(rank, key)).append(rank)
        return found

    def _status(self, rank: int, key: Key) -> str:
        if rank not in self.reports:
            return "unknown"
        if key[0] == "call":
            begun = self.begun.has(rank, rec.COLLECTIVE, -1, key[1], COLLECTIVES, key[2])
            waits = any(t.own == key[1:] for t in self.reports[rank].threads)
            ended = next((m.ended for m in self.reports[rank].made if m.call == key[1:] and not m.ends), not waits)
        else:
            _, source, to, group, lane, seq = key
            kind, peer = (rec.SEND, to) if rank == source else (rec.RECV, source)
            begun = self.begun.has(rank, kind, peer, group, lane, seq)
            ended = (kind, peer, group, lane, seq) not in self.reports[rank].under_way
        return "unknown" if begun is None else "absent" if not begun else "left" if ended else "posted"

    def _name(self, key: Key) -> str:
        if key[0] == "message":
            return f"message {key[5]} from rank {key[1]} to rank {key[2]}"
        ranks = f" of {ranks_text(self.groups[key[1]])}" if self.groups.get(key[1]) else ""
        return f"{self._words.get(key[1:], 'a collective')}{ranks}, call {key[2]}"


def _keys(rank: int, thread: Thread) -> list[Key]:
    if thread.own is not None:
        return [("call", *thread.own)]
    if thread.call is not None:
        return [("call", *thread.call)]
    ends = [(rank, p.peer) if p.way == "send" else (p.peer, rank) for p in thread.posts]
    return [("message", *end, p.group, p.lane, p.seq) for end, p in zip(ends, thread.posts, strict=True)]
