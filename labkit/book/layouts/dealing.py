"""A board on which shards are dealt out by hand, and which says what a layout costs.

    board = shard_board(12, healthy=4, reduced=3)
    board.move([3, 7, 11], to=3)

A board does not change: `move` gives a new one, so a cell can be run again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.book.drawing.figure import Figure
from labkit.book.drawing.units import listing, plural
from labkit.book.layouts.shards import in_words, moves, places, shard_layouts

Layout = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class ShardBoard:
    """Shards of a replica of `healthy` ranks whose gradients `reduced` ranks sum. compute, sync: shards by rank."""

    healthy: int
    reduced: int
    sync: Layout
    compute: Layout

    @property
    def num_shards(self) -> int:
        return sum(map(len, self.sync))

    def move(self, shards: int | Iterable[int], to: int) -> ShardBoard:
        """A board on which rank `to` computes with these shards. Who sums them stays.

        Raises ValueError for a shard or a rank that does not exist, or a rank that would be left without a shard.
        """
        wanted = [shards] if isinstance(shards, int) else list(shards)
        holder = places(self.compute)
        for shard in wanted:
            if shard not in holder:
                raise ValueError(f"there is no shard {shard!r}: they are 0 to {self.num_shards - 1}")
        if to not in range(self.healthy):
            raise ValueError(f"there is no rank {to!r}: the replica has ranks 0 to {self.healthy - 1}")
        holder |= dict.fromkeys(wanted, to)
        made = tuple(tuple(s for s in sorted(holder) if holder[s] == rank) for rank in range(self.healthy))
        for rank, mine in enumerate(made):
            if self.compute[rank] and not mine:
                raise ValueError(f"rank {rank} would be left without a shard: each rank needs one")
        return ShardBoard(self.healthy, self.reduced, self.sync, made)

    @property
    def moved(self) -> int:
        """Shards whose gradients must change their rank before the sum."""
        return len(moves(self))

    @property
    def fewest(self) -> int:
        """How many must, if all ranks hold as many as the others, to one: what the extra ranks hold then."""
        each, over = divmod(self.num_shards, self.healthy)
        return (self.healthy - self.reduced) * each + max(0, over - self.reduced)

    @property
    def pace(self) -> float:
        """How much longer than with an even share the rank with the most shards computes."""
        return max(map(len, self.compute)) * self.healthy / self.num_shards

    @property
    def verdict(self) -> str:
        """What is good or bad about it, in a sentence."""
        idle = [str(rank) for rank, mine in enumerate(self.compute) if not mine]
        if idle:
            return (
                f"{f'Rank {idle[0]} has' if len(idle) == 1 else f'Ranks {listing(idle)} have'} nothing to compute with."
            )
        most, least = (f(map(len, self.compute)) for f in (max, min))
        if most - least > 1:
            return f"Ranks hold {least} to {most} shards: all wait for the one with {most}."
        if self.moved > self.fewest:
            return f"Even. But {plural(self.moved, 'shard')} move, where {self.fewest} would do."
        return f"Even, and no fewer than {plural(self.moved, 'shard')} could move."

    def row(self, name: str) -> dict[str, Any]:
        """The board as a row of a table."""
        most = max(map(len, self.compute))
        return {"layout": name, "most on a rank": most, "slower than even": f"{self.pace:.2f}", "moved": self.moved,
                "of all": f"{self.moved / self.num_shards:.1%}"}  # fmt: skip

    def figure(self) -> Figure:
        """The board as a picture."""
        return shard_layouts(self, title="A layout by hand", sentence=f"{self.verdict} {in_words(self)}")

    def __repr__(self) -> str:
        return self.figure().text

    def _ipython_display_(self) -> None:
        self.figure()._ipython_display_()


def shard_board(
    num_shards: int, healthy: int, reduced: int, compute: Sequence[Sequence[int]] | None = None
) -> ShardBoard:  # fmt: skip
    """A board whose first `reduced` ranks hold all shards, in stretches; the others wait for some.

    compute: another layout to begin with, shards by rank. Raises ValueError: fewer shards than ranks, no ranks, more
    reduced ranks than healthy ones, or a layout that does not hold every shard once.
    """
    for name, value in (("num_shards", num_shards), ("healthy", healthy), ("reduced", reduced)):
        if type(value) is not int or value < 1:
            raise ValueError(f"{name}={value!r}: a whole number, 1 or more")
    if reduced > healthy or num_shards < healthy:
        raise ValueError(
            f"{num_shards} shards, {healthy} ranks, {reduced} of them left in the other replica: there "
            "must be a shard for each rank, and no more ranks left than there were"
        )
    each, over = divmod(num_shards, reduced)
    edges = [rank * each + min(rank, over) for rank in range(reduced + 1)]
    sync = tuple(tuple(range(a, b)) for a, b in zip(edges, edges[1:], strict=False))
    if compute is None:
        return ShardBoard(healthy, reduced, sync, (*sync, *[() for _ in range(healthy - reduced)]))
    if len(compute) != healthy or sorted(s for mine in compute for s in mine) != list(range(num_shards)):
        raise ValueError(f"a layout needs {healthy} lists that hold the shards 0 to {num_shards - 1}, each once")
    return ShardBoard(healthy, reduced, sync, tuple(tuple(mine) for mine in compute))
