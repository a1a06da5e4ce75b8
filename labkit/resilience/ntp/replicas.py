"""Who is in which replica, how wide each is, and what every rank holds because of that.

The narrowest replica of the job sets the sync layout. Each replica lays out its own shards for its own width, so one
job can have replicas of several widths at once. A replica's ranks have positions, 0 to its width - 1; when one is lost
those behind it move up, so it does not matter which one it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from labkit.models.gpt import GPTConfig
from labkit.parallel.tensor.placement import Placement, counts
from labkit.wire.errors import RefusedError

from .shard_map import ShardMap, shard_map


@dataclass(frozen=True)
class Replicas:
    """members[r]: the world ranks of replica r, by position. A replica that has lost all of its ranks is not here."""

    members: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        every = [rank for ranks in self.members for rank in ranks]
        if not every:
            raise RefusedError("a job needs a replica, and none is left: begin again from a checkpoint")
        if not all(self.members):
            empty = next(r for r, ranks in enumerate(self.members) if not ranks)
            raise RefusedError(f"replica {empty} has no rank: a replica that is lost whole is left out")
        if len(set(every)) != len(every):
            raise RefusedError(f"a rank is named twice in {self.members}")

    @classmethod
    def of(cls, *widths: int) -> Replicas:
        """World ranks in order: `Replicas.of(4, 3)` has (0, 1, 2, 3) and (4, 5, 6)."""
        if not widths or any(type(w) is not int or w < 1 for w in widths):
            raise RefusedError(f"widths {list(widths)}: each replica needs one rank or more")
        edges = [sum(widths[:i]) for i in range(len(widths) + 1)]
        return cls(tuple(tuple(range(a, b)) for a, b in zip(edges, edges[1:], strict=False)))

    @property
    def ranks(self) -> list[int]:
        """All world ranks, ascending."""
        return sorted(rank for ranks in self.members for rank in ranks)

    @property
    def widths(self) -> list[int]:
        return [len(ranks) for ranks in self.members]

    @property
    def narrowest(self) -> int:
        """Ranks of the sync layout."""
        return min(self.widths)

    def place(self, rank: int) -> tuple[int, int]:
        """(replica, position) of a world rank."""
        for r, ranks in enumerate(self.members):
            if rank in ranks:
                return r, ranks.index(rank)
        raise RefusedError(f"rank {rank} is in no replica: they have {self.ranks}")

    def only(self, living: Iterable[int]) -> Replicas:
        """These replicas with none but the ranks of `living`. One that is lost whole is gone; the others move up."""
        left = set(living)
        kept = (tuple(rank for rank in ranks if rank in left) for ranks in self.members)
        return Replicas(tuple(ranks for ranks in kept if ranks))

    # -- what follows from the widths --------------------------------------------------------------------------

    def map_of(self, replica: int, num_shards: int) -> ShardMap:
        """The layouts of a layer of so many shards in this replica."""
        return shard_map(num_shards, self.widths[replica], self.narrowest)

    def computes(self, config: GPTConfig, replica: int) -> Placement:
        """What the ranks of this replica hold and compute with."""
        return Placement.by(config, lambda count: self.map_of(replica, count).compute)

    def check(self, config: GPTConfig) -> None:
        """Raise RefusedError if a replica is too wide for this model: each of its ranks needs a shard of every kind."""
        for name, count in counts(config).items():
            if count < max(self.widths):
                raise RefusedError(
                    f"{name}: {count} shards for a replica of {max(self.widths)} ranks. At most {count} "
                    "ranks can share this model; make more replicas of fewer ranks"
                )

    def shares(self, batch: int, *, stronger: bool = False) -> list[int]:
        """How many of `batch` examples each replica trains: as many a rank everywhere, as nearly as whole ones allow.

        So no replica waits long for another, and the batch is the same whoever has failed. [16 of 4 + 3: 9 and 7]
        stronger: the ranks of a narrow replica are so much faster (NTP-PW), so each replica trains as many. [8 and 8]
        """
        if type(batch) is not int or batch < len(self.members):
            raise RefusedError(f"a batch of {batch!r} for {len(self.members)} replicas: each needs an example")
        weights = [1] * len(self.members) if stronger else self.widths
        total = sum(weights)
        shares = [max(1, batch * weight // total) for weight in weights]
        by_need = sorted(range(len(shares)), key=lambda r: (shares[r] - batch * weights[r] / total, r))
        for r in by_need[: max(0, batch - sum(shares))]:
            shares[r] += 1
        while sum(shares) > batch:  # very unequal widths: the minimum of one has taken too many
            shares[max(range(len(shares)), key=lambda r: shares[r])] -= 1
        return shares


def positions_of(members: Sequence[int], group_ranks: Sequence[int]) -> list[int]:
    """World ranks as positions in a group, which has these world ranks in this order."""
    where = {rank: i for i, rank in enumerate(group_ranks)}
    return [where[rank] for rank in members]
