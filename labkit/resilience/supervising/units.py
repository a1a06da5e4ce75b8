"""What a supervisor knows of the processes it watches, and what it tells the quorum service."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from .incidents import Incident


class Calls(Protocol):
    """What a supervisor tells the quorum service (see `QuorumClient`)."""

    def begin(self, replica: int) -> int: ...
    def dead(self, replica: int, incarnation: int | None = None) -> None: ...
    def promote(self, replica: int, data: dict[str, Any] | None = None) -> None: ...


@dataclass
class ReplicaProcesses:
    """The processes of one replica, or of a spare. replica: the place it holds.

    state: "up"; "ending" until none of its processes is left; "starting" until all are there again; "down" for good.
    alive: ranks that have a process, or will: the order to start it was given (unborn: and was not carried out yet).
    """

    number: int
    ranks: range
    replica: int | None
    incarnation: int = 0
    state: str = "up"
    alive: set[int] = field(default_factory=set)
    unborn: set[int] = field(default_factory=set)
    struck: float | None = None
    restarts: int = 0
    same: int = 0  # lives in a row that ended with one and the same error
    incident: Incident | None = None
