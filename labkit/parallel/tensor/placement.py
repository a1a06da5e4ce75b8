"""Which shards of each layer a rank holds, where the ranks do not hold equal stretches of everything.

Attention falls into heads (with fewer heads of keys, into groups of heads that read the same keys), the feed-forward
pair into hidden columns, the vocabulary into ids. Any rank can hold any of them, in any order: what a shard of the
first matrix makes only the same shard of the second one reads, and a sum over the ranks does not ask who brought what.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from labkit.models.gpt import GPTConfig
from labkit.parallel.tensor.shard_spec import ShardSpec
from labkit.wire.errors import RefusedError

Shards = Sequence[Sequence[int]]  # shards[r]: the numbers of the shards that rank r holds, in their order there


@dataclass(frozen=True)
class Placement:
    """The shards of a GPT by rank: groups of heads, hidden columns of the feed-forward pair, ids of the vocabulary."""

    heads: Shards
    hidden: Shards
    vocab: Shards

    @classmethod
    def by(cls, config: GPTConfig, layout: Callable[[int], Shards]) -> Placement:
        """Each kind of shard laid out by `layout(count)`."""
        return cls(*(layout(count) for count in counts(config).values()))


def counts(config: GPTConfig) -> dict[str, int]:
    """How many shards of each kind a GPT has."""
    return {"heads": config.groups, "hidden": config.expansion * config.width, "vocab": config.vocab}


def shard_spec_of(dim: int, sections: Sequence[int], size: int, shards: Shards | None) -> ShardSpec:
    """The cut along `dim` by `shards`, or an even one where there are none."""
    return ShardSpec.even(dim, sections, size) if shards is None else ShardSpec.of_shards(dim, sections, shards)


def check_shards(lengths: Mapping[str, int], shards: Shards, size: int) -> None:
    """Raise RefusedError unless `size` ranks hold a shard or more each, every shard once, that divide all `lengths`."""
    count = sum(map(len, shards))
    if len(shards) != size:
        raise RefusedError(f"shards are given for {len(shards)} ranks, and this group has {size}")
    if sorted(shard for mine in shards for shard in mine) != list(range(count)):
        raise RefusedError(f"shards must be the numbers 0 to {count - 1}, each held by one rank")
    if any(not len(mine) for mine in shards):
        rank = next(r for r, mine in enumerate(shards) if not len(mine))
        raise RefusedError(f"rank {rank} holds no shard of {count}: at most {count} ranks can share this layer")
    for name, length in lengths.items():
        if length % count:
            raise RefusedError(f"{name} = {length} does not fall into {count} equal shards")
