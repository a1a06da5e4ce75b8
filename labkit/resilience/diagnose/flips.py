"""On which message a bit flipped, when a ring all-reduce gave a wrong sum.

A flip while partial sums travel reaches all ranks alike, so replicas stay equal and no checksum of theirs shows it. But
the sum is deterministic: done again it comes out right, and the wrong one can be explained. Of all single flips (which
message, which bit) that could have happened to the element, only those are kept that give on every rank the very bits
that it got. What is left is nearly always one message. Whether its sender or its receiver is at fault, nobody can say
from the numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from labkit import collectives
from labkit.collectives.chunks import even_sizes
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group

from .verdict import Verdict
from .waits import Clue

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Flip:
    """The messages (sender, receiver) one of which was flipped; () if no single flip explains the result. bits: which
    bit, counted from the lowest, for each of them. element: of the flat tensor."""

    ways: tuple[tuple[int, int], ...]
    bits: tuple[int, ...]
    element: int

    @property
    def verdict(self) -> Verdict:
        """Of kind "corrupt": the two ends of the message, or of all that come into question."""
        ends = sorted({rank for way in self.ways for rank in way})
        told = "; ".join(f"bit {bit} flipped on the way from rank {s} to rank {r}"
                         for (s, r), bit in zip(self.ways, self.bits, strict=True))  # fmt: skip
        clue = Clue(frozenset(ends), "corrupt", f"element {self.element} of the sum: {told or 'no single flip fits'}")
        way = self.ways[0] if len(set(self.ways)) == 1 else None
        return Verdict("corrupt", tuple(ends), False, (clue,), way)


def find_flip(local: Tensor, result: Tensor, right: Tensor, group: Group) -> Flip | None:
    """Explain a wrong sum of a ring all-reduce; the same answer on every rank, which all call. None if nothing differs.

    local: what this rank brought to it. result: what it got. right: what the same all-reduce gave when done again.
    """
    for name, x in (("result", result), ("right", right)):
        if x.shape != local.shape or x.dtype != local.dtype:
            raise RefusedError(
                f"find_flip: {name} is {x.dtype}{list(x.shape)}, and local is {local.dtype}"
                f"{list(local.shape)}: give the three tensors of one all-reduce"
            )
    as_int = _INTEGERS[local.element_size()]
    flat, got, good = (x.detach().reshape(-1).contiguous() for x in (local, result, right))
    differs = torch.nonzero(got.view(as_int) != good.view(as_int)).flatten()
    first = int(differs[0]) if len(differs) else flat.numel()
    element = int(collectives.all_gather(torch.tensor([first], device=group.device), group).min())
    if element == flat.numel():
        return None
    both = torch.stack([flat[element], got[element]]).view(1, 2)
    table = collectives.all_gather(both, group, algorithm="ring")
    ways, bits = explain(table[:, 0].cpu(), table[:, 1].cpu().view(as_int), element, flat.numel())
    return Flip(ways, bits, element)


def explain(
    brought: Tensor, got: Tensor, element: int, numel: int
) -> tuple[tuple[tuple[int, int], ...], tuple[int, ...]]:
    """The single flips that turn `brought` (one number a rank) into `got` (the same, as integers of its bits).

    Follows `ring_all_reduce`: the partial sum sets out on the rank that has the number of the element's chunk, goes
    once around, and then the finished sum does.
    """
    n = len(brought)
    edges = torch.tensor(even_sizes(numel, n)).cumsum(0)
    start = int(torch.searchsorted(edges, element, right=True))
    order = [(start + k) % n for k in range(n)]
    masks = torch.tensor([1 << b for b in range(8 * brought.element_size() - 1)], dtype=torch.int64).to(got.dtype)
    masks = torch.cat([masks, torch.tensor([torch.iinfo(got.dtype).min], dtype=got.dtype)])
    found: list[tuple[tuple[int, int], int]] = []
    for hop in range(2 * (n - 1)):
        held = _around(brought, order, hop, masks)
        fits = (held.view(got.dtype) == got.view(n, 1)).all(dim=0)
        source, to = order[hop % n], order[(hop + 1) % n]
        found += [((source, to), int(bit)) for bit in torch.nonzero(fits).flatten()]
    return tuple(way for way, _ in found), tuple(bit for _, bit in found)


def _around(brought: Tensor, order: list[int], flipped: int, masks: Tensor) -> Tensor:
    """What each rank holds in the end (row), for each mask (column), if message number `flipped` is hit by it."""
    n = len(order)
    partial = brought[order[0]].expand(len(masks)).contiguous()
    for hop in range(n - 1):
        partial = brought[order[hop + 1]] + _hit(partial, masks, hop == flipped)
    held = partial.new_empty(n, len(masks))
    held[order[-1]] = partial
    for hop in range(n - 1, 2 * (n - 1)):
        partial = _hit(partial, masks, hop == flipped)
        held[order[(hop + 1) % n]] = partial
    return held


def _hit(x: Tensor, masks: Tensor, now: bool) -> Tensor:
    return (x.view(masks.dtype) ^ masks).view(x.dtype) if now else x
