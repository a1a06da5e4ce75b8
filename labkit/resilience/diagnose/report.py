"""What a rank reports about itself: all that a diagnosis knows of it, in a few kilobytes of plain data.

A report says what the rank has begun, what each of its threads waits for, and how long it has spent in collectives.
It is made from the rank's status page, on the same host (`reading`), and may travel to another (`channel`).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from labkit.wire.recording import record as rec

CallId = tuple[int, int]  # (number of the group, number of the call in it)

STATES = {rec.UNBORN: "starting", rec.RUNNING: "running", rec.FINISHED: "finished", rec.FAILED: "failed"}


@dataclass(frozen=True)
class Post:
    """A message that a thread waits for. way: "send" or "recv". peer: a world rank. what: in words.

    exchange: it goes with another one in the other direction, and its sender does not wait until it is taken.
    """

    way: str
    peer: int
    group: int
    lane: int
    seq: int
    nbytes: int
    what: str
    exchange: bool = False


@dataclass(frozen=True)
class Thread:
    """One thread of a rank that is inside labkit. main: the one that runs the rank's function.

    call: the outermost collective that it is in. own: the collective of its own rank whose end it waits for.
    posts: the messages that it waits for. native: the collective runs in the library; its messages are not seen.
    """

    what: str
    call: CallId | None = None
    own: CallId | None = None
    posts: tuple[Post, ...] = ()
    native: bool = False
    main: bool = True

    @property
    def blocked(self) -> bool:
        """Whether it waits for something that was seen; one that is in a call may also be at work there."""
        return bool(self.posts) or self.own is not None or self.native


@dataclass(frozen=True)
class Made:
    """An outermost collective call that a rank has made, or a message of its own. words: what all members of the group,
    or both ends, must have said alike.

    role: the same with the shape of the group in place of its number, and places in it for ranks: what ranks with the
    same part in the program have in common. nth: how many calls and messages of its own the rank had begun before;
    past: a number that says which, by their roles. sent: messages that it has begun to send in it, -1 if it failed.
    ends: (sender, receiver) of a message; then `call` has its number between them, and `sent` its bytes.
    """

    call: CallId
    words: str
    role: str
    nth: int
    ended: bool
    sent: int = 0
    step: int = -1
    past: int = 0
    ends: tuple[int, ...] = ()


@dataclass(frozen=True)
class Odd:
    """A step of a rank in which it did something else than in another one, from its nth call on. how: in words.

    new: what it did there it has done in no other step.
    """

    step: int
    other: int
    nth: int
    how: str
    new: bool = False


@dataclass(frozen=True)
class Report:
    """One rank at one moment.

    count: records that it has written, which grows whenever it begins something. main_free, others_free: whether the
    thread of its function, and how many other threads of its own, are outside any message. doing: in words.
    begun, whole: see `labkit.world.diagnosis.begun`. under_way: messages begun and not ended, as (kind, peer,
    group, lane, number). sent: messages that left it, by receiver. spent: seconds in
    communication (see `spent`) and the number of calls, by group. made: its last collective calls and messages of its
    own, oldest first. steps: its last complete ones. odd: where its latest steps differ from those.
    """

    rank: int
    state: int
    step: int = -1
    count: int = 0
    main_free: bool = True
    others_free: int = 0
    doing: str = ""
    threads: tuple[Thread, ...] = ()
    groups: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    begun: tuple[tuple[int, ...], ...] = ()
    whole: int = -1
    under_way: tuple[tuple[int, ...], ...] = ()
    sent: Mapping[int, int] = field(default_factory=dict)
    spent: Mapping[int, tuple[float, int]] = field(default_factory=dict)
    made: tuple[Made, ...] = ()
    steps: tuple[int, ...] = ()
    odd: tuple[Odd, ...] = ()
    transport: str = ""

    @property
    def over(self) -> bool:
        """Whether it will never do anything again."""
        return self.state in (rec.FINISHED, rec.FAILED)

    @property
    def blocked(self) -> bool:
        """Whether every thread of it that could act waits for something."""
        return not (self.over or self.main_free or self.others_free) and all(t.blocked for t in self.threads)

    @property
    def seconds(self) -> float:
        """Seconds spent in communication, of all groups together."""
        return sum(s for s, _ in self.spent.values())

    def words(self) -> str:
        """What it does, in a phrase."""
        if self.state != rec.RUNNING:
            return {rec.UNBORN: "is starting", rec.FINISHED: "has finished", rec.FAILED: "has failed"}[self.state]
        inside = "; ".join(t.what for t in self.threads)
        if not inside:
            return f"is outside any message ({self.doing})" if self.doing else "is outside any message"
        if self.others_free:
            inside += f", while {self.others_free} thread{'s' * (self.others_free > 1)} of its own are outside"
        return inside

    # -- on the way ------------------------------------------------------------------------------------------------

    def to_bytes(self) -> bytes:
        """As JSON in UTF-8."""
        return json.dumps(dataclasses.asdict(self), separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Report:
        """What `to_bytes` made. Raises ValueError for anything else."""
        try:
            raw: dict[str, Any] = json.loads(data)
            raw["threads"] = tuple(
                Thread(t["what"], _pair(t["call"]), _pair(t["own"]), tuple(Post(**p) for p in t["posts"]), t["native"],
                       t["main"])
                for t in raw["threads"]
            )  # fmt: skip
            raw["groups"] = {int(key): tuple(ranks) for key, ranks in raw["groups"].items()}
            raw["begun"] = tuple(tuple(row) for row in raw["begun"])
            raw["under_way"] = tuple(tuple(row) for row in raw["under_way"])
            raw["sent"] = {int(rank): n for rank, n in raw["sent"].items()}
            raw["spent"] = {int(key): tuple(both) for key, both in raw["spent"].items()}
            raw["made"] = tuple(Made(**{**m, "call": tuple(m["call"]), "ends": tuple(m["ends"])}) for m in raw["made"])
            raw["steps"], raw["odd"] = tuple(raw["steps"]), tuple(Odd(**o) for o in raw["odd"])
            return cls(**raw)
        except (KeyError, TypeError, AttributeError, ValueError) as why:
            raise ValueError(f"this is no report of a rank: {type(why).__name__}: {why}") from why


def _pair(value: Any) -> CallId | None:
    return None if value is None else (int(value[0]), int(value[1]))
