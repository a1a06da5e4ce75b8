"""What the service knows of one replica: its present life, its signs of life, what it last held and asks for."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from .errors import BadCall, OldIncarnation
from .membership import Quorum, Version

ABSENT = "absent"  # never begun
BEGUN = "begun"  # an incarnation is open, nobody of it was heard
LIVE = "live"
LOST = "lost"  # silent, or its connection closed; alive again if it is heard again
DEAD = "dead"  # its supervisor says so: final for the incarnation
LEFT = "left"  # it has finished

Source = tuple[str, Hashable]  # ("rank", 0) beats for itself, ("host", name) for all members of a replica there


@dataclass
class Join:
    """A replica's question with whom to train next. at: when it came; until: then its caller gives up."""

    ticket: Any
    at: float
    until: float
    version: Version
    failed: bool = False
    shrink_only: bool = False
    data: dict[str, Any] = field(default_factory=dict)


@dataclass
class Slot:
    """heard: when each source gave its last sign of life. closed: since when a source's connection is closed.

    told: the version at the last join. holds: the highest version that this life may hold, as far as the service knows.
    since: when it first asked since its last quorum, however often its caller gave up in between and asked again.
    quorum: the last one handed to this life. called: the last call, which counts for a life that has no heartbeat.
    """

    replica: int
    incarnation: int = 0
    phase: str = ABSENT
    why: str = ""
    heard: dict[Source, float] = field(default_factory=dict)
    closed: dict[Source, float] = field(default_factory=dict)
    called: float = 0.0
    told: Version | None = None
    holds: Version | None = None
    quorum: Quorum | None = None
    join: Join | None = None
    since: float | None = None
    checked_in: bool = False

    def renew(self) -> None:
        """Begin the next incarnation; nothing of the old one stays."""
        fresh = Slot(self.replica, self.incarnation + 1, BEGUN)
        self.__dict__.update(fresh.__dict__)

    def check(self, incarnation: int) -> None:
        """Raise unless `incarnation` is this replica's present life and has not been declared dead."""
        if type(incarnation) is not int or incarnation > self.incarnation or incarnation < 1:
            raise BadCall(f"replica {self.replica} has no incarnation {incarnation!r}: check in first (register)")
        if incarnation < self.incarnation:
            raise OldIncarnation(
                f"incarnation {incarnation} of replica {self.replica} is over: incarnation {self.incarnation} has begun"
            )
        if self.phase == DEAD:
            raise OldIncarnation(self.over())

    def over(self) -> str:
        """That this life is dead, and why, in words."""
        return f"incarnation {self.incarnation} of replica {self.replica} is over: {self.why}"

    @property
    def asks(self) -> bool:
        """Whether it lives beyond doubt and has joined."""
        return self.phase == LIVE and self.join is not None and not self.closed

    def ends(self, heartbeat: float, reconnect: float) -> float:
        """When it will be lost if nothing is heard until then."""
        if not self.heard:
            return float("inf") if self.join is not None else self.called + heartbeat
        silent = min(self.heard.values()) + heartbeat
        return min([silent, *(at + reconnect for at in self.closed.values())])

    def silence(self, now: float) -> float:
        """Seconds since its quietest source was heard."""
        return now - min(self.heard.values(), default=self.called)

    def version_of(self, step: int, lineage: int | None) -> Version:
        """The version of the state of one that joins with `step`; `lineage` None: by what this life was handed out."""
        if lineage is not None:
            return (step, lineage)
        q, told = self.quorum, self.told
        if q is None or told is None:
            return (step, told[1] if told is not None and told[0] == step else 0)
        if step > q.step:
            return (step, q.id)  # committed under the quorum that it was handed
        if step == q.step and step != told[0]:
            return q.version  # it had fetched the state, then the exchange failed
        return (step, told[1] if step == told[0] else 0)
