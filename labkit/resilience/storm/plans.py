"""A plan of failures for a fault-tolerant run: what is struck, and where. Plain data.

A *strike* hits one rank at an instant: as it enters a span of a step, for the nth time in a life of its process. Times
of day play no part, so a plan means the same on a fast and on a slow machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from labkit.wire.errors import RefusedError
from labkit.wire.faults import Drop, Fault, Hang, Kill, Raise

STEP = ("forward", "exchange", "vote", "commit", "quorum")  # spans of every step of a healthy replica
RETURN = ("transfer", "catch up")  # spans of a replica that comes back
INSTANTS = (*STEP, *RETURN, "serve", "rebuild", "birth")
KINDS = ("kill", "hang", "freeze", "raise", "drop")


@dataclass(frozen=True)
class Strike:
    """What hits rank `rank` of replica `replica`: "kill", "hang", "freeze" (a hang that ends), "raise" or "drop".

    at: the span, "birth" for at once, or "message" for the nth message (of a drop). nth: counted from 1 in each life.
    thaw: seconds after which a freeze ends.
    """

    what: str
    replica: int
    rank: int
    at: str
    nth: int = 1
    thaw: float = 0.0

    def __post_init__(self) -> None:
        if self.what not in KINDS:
            raise RefusedError(f"what={self.what!r}: choose {', '.join(map(repr, KINDS))}")
        if (self.what == "drop") != (self.at == "message"):
            raise RefusedError(f"{self}: a drop hits a message, and nothing else does")

    def fault(self, ranks: int) -> Fault:
        """The same as labkit knows it, in a world with `ranks` ranks a replica."""
        world = self.replica * ranks + self.rank
        if self.what == "drop":
            return Drop(world, message=self.nth)
        kind: Callable[..., Fault] = {"kill": Kill, "hang": Hang, "freeze": Hang, "raise": Raise}[self.what]
        return kind(world) if self.at == "birth" else kind(world, at=self.at, nth=self.nth)


@dataclass(frozen=True)
class StormPlan:
    """One run: `replicas` of `ranks` processes train `steps` steps and are struck. inside: "plain", "fsdp" or "tp".

    least: fewer replicas do not train; with all of them the others wait for who is lost, so it certainly comes back.
    pace: seconds that a step takes at least, so that who is lost may come back while the others go on.
    """

    seed: int
    shape: str
    replicas: int
    ranks: int
    inside: str
    steps: int
    strikes: tuple[Strike, ...]
    intervention: str = "none"
    least: int = 1
    pace: float = 0.0

    def faults(self) -> list[Fault]:
        """For `labkit.start(faults=...)`."""
        return [s.fault(self.ranks) for s in self.strikes]

    def thaws(self) -> dict[str, float]:
        """Fault, as an event names it ("rank: text") -> seconds after which its rank is continued."""
        found = {}
        for s in self.strikes:
            if s.what == "freeze":
                fault = s.fault(self.ranks)
                found[f"{fault.rank}: fault: Hang {fault.where()}"] = s.thaw
        return found
