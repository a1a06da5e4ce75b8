"""What the service hands out: who trains the next step together, who is behind, and from whom to fetch.

A *version* names a state without looking at it: (step, lineage). `step` is the step that this state is about to
train, `lineage` the id of the quorum under which its last update was committed (0: none, the state as built). Two
replicas with the same version hold the same state: all members of a quorum begin from one version and apply one
update. The step alone does not suffice: one replica may commit step 7 that the others gave up, and they may then
commit another step 7 without it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

Version = tuple[int, int]


@dataclass(frozen=True)
class Member:
    """One replica in a quorum: which life of it, the version of its state, and what it told the others in `data`."""

    replica: int
    incarnation: int
    step: int
    lineage: int = 0
    data: dict[str, Any] = field(default_factory=dict)

    @property
    def version(self) -> Version:
        return (self.step, self.lineage)


@dataclass(frozen=True)
class Quorum:
    """Members in order of replica. `id` grows; it changes whenever the members' connections must be made anew.

    step, lineage: the version from which this step begins, the highest among the members.
    waited: seconds from the first join of the round to the answer, by the service's clock.
    """

    id: int
    step: int
    lineage: int
    members: tuple[Member, ...]
    waited: float = 0.0

    @property
    def version(self) -> Version:
        return (self.step, self.lineage)

    @property
    def replicas(self) -> tuple[int, ...]:
        """The members' numbers, ascending."""
        return tuple(m.replica for m in self.members)

    @property
    def lives(self) -> frozenset[tuple[int, int]]:
        """(replica, incarnation) of every member."""
        return frozenset((m.replica, m.incarnation) for m in self.members)

    @property
    def healthy(self) -> tuple[Member, ...]:
        """Those that hold the state this step begins with: they train. Never empty."""
        return tuple(m for m in self.members if m.version == self.version)

    @property
    def recovering(self) -> tuple[Member, ...]:
        """Those that have to fetch that state, and contribute zero with weight zero."""
        return tuple(m for m in self.members if m.version != self.version)

    def member(self, replica: int) -> Member:
        """The member of this number; KeyError if it has none."""
        for m in self.members:
            if m.replica == replica:
                return m
        raise KeyError(f"replica {replica} is not in quorum {self.id}: {list(self.replicas)}")

    def is_healthy(self, replica: int) -> bool:
        return self.member(replica).version == self.version

    def source_of(self, replica: int, rank: int, attempt: int = 0) -> Member:
        """The healthy member from whose rank `rank` that rank of a recovering `replica` fetches the state.

        Neighbouring ranks, and the same rank of several recovering replicas, go to different sources. attempt: how
        often this rank has failed to fetch; every attempt is another source, until all were tried.
        """
        behind = [m.replica for m in self.recovering]
        if replica not in behind:
            raise ValueError(f"replica {replica} is not recovering in quorum {self.id}: {behind} are")
        healthy = self.healthy
        return healthy[(behind.index(replica) + rank + attempt) % len(healthy)]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(found: dict[str, Any]) -> Quorum:
        return Quorum(**{**found, "members": tuple(Member(**m) for m in found["members"])})


@dataclass(frozen=True)
class Registration:
    """Every rank of one incarnation has checked in. peers: what each brought as `data`, by rank."""

    replica: int
    incarnation: int
    peers: tuple[dict[str, Any], ...]
