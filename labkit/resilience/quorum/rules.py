"""The times and counts that the service goes by."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any

from .errors import BadCall


@dataclass(frozen=True)
class Rules:
    """replicas: how many are expected. spares: further numbers that may take part. min_replicas: fewer form no quorum.

    Seconds, all by the service's own clock:
    join: how long a round waits for living members of the latest quorum, from the first of them that joined.
    first: the same where no member of a latest quorum lives (at the start, or when all restart), for all that may come.
    heartbeat: without a sign of life for so long a replica is lost. It may be generous, because it only decides about
    processes that are stopped and hosts that are cut off: the connection of a process that died closes at once.
    reconnect: how long a closed heartbeat connection may stay away. Closing is strong evidence of death, not proof: a
    proxy or a network may drop a connection too, and its client is back within milliseconds.
    linger: how long a full round waits for a new replica that has checked in and is about to join. 0: it waits for the
    next round.

    evict: after so many rounds in a row in which nobody could commit, the replica that was the last to join most of
    them is ended, since it holds up the others. 0: never. A rank that is slower than the deadlines of the others
    breaks each of their tries without ever dying or being silent, and it comes late to each round.
    """

    replicas: int
    spares: int = 0
    min_replicas: int = 1
    join: float = 10.0
    first: float = 30.0
    heartbeat: float = 5.0
    reconnect: float = 0.1
    linger: float = 0.0
    evict: int = 0

    def __post_init__(self) -> None:
        least = {"replicas": 1, "spares": 0, "min_replicas": 1, "evict": 0}
        for f in fields(self):
            value = getattr(self, f.name)
            if f.name in least:
                if type(value) is not int or value < least[f.name]:
                    raise BadCall(f"{f.name}={value!r}: needs a whole number of at least {least[f.name]}")
            elif isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
                raise BadCall(f"{f.name}={value!r}: needs a number of seconds, 0 or more")
        if self.min_replicas > self.replicas:
            raise BadCall(f"min_replicas={self.min_replicas}: there are only {self.replicas} replicas")
        if not self.reconnect < self.heartbeat:
            raise BadCall(f"heartbeat={self.heartbeat:g} must be longer than reconnect={self.reconnect:g} seconds")

    @property
    def numbers(self) -> int:
        """How many numbers a replica may have: 0 to this, exclusive."""
        return self.replicas + self.spares

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
