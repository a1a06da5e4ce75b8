"""What a rank writes down about its training: the lines of the audit log, as plain data.

A step of a rank leaves two lines: a `Vote` when its part of the exchange is over, well or badly, and a `Commit` when
the update is applied. A `Start` tells of a state made from the seed, a `Fetch` of one taken over from another
replica.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar

from labkit.wire.errors import RefusedError


@dataclass(frozen=True)
class Line:
    """Base of all lines: which life of which rank wrote it. `rank` counts inside the replica.

    at: when, on the monotonic clock of the machine (one clock for all of its processes).
    """

    step: int
    replica: int
    rank: int
    incarnation: int
    at: float = field(default=0.0, kw_only=True)

    kind: ClassVar[str] = ""

    def text(self) -> str:
        """The line as JSON, without its end."""
        return json.dumps({"kind": self.kind, **asdict(self)}, separators=(",", ":"))


@dataclass(frozen=True)
class Start(Line):
    """A first state, made from the seed: the rank is about to train step `step` on it."""

    positions: tuple[int, ...]
    checksum: str

    kind: ClassVar[str] = "start"


@dataclass(frozen=True)
class Fetch(Line):
    """A state at the beginning of step `step`, taken over from replica `source` before the exchange of `quorum`."""

    quorum: int
    source: int
    positions: tuple[int, ...]
    checksum: str
    nbytes: int = 0

    kind: ClassVar[str] = "fetch"


@dataclass(frozen=True)
class Vote(Line):
    """What this rank says about the exchange of `step` under `quorum`, before anything is applied.

    samples: the numbers [first, last) of its replica's stream that its gradient came from; (p, p) for a weight of 0.
    yes: the exchange went well here. why: else, what happened.
    """

    quorum: int
    samples: tuple[int, int]
    yes: bool
    why: str = ""

    kind: ClassVar[str] = "vote"


@dataclass(frozen=True)
class Commit(Line):
    """An update that this rank applied: step `step` is over.

    quorum: the id of the quorum whose exchange made it. contributors: the replicas whose gradient weighed 1, ascending.
    positions: samples consumed of every replica's stream, after it. parent, checksum: of this rank's whole training
    state (parameters, optimizer, positions) before and after. Equal on rank i of all replicas. members: of the quorum,
    in the order of the ring; those that are no contributors gave zeros.
    """

    quorum: int
    contributors: tuple[int, ...]
    positions: tuple[int, ...]
    parent: str
    checksum: str
    loss: float | None = None
    members: tuple[int, ...] = ()

    kind: ClassVar[str] = "commit"


_KINDS: dict[str, type[Line]] = {c.kind: c for c in (Start, Fetch, Vote, Commit)}


def parse(text: str) -> Line:
    """The line that `text` says; raises RefusedError for what is none."""
    try:
        found = json.loads(text)
        made: Any = _KINDS[found.pop("kind")]
        return made(**{k: tuple(v) if isinstance(v, list) else v for k, v in found.items()})
    except (ValueError, KeyError, TypeError, AttributeError) as why:
        raise RefusedError(f"{text[:80]!r} is no line of an audit log: {type(why).__name__}: {why}") from why


def same(a: Line, b: Line, *but: str) -> dict[str, tuple[Any, Any]]:
    """The fields in which two lines of a kind differ, apart from those named and from when they were written."""
    names = (f.name for f in fields(a) if f.name not in (*but, "at"))
    return {n: (getattr(a, n), getattr(b, n)) for n in names if getattr(a, n) != getattr(b, n)}
