"""What the audit of a run came to."""

from __future__ import annotations

from dataclasses import dataclass, field


class AuditFailed(RuntimeError):
    """A run whose logs break a promise. `report` has all that was found."""

    def __init__(self, report: Report):
        self.report = report
        super().__init__(f"{len(report.problems)} problems in the audit log:\n" + "\n".join(report.problems[:20]))


@dataclass(frozen=True)
class Update:
    """One step of the surviving lineage. before, after: samples consumed of every replica's stream.

    checksums: of the state after it, on rank 0, 1, ... of every replica that has it. committed: those replicas.
    members: of the quorum.
    """

    step: int
    quorum: int
    contributors: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    checksums: tuple[str, ...]
    committed: tuple[int, ...]
    members: tuple[int, ...] = ()

    @property
    def samples(self) -> dict[int, tuple[int, int]]:
        """Replica -> [first, last) of its stream that this step consumed."""
        return {c: (self.before[c], self.after[c]) for c in self.contributors}


@dataclass(frozen=True)
class Branch:
    """A commit off the lineage: replica `replica` alone had it, and died or took over another state."""

    step: int
    quorum: int
    replica: int
    incarnation: int
    contributors: tuple[int, ...]
    checksum: str


@dataclass
class Report:
    """What `check` found. problems: broken promises in words; none means the run is proven right.

    lineage: the updates behind the final state, step by step. branches: commits that led nowhere. consumed: samples of
    every stream in the final state. unwitnessed: contributions whose rank was killed before it could write its vote.
    """

    problems: list[str] = field(default_factory=list)
    lineage: list[Update] = field(default_factory=list)
    branches: list[Branch] = field(default_factory=list)
    consumed: tuple[int, ...] = ()
    lives: int = 0
    commits: int = 0
    refused: int = 0
    fetches: int = 0
    transferred: int = 0
    unwitnessed: int = 0
    torn: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.problems

    def require(self) -> Report:
        """This report; raises AuditFailed if anything is wrong."""
        if self.problems:
            raise AuditFailed(self)
        return self

    def __str__(self) -> str:
        head = "the audit found nothing wrong" if self.ok else f"the audit found {len(self.problems)} problems"
        used = f"{sum(self.consumed)} samples of {len(self.consumed)} streams, each once"
        rows = [
            f"{head}: {len(self.lineage)} steps, {used}",
            f"{self.commits} commits in {self.lives} lives of ranks, {self.fetches} states taken over "
            f"({self.transferred} bytes), {self.refused} votes against",
            f"{len(self.branches)} commits outside the history of the final state, "
            f"{self.unwitnessed} contributions without a vote",
        ]  # fmt: skip
        return "\n".join([*(rows if self.ok else [head, *rows[1:]]), *self.problems])
