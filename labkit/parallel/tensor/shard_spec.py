"""Which part of a parameter a rank holds, and how the parts make the whole again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Tensor, nn

from labkit.collectives.chunks import even_sizes


@dataclass(frozen=True)
class ShardSpec:
    """`ranges[r]` are the [begin, end) of rank r along dimension `dim` of the whole tensor, in their order there.

    A parameter can have several ranges a rank: queries, keys and values stand one below the other in one matrix,
    and a rank holds rows of each.
    """

    dim: int
    ranges: tuple[tuple[tuple[int, int], ...], ...]
    sections: tuple[int, ...] = field(default=(), compare=False)  # the lengths that were cut, one after the other
    count: int = field(default=0, compare=False)  # the equal shards of each section; 0 for an even cut

    @classmethod
    def even(cls, dim: int, sections: Sequence[int], size: int) -> ShardSpec:
        """Each of the `sections` (lengths, one after the other) cut for `size` ranks as `torch.tensor_split` cuts."""
        begins = [0, *accumulate(sections)]
        ranges = []
        for rank in range(size):
            mine = []
            for begin, length in zip(begins, sections, strict=False):
                edges = [begin, *accumulate(even_sizes(length, size), initial=begin)][1:]
                mine.append((edges[rank], edges[rank + 1]))
            ranges.append(tuple(mine))
        return cls(dim, tuple(ranges), tuple(sections))

    @classmethod
    def of_shards(cls, dim: int, sections: Sequence[int], shards: Sequence[Sequence[int]]) -> ShardSpec:
        """Each of the `sections` falls into equal shards, and rank r holds those of `shards[r]`, in that order.

        shards: numbers from 0 on, each on one rank; a rank may have none. Their count must divide each section.
        """
        count = sum(map(len, shards))
        begins = [0, *accumulate(sections)]
        ranges = []
        for mine in shards:
            found: list[tuple[int, int]] = []
            for begin, length in zip(begins, sections, strict=False):
                width, new = length // count, True
                for shard in mine:
                    start, end = begin + shard * width, begin + (shard + 1) * width
                    if not new and found[-1][1] == start:  # it goes on where the last one ended
                        found[-1] = (found[-1][0], end)
                    else:
                        found.append((start, end))
                    new = False
            ranges.append(tuple(found))
        return cls(dim, tuple(ranges), tuple(sections), count)

    def other(self, shards: Sequence[Sequence[int]]) -> ShardSpec:
        """The same tensor, cut by the same shards, but held by other ranks."""
        return ShardSpec.of_shards(self.dim, self.sections, shards)

    def places(self, rank: int) -> Tensor:
        """Where the numbers of `rank`'s part stand along `dim` of the whole, in their order in the part: (part,)."""
        return torch.cat([torch.arange(*range_) for range_ in self.ranges[rank]] or [torch.arange(0)])

    @property
    def sizes(self) -> list[int]:
        """Length of each rank's part along `dim`."""
        return [sum(end - begin for begin, end in mine) for mine in self.ranges]

    def take(self, whole: Tensor, rank: int) -> Tensor:
        """The part of `rank`: a new tensor."""
        return torch.cat([whole.narrow(self.dim, begin, end - begin) for begin, end in self.ranges[rank]], self.dim)

    def put(self, part: Tensor, rank: int, whole: Tensor) -> None:
        """Write the part of `rank` to its place in `whole`."""
        lengths = [end - begin for begin, end in self.ranges[rank]]
        for (begin, end), piece in zip(self.ranges[rank], part.split(lengths, self.dim), strict=True):
            whole.narrow(self.dim, begin, end - begin).copy_(piece)


def shard_specs_of(module: nn.Module) -> Iterator[tuple[str, nn.Parameter, ShardSpec | None]]:
    """(name, parameter, its spec) of every parameter of `module`, each once; None where every rank holds the whole.

    A layer says which of its own parameters are cut in its attribute `shard_specs`, by name.
    """
    seen = set[int]()
    for prefix, part in module.named_modules():
        known = getattr(part, "shard_specs", {})
        for name, p in part.named_parameters(prefix, recurse=False):
            if id(p) not in seen:
                seen.add(id(p))
                yield name, p, known.get(name.rpartition(".")[2])
