"""Which shards each rank holds when replicas are of different width, and who sends what to whom.

A layer falls into k shards: heads, feed-forward columns, rows of the vocabulary. Any rank can hold any of them, as long
as the matrix before and the matrix after are cut alike. A healthy replica has N1 ranks, and the narrowest one of the
job N2 < N1, since it has lost some.

sync layout      stretches of shards for N2 ranks, as `torch.tensor_split` cuts them. In this layout gradients are
                 summed over the replicas: position i of each replica with position i of all others, one message long.
compute layout   what each rank of a healthy replica holds and computes with. Ranks 0 to N2 - 1 begin with the sync
                 layout, and give their last shards, in turn, to the extra ranks N2 to N1 - 1, until all hold k / N1.

Before the sum over replicas the extra ranks send the gradients of their shards to the ranks that own these in the sync
layout, and get the sums back afterwards. That moves 1 - N2 / N1 of the gradient, inside of a replica, where links are
fast. (Arfeen et al. 2025, "Nonuniform tensor parallelism", section 4.2.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from labkit.collectives.chunks import even_sizes
from labkit.wire.errors import RefusedError

Shards = list[list[int]]  # the numbers of the shards that each rank holds


@dataclass(frozen=True)
class ShardMap:
    """The two layouts of one replica. healthy: its ranks, N1. reduced: those of the narrowest replica, N2.

    sync: shards by rank, of N2 ranks (the extra ranks own none). compute: shards by rank, of N1 ranks. Both in the
    order in which the shards lie in the memory of a rank.
    """

    num_shards: int
    healthy: int
    reduced: int
    sync: Shards
    compute: Shards

    @property
    def owner(self) -> list[int]:
        """By shard: the rank that sums it over the replicas."""
        return _holders(self.sync, self.num_shards)

    @property
    def holder(self) -> list[int]:
        """By shard: the rank that computes with it."""
        return _holders(self.compute, self.num_shards)

    def gives(self, rank: int) -> dict[int, list[int]]:
        """The shards whose gradients `rank` sends before the sum, by the rank that owns them. Back it is the reverse.

        Only extra ranks give anything, and only ranks of the sync layout get anything.
        """
        found: dict[int, list[int]] = {}
        for shard in self.compute[rank]:
            owner = self.owner[shard]
            if owner != rank:
                found.setdefault(owner, []).append(shard)
        return found

    @property
    def counts(self) -> list[list[int]]:
        """counts[a][b]: shards that rank a sends to rank b before the sum over replicas; after it, b to a."""
        table = [[0] * self.healthy for _ in range(self.healthy)]
        for holder, owner in zip(self.holder, self.owner, strict=True):
            table[holder][owner] += holder != owner
        return table

    @property
    def moved(self) -> int:
        """Shards that change place: num_shards * (1 - reduced / healthy) where both divide."""
        return sum(map(sum, self.counts))

    @property
    def pace(self) -> float:
        """How much longer than k / N1 shards the rank with the most shards computes: 1.0 where N1 divides k.

        128 heads on 30 ranks: five on the slowest, 5 / (128 / 30) = 1.17.
        """
        return max(map(len, self.compute)) * self.healthy / self.num_shards


def shard_map(num_shards: int, healthy: int, reduced: int) -> ShardMap:
    """The layouts of a replica of `healthy` ranks in a job whose narrowest replica has `reduced`.

    num_shards: heads, groups of heads that share keys, feed-forward columns, rows of a vocabulary. It need not divide
    by either width: then some ranks hold one shard more, in the compute layout the first ones.
    Raises RefusedError: no ranks, more of them reduced than healthy, or fewer shards than ranks.
    """
    check_shards(num_shards, healthy, reduced)
    sync = cut_evenly(num_shards, reduced)
    keeps = even_sizes(num_shards, healthy)  # the longer ones first: with ranks that are in the sync layout, if they do
    compute = [mine[: keeps[rank]] for rank, mine in enumerate(sync)]
    given = [shard for rank, mine in enumerate(sync) for shard in mine[keeps[rank] :]]
    extra: Shards = [[] for _ in range(healthy - reduced)]
    for turn, shard in enumerate(given):  # in turn: from each rank about as many to every extra one
        extra[turn % len(extra)].append(shard)
    return ShardMap(num_shards, healthy, reduced, sync, compute + extra)


def naive_messages(num_shards: int, healthy: int, reduced: int) -> list[list[int]]:
    """Without resharding: table[a][b], shards that rank a of a healthy replica and rank b of a reduced one share.

    Both replicas are cut into stretches, and each pair of ranks that holds some of the same shards must sum those
    between them, over the slow links. 32 and 30 ranks, 12,000 columns: table[0][0] = 375, table[0][1] = 0,
    table[1][0] = 25, and so on.
    """
    check_shards(num_shards, healthy, reduced)
    wide = [0, *accumulate(even_sizes(num_shards, healthy))]
    narrow = [0, *accumulate(even_sizes(num_shards, reduced))]
    return [
        [max(0, min(wide[a + 1], narrow[b + 1]) - max(wide[a], narrow[b])) for b in range(reduced)]
        for a in range(healthy)
    ]


def cut_evenly(num_shards: int, ranks: int) -> Shards:
    """Stretches of shards, as `torch.tensor_split` cuts: `cut_evenly(5, 2) == [[0, 1, 2], [3, 4]]`."""
    edges = [0, *accumulate(even_sizes(num_shards, ranks))]
    return [list(range(edges[rank], edges[rank + 1])) for rank in range(ranks)]


def check_shards(num_shards: int, healthy: int, reduced: int) -> None:
    """Raise RefusedError unless a replica of `healthy` ranks and one of `reduced` can share `num_shards`."""
    for name, value in (("num_shards", num_shards), ("healthy", healthy), ("reduced", reduced)):
        if type(value) is not int or value < 1:
            raise RefusedError(f"{name}={value!r}: a whole number, 1 or more")
    if reduced > healthy:
        raise RefusedError(
            f"a reduced replica of {reduced} ranks and a healthy one of {healthy}: the reduced one is the narrower"
        )
    if num_shards < healthy:
        raise RefusedError(
            f"{num_shards} shards for {healthy} ranks: each rank needs one. At most {num_shards} ranks can "
            "share this layer"
        )


def _holders(layout: Sequence[Sequence[int]], num_shards: int) -> list[int]:
    by_shard = [-1] * num_shards
    for rank, mine in enumerate(layout):
        for shard in mine:
            by_shard[shard] = rank
    return by_shard
