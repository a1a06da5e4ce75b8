"""Power-of-two algorithms on any number of ranks: the ranks too many sit out behind a neighbour.

Recursive doubling and halving pair rank a with rank a xor 1, a xor 2, a xor 4 ..., which needs a power of
two. For N ranks let `size` be the largest power of two that fits, and `spare` = N - size. Among the first
2 * spare ranks each odd one hands its vector to the even one before it and waits; the others are "active" and
renumbered 0 .. size - 1. At the end the even one sends its neighbour the result. That costs two more rounds, of
up to M bytes each (Thakur, Rabenseifner & Gropp 2005, "Optimization of collective communication operations in
MPICH").

    7 ranks:   0 <- 1   2 <- 3   4 <- 5   6
    active:    0        1        2        3
"""

from __future__ import annotations

from torch import Tensor

from labkit.wire.group import Group
from labkit.wire.ops import ReduceOp


class PowerOfTwo:
    """The active ranks of a group: how many (`size`), my number among them (`index`), and who is who."""

    def __init__(self, group: Group):
        self.size = 1 << (group.size.bit_length() - 1)
        self.spare = group.size - self.size
        paired = group.rank < 2 * self.spare
        self.sits_out = paired and group.rank % 2 == 1
        self.stands_in = paired and not self.sits_out  # for the rank after me
        self.folded = group.rank | 1 if paired else group.rank  # the rank of my pair that sits out
        self.index = group.rank // 2 if paired else group.rank - self.spare

    def rank_of(self, index: int) -> int:
        """Group rank of active number `index`; `rank_of(size)` is the group's size and closes a range."""
        return 2 * index if index < self.spare else index + self.spare

    def distances(self) -> list[int]:
        """1, 2, 4, ... size / 2: how far apart partners are in each round."""
        return [1 << k for k in range(self.size.bit_length() - 1)]


def fold_in(x: Tensor, group: Group, team: PowerOfTwo, op: ReduceOp) -> None:
    """Ranks that sit out hand `x` to their neighbour, who adds it to its own."""
    if team.sits_out:
        group.send(x, to=group.rank - 1)
    elif team.stands_in:
        group.recv(x, source=group.rank + 1, op=op)


def fold_out(result: Tensor, group: Group, team: PowerOfTwo) -> None:
    """Ranks that sat out get `result` from their neighbour."""
    if team.sits_out:
        group.recv(result, source=group.rank - 1)
    elif team.stands_in:
        group.send(result, to=group.rank + 1)
