"""Which examples a rank sees at which step: agreed on by every rank, without a message."""

from collections.abc import Iterator

import torch
from torch import Tensor


def batch_indices(count: int, batch: int, seed: int = 0, rank: int = 0, world: int = 1) -> Iterator[Tensor]:
    """Indices below `count`, `batch` of them for this rank at each step, without end.

    Every rank draws the same permutation from `seed`, a new one each epoch. Step s takes the next
    `batch * world` entries and rank r the r-th part of these, int64 of shape (batch,). So the ranks
    of a step are disjoint, and side by side they are the batch of one rank with `batch * world`.
    No index returns within an epoch; the last `count % (batch * world)` of it are left out.

    Raises ValueError, at the call, for a rank outside the world or a batch larger than the data.
    """
    if batch < 1 or world < 1:
        raise ValueError(f"batch={batch}, world={world}: both must be at least 1")
    if not 0 <= rank < world:
        raise ValueError(f"rank={rank} is not in a world of {world}: ranks are 0 to {world - 1}")
    if world > count:
        raise ValueError(f"world={world}, but there are only {count} examples: use at most {count} ranks")
    if batch * world > count:
        raise ValueError(
            f"one step needs batch * world = {batch} * {world} = {batch * world} examples, but there are "
            f"only {count}: make the batch at most {count // world}"
        )
    return _walk(count, batch, seed, rank, world)


def _walk(count: int, batch: int, seed: int, rank: int, world: int) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(count, generator=generator)
        for start in range(0, count - batch * world + 1, batch * world):
            mine = start + rank * batch
            yield order[mine : mine + batch]
