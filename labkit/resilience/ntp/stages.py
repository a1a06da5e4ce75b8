"""Activations between pipeline stages of different width.

What a stage puts out is the same on all of its ranks, so they share the sending: with w ranks before the border and v
after it, the first min(w, v) ranks of each side are partners, and each pair carries one part. Behind the border the
parts are put together inside the replica, where links are fast. So a stage that has lost ranks has that much less
bandwidth to its neighbours, and sends no number twice. (Arfeen et al. 2025, "Nonuniform tensor parallelism", section
5.1.)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from labkit.collectives import all_gather
from labkit.collectives.chunks import even_sizes
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group


class Border:
    """Between two stages. group: any group with all ranks of both; before, after: their ranks in it, by position.

    Every rank of both stages makes it alike. Forward, ranks before the border call `send` and ranks after it `receive`;
    backward, with the gradient of what was sent, the other way round.
    """

    def __init__(self, group: Group, before: Sequence[int], after: Sequence[int]) -> None:
        for name, ranks in (("before", before), ("after", after)):
            if not ranks or len(set(ranks)) < len(ranks) or not all(0 <= r < group.size for r in ranks):
                raise RefusedError(
                    f"{name}={list(ranks)}: a stage needs one rank or more, each once, of 0 to {group.size - 1}"
                )
        if both := sorted({*before} & {*after}):
            raise RefusedError(f"rank {both[0]} is on both sides of the border")
        self.group = group
        self._sides = (list(before), list(after))
        self._mine = next((i for i, side in enumerate(self._sides) if group.rank in side), -1)
        if self._mine < 0:
            raise RefusedError(f"rank {group.rank} is on neither side of the border: {list(before)}, {list(after)}")
        self._place = self._sides[self._mine].index(group.rank)
        self._stage = group.subgroup(self._sides[self._mine])

    @property
    def pairs(self) -> int:
        """How many pairs of ranks carry a part: the width of the narrower stage."""
        return min(map(len, self._sides))

    def send(self, x: Tensor) -> None:
        """Send `x`, which all ranks of this stage have alike, to the other side: |x| / pairs bytes a rank of a pair."""
        if self._place < self.pairs:
            part = x.contiguous().view(-1).split(even_sizes(x.numel(), self.pairs))[self._place]
            self.group.send(part, self._sides[1 - self._mine][self._place])

    def receive(self, like: Tensor) -> Tensor:
        """What the other side sends, on every rank of this stage: a new tensor of the shape and dtype of `like`.

        Received: |x| / pairs bytes a rank of a pair; then an all-gather of the parts in this stage.
        """
        sizes = even_sizes(like.numel(), self.pairs)
        held = sizes + [0] * (self._stage.size - self.pairs)
        part = torch.empty(held[self._place], dtype=like.dtype, device=like.device)
        if self._place < self.pairs:
            self.group.recv(part, self._sides[1 - self._mine][self._place])
        return all_gather(part, self._stage, held).view(like.shape)
