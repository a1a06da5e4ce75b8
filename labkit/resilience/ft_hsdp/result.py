"""What a rank brings home from a fault-tolerant run: plain data, and what each attempt at a step was."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Attempt:
    """One try of one step on one rank. seconds: on this rank, by what it did ("quorum", "forward", "exchange", ...).

    quorum: its id. replicas: of the quorum. healthy: those that trained. role: "healthy", "recovering" or
    "finished". committed: whether the update was applied; if not, why says what happened here. loss: mean over the
    healthy, None without a commit. began: on this rank's monotonic clock (the same for all processes of a machine).
    """

    step: int
    quorum: int
    replicas: tuple[int, ...]
    healthy: tuple[int, ...]
    role: str
    committed: bool
    why: str
    loss: float | None
    began: float
    seconds: dict[str, float]


@dataclass
class Result:
    """What one rank of one replica did until the end.

    steps: that its state has behind it. finished: whether it came to the last one; False for a replica that came back
    when the others were through, and for a spare that nobody needed. state: checksum of the final state of this rank.
    positions: samples consumed of every stream. transferred: bytes of states, fetched and served. weights: this
    rank's part, by name, if it was asked for. first_step: seconds of the work before checking in. unsaved: why
    checkpoints could not be written; the run goes on without them.
    """

    replica: int
    rank: int
    incarnation: int
    steps: int
    finished: bool
    state: str
    positions: tuple[int, ...]
    attempts: list[Attempt] = field(default_factory=list)
    transferred: dict[str, int] = field(default_factory=lambda: {"fetched": 0, "served": 0})
    first_step: float = 0.0
    weights: dict[str, Any] | None = None
    unsaved: list[str] = field(default_factory=list)

    @property
    def losses(self) -> dict[int, float]:
        """Step -> loss of the steps that this rank committed."""
        return {a.step: a.loss for a in self.attempts if a.committed and a.loss is not None}

    def __repr__(self) -> str:
        how = "finished" if self.finished else "left behind"
        return (f"Result(replica {self.replica} rank {self.rank}, incarnation {self.incarnation}: {self.steps} steps, "
                f"{how}, state {self.state})")  # fmt: skip
