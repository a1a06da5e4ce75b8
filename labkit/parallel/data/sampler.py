"""Which examples a rank sees, agreed on by all ranks without a message.

All ranks draw the same permutation of an epoch. Step s of the world takes the next `batch * N` entries of it, and
rank r the r-th part of these. So ranks are disjoint, and a world of any size with the same `batch * N` takes the same
steps. What to do with the last examples, where they do not fill a step, is the only question:

    last="pad"     they are shared out evenly; where they do not divide, examples from the start of the epoch are
                   seen a second time. Every rank takes equal steps.
    last="drop"    they are left out of this epoch. Every batch is full.
    last="exact"   they are shared out as `torch.tensor_split` does: each example once. Ranks may get batches of
                   different sizes, and some none at all: use average="examples" and `join`.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import torch
from torch import Tensor

from labkit.collectives.chunks import even_sizes
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group


class Sampler:
    """Indices of `count` examples for one rank, `batch` at a time.

    place: a `Group`, or (rank, size). shuffle: a new order in each epoch, a function of `seed` and the epoch only.
    last: see the module. Raises RefusedError if the rank would never get a batch.
    """

    def __init__(
        self, count: int, place: Group | tuple[int, int], *, batch: int, seed: int = 0, shuffle: bool = True,
        last: str = "pad",
    ):  # fmt: skip
        self.rank, self.size = place if isinstance(place, tuple) else (place.rank, place.size)
        if count < 1 or batch < 1:
            raise RefusedError(f"Sampler(count={count}, batch={batch}): both must be at least 1")
        if not 0 <= self.rank < self.size:
            raise RefusedError(f"rank {self.rank} is not in a world of {self.size}: ranks go from 0 to {self.size - 1}")
        if last not in ("pad", "drop", "exact"):
            raise RefusedError(f"Sampler(last={last!r}): 'pad', 'drop' or 'exact'")
        if last == "drop" and count < batch * self.size:
            raise RefusedError(
                f"one step of {self.size} ranks takes {batch * self.size} examples, and with last='drop' "
                f"none of the {count} would be seen: use a smaller batch, or 'pad'"
            )
        self.count, self.batch, self.seed, self.shuffle, self.last = count, batch, seed, shuffle, last

    def epoch(self, number: int) -> Iterator[Tensor]:
        """This rank's batches of epoch `number`: int64 of shape (batch,), the last one perhaps shorter."""
        order = self._order(number)
        step = self.batch * self.size
        full = self.count // step
        for start in range(0, full * step, step):
            yield order[start + self.rank * self.batch :][: self.batch]
        mine = self._rest(order, order[full * step :])
        if len(mine):
            yield mine

    def __len__(self) -> int:
        """Batches of this rank in an epoch."""
        full, rest = divmod(self.count, self.batch * self.size)
        return full + bool(rest and (self.last == "pad" or (self.last == "exact" and self.rank < rest)))

    def _order(self, number: int) -> Tensor:
        if not self.shuffle:
            return torch.arange(self.count)
        # Not seed + number: epoch 1 of seed 0 would be epoch 0 of seed 1
        mixed = Random(f"{self.seed} {number}").getrandbits(63)
        generator = torch.Generator().manual_seed(mixed)
        return torch.randperm(self.count, generator=generator)

    def _rest(self, order: Tensor, rest: Tensor) -> Tensor:
        """This rank's part of what does not fill a step."""
        if self.last == "drop":
            return rest[:0]
        if self.last == "pad":
            missing = -len(rest) % self.size
            rest = torch.cat([rest, order.repeat(-(-missing // self.count))[:missing]])
        sizes = even_sizes(len(rest), self.size)
        return rest[sum(sizes[: self.rank]) :][: sizes[self.rank]]
