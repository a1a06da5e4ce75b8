"""The fault-tolerant all-reduce, FTAR (Salpekar et al. 2026, "Training LLMs with Fault Tolerant HSDP on 100,000 GPUs").

    mean, group = average(gradient, group, quorum)     # over those that are alive; `group` is theirs from here on

It is the ring all-reduce, cut into chunks, with two changes. Every wait has a limit, that of the run (`timeout=`). And
a rank that loses its neighbour, or has waited too long, does not end: it leaves the group, so that the rank behind it
learns of the loss at once and leaves too, all the way around the ring. Then those that are alive form a new group, and
begin again with the gradients that they still have. No process is started anew, and no step is lost.

What the full one (`labkit.resilience.ftar`) does more: a chunk goes on as soon as it has arrived, in a window of S x C
bytes, several all-reduces queue up behind backward, and bugs are told apart from losses. Who is alive is decided by a
quorum service (`labkit.resilience.quorum`), and so is whether a step counts that only some have finished.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from labkit.wire import Group
from labkit.wire.errors import PeerLost, WaitTimeout


class Lost(Exception):
    """A neighbour is gone, or has kept this rank waiting for too long: the group is of no more use."""


def ft_all_reduce(x: Tensor, group: Group, chunk_bytes: int = 8 << 20, chunks: int = 4) -> Tensor:
    """Add up `x` over the group, in place, or raise Lost; then `x` holds half sums, and this rank has left."""
    try:
        ring(x.view(-1), group, max(1, chunk_bytes // x.itemsize), chunks)
    except (PeerLost, WaitTimeout) as error:
        group.leave()
        raise Lost(str(error)) from error
    return x


def ring(x: Tensor, group: Group, chunk: int, chunks: int) -> None:
    """A round for every `chunks` chunks of each part, so that a rank never has more than that on its way."""
    n, me = group.size, group.rank
    right, left = (me + 1) % n, (me - 1) % n
    count = max(1, -(-x.numel() // (n * chunk)))
    parts = [part.tensor_split(count) for part in x.tensor_split(n)]
    for first in range(0, count, chunks):
        for step in range(2 * n - 2):
            away, here = parts[(me - step) % n], parts[(me - step - 1) % n]
            for out, mine in zip(away[first : first + chunks], here[first : first + chunks], strict=True):
                received = group.exchange(out, right, mine.clone(), left)
                mine.copy_(mine + received if step < n - 1 else received)  # n - 1 steps add, the others pass on


def average(
    gradient: Tensor, group: Group, quorum: Callable[[int], Sequence[int]]
) -> tuple[Tensor, Group]:  # fmt: skip
    """The average over the ranks that are alive, and their group. quorum(epoch): who they are, the same for all."""
    epoch = 0
    while True:
        try:
            total = ft_all_reduce(gradient.clone(), group)  # of a copy: a half sum is of no use to anybody
            return total / group.size, group
        except Lost:
            epoch += 1
            group = group.rebuild(quorum(epoch), epoch)
