"""Many tensors side by side in one: `Flat` knows where each lies, and which shard of them each rank owns.

Buckets, ZeRO and FSDP all send, cut and free such flat tensors: one message instead of a hundred, and one cut
that need not respect where a parameter ends. Rank r owns `torch.tensor_split(whole, N)[r]`: shards differ by at
most one element, and nothing is padded. (PyTorch's FSDP pads each parameter instead, so that all shards are equal.)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from labkit.collectives.chunks import even_sizes


@dataclass(frozen=True)
class Piece:
    """Elements `start` to `stop` of tensor `name`, flattened, which lie at `offset` of their owner's shard."""

    name: str
    start: int
    stop: int
    offset: int


class Flat:
    """The layout of named tensors in one 1-D tensor, cut among `size` ranks. It holds no data.

    names, shapes: as given, in order. edges: tensor i takes elements edges[i] to edges[i + 1]. numel: of all.
    counts: elements that each rank owns. starts: where each rank's shard begins.
    """

    def __init__(self, named: Iterable[tuple[str, Tensor | torch.Size | Sequence[int]]], size: int = 1):
        pairs = [(name, tuple(x.shape) if isinstance(x, Tensor) else tuple(x)) for name, x in named]
        self.names, self.shapes = [name for name, _ in pairs], [shape for _, shape in pairs]
        self.edges = [0, *accumulate(math.prod(shape) for shape in self.shapes)]
        self.numel, self.size = self.edges[-1], size
        self.counts = even_sizes(self.numel, size)
        self.starts = [0, *accumulate(self.counts)][:-1]

    def views(self, whole: Tensor) -> list[Tensor]:
        """The tensors as views of `whole` (1-D, `numel` elements), in order and in their shapes."""
        edges = zip(pairwise(self.edges), self.shapes, strict=True)
        return [whole[start:stop].view(shape) for (start, stop), shape in edges]

    def part(self, whole: Tensor, rank: int) -> Tensor:
        """What `rank` owns of `whole`, as a view."""
        return whole[self.starts[rank] : self.starts[rank] + self.counts[rank]]

    def pack(self, tensors: Iterable[Tensor], out: Tensor) -> Tensor:
        """Copy `tensors` into `out` (1-D, `numel` elements, its own dtype and device), which is returned."""
        for view, x in zip(self.views(out), tensors, strict=True):
            view.copy_(x)
        return out

    def pieces(self, rank: int) -> list[Piece]:
        """Which elements of which tensors `rank` owns, in the order in which they lie in its shard."""
        first, last = self.starts[rank], self.starts[rank] + self.counts[rank]
        found = []
        for name, (start, stop) in zip(self.names, pairwise(self.edges), strict=True):
            begin, end = max(first, start), min(last, stop)
            if begin < end:
                found.append(Piece(name, begin - start, end - start, begin - first))
        return found
