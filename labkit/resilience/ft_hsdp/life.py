"""`Incarnation`: all that one rank holds from its check-in to its end."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from labkit.resilience.audit import AuditLog
from labkit.resilience.ftar.queued import Ftar
from labkit.resilience.quorum import Quorum, QuorumClient
from labkit.wire.group import Group

from .config import FtConfig
from .gradients import Gradients
from .offload import Offload
from .result import Attempt
from .server import StateServer
from .staging import Stager
from .state import TrainingState

Loss = Callable[[nn.Module, Tensor], Tensor]


@dataclass
class Incarnation:
    """One rank of one replica, in one incarnation. rank: inside the replica; 0 leads.

    group: the world. inner: the ranks of this replica. ftar: rank `rank` of all replicas. steps: how many to train.
    loss: of a model and the sample numbers of its replica. rates: of the optimizer's groups, as built.
    """

    config: FtConfig
    steps: int
    group: Group
    inner: Group
    ftar: Ftar
    state: TrainingState
    gradients: Gradients
    loss: Loss
    rates: list[float]
    offload: Offload
    server: StateServer
    stager: Stager
    client: QuorumClient
    folder: Path
    run: str
    token: str
    replica: int = -1
    incarnation: int = 0
    log: AuditLog = None  # type: ignore[assignment]  # there is none before the check-in
    told: dict[str, Any] = field(default_factory=dict)  # what the leader tells the other replicas of this one
    failed: bool = False  # the last attempt came to nothing
    tries: int = 0  # attempts since the state last changed
    ring: int = -1  # the quorum that the group of `ftar` was made for
    attempts: list[Attempt] = field(default_factory=list)
    fetched: int = 0
    unsaved: list[str] = field(default_factory=list)

    @property
    def rank(self) -> int:
        return self.inner.rank

    @property
    def leads(self) -> bool:
        return self.inner.rank == 0


class Phases:
    """What one attempt does, as spans on the timeline and in seconds."""

    def __init__(self, group: Group):
        self.group = group
        self.began = time.monotonic()
        self.seconds: dict[str, float] = defaultdict(float)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """The enclosed work is `name`; faults that are to strike there do so as it begins."""
        began = time.monotonic()
        try:
            with self.group.span(name):
                yield
        finally:
            self.seconds[name] += time.monotonic() - began


@dataclass
class Outcome:
    """How an attempt went on this rank. why: what went wrong here, or in its replica."""

    role: str
    quorum: Quorum
    committed: bool = False
    why: str = ""
    loss: float | None = None
