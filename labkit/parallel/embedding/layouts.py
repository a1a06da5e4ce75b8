"""Which rank holds which part of a table of `num` rows and `dim` columns.

`Rows` cuts it into buckets of rows: bucket b belongs to rank owners[b], so a bucket is what can move between ranks, as
the hash slots of a distributed store are. One bucket a rank is plain row-wise sharding, and one bucket in all is a
table that lies whole on one rank (table-wise). `Columns` gives every rank some columns of all rows.

Both answer the same questions. Whom does a rank ask for ids (`ask`), how are the answers put together (`join`), how is
a gradient cut for those who hold its rows (`cut`), and where in its store has a rank an id (`places`)?
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from labkit.collectives.chunks import even_sizes
from labkit.wire.errors import RefusedError


class Asked(NamedTuple):
    """Whom ids are asked of: ids[order], of which the first counts[0] go to rank 0, the next counts[1] to rank 1 ..."""

    order: Tensor
    counts: list[int]


class Rows:
    """Row-wise: by="range" makes buckets of neighbours, as `torch.tensor_split` does, and by="modulo" bucket id % B.

    Where ids are given by popularity, a range has all the hot rows and modulo spreads them.
    widths: columns that each rank holds, which are all.
    """

    def __init__(self, num: int, dim: int, size: int, owners: Sequence[int], by: str = "range") -> None:
        if by not in ("range", "modulo"):
            raise RefusedError(f"by={by!r}: rows are cut by 'range' or by 'modulo'")
        if not owners or len(owners) > num or not all(type(r) is int and 0 <= r < size for r in owners):
            raise RefusedError(
                f"owners={list(owners)!r:.60}: needs a rank from 0 to {size - 1} for each bucket of rows, and at least "
                f"one and at most {num} buckets"
            )
        self.num, self.size, self.by, self.owners = num, size, by, list(owners)
        self.widths = [dim] * size
        buckets = len(self.owners)
        self._sizes = even_sizes(num, buckets)  # of both cuts: the first num % B buckets have one row more
        self._starts = torch.tensor([0, *accumulate(self._sizes)][:-1])
        filled, base = [0] * size, []
        for owner, rows in zip(self.owners, self._sizes, strict=True):
            base.append(filled[owner])
            filled[owner] += rows
        self.rows_by_rank = filled
        self._base, self._owner = torch.tensor(base), torch.tensor(self.owners)

    def bucket(self, ids: Tensor) -> Tensor:
        """The bucket of each id."""
        if self.by == "modulo":
            return ids % len(self.owners)
        return torch.searchsorted(self._starts.to(ids.device), ids, right=True) - 1

    def owner(self, ids: Tensor) -> Tensor:
        """The rank that holds each id."""
        return self._owner.to(ids.device)[self.bucket(ids)]

    def places(self, ids: Tensor) -> Tensor:
        """Where each id lies in the store of its owner: buckets one after the other, and in each the ids rising."""
        bucket = self.bucket(ids)
        inside = ids // len(self.owners) if self.by == "modulo" else ids - self._starts.to(ids.device)[bucket]
        return self._base.to(ids.device)[bucket] + inside

    def ids_of(self, bucket: int) -> Tensor:
        """The ids of one bucket, rising."""
        if self.by == "modulo":
            return torch.arange(bucket, self.num, len(self.owners))
        start = int(self._starts[bucket])
        return torch.arange(start, start + self._sizes[bucket])

    def held(self, rank: int) -> Tensor:
        """The ids that `rank` holds, in the order of its store."""
        mine = [self.ids_of(b) for b, owner in enumerate(self.owners) if owner == rank]
        return torch.cat(mine) if mine else torch.empty(0, dtype=torch.int64)

    def ask(self, ids: Tensor) -> Asked:
        """Each id of its owner."""
        owner = self.owner(ids)
        return Asked(owner.argsort(stable=True), owner.bincount(minlength=self.size).tolist())

    def join(self, parts: Sequence[Tensor], asked: Asked) -> Tensor:
        """Rows in the order of the ids, of what each rank answered."""
        rows = torch.cat(list(parts))
        return torch.empty_like(rows).index_copy_(0, asked.order, rows)

    def cut(self, rows: Tensor, asked: Asked) -> list[Tensor]:
        """The other way: for each rank what belongs to its rows."""
        return list(rows[asked.order].split(asked.counts))


class Columns:
    """Column-wise: rank r holds columns `torch.tensor_split(table, N, dim=1)[r]` of all rows.

    No shard can be hot, since all ranks are asked for every id; in return every id is sent to all of them.
    """

    def __init__(self, num: int, dim: int, size: int) -> None:
        if dim < size:
            raise RefusedError(f"shard='columns' of {dim} columns on {size} ranks: every rank needs one or more")
        self.num, self.size = num, size
        self.widths = even_sizes(dim, size)
        self.rows_by_rank = [num] * size

    def places(self, ids: Tensor) -> Tensor:
        return ids

    def held(self, rank: int) -> Tensor:
        return torch.arange(self.num)

    def columns(self, rank: int) -> slice:
        """The columns that `rank` holds."""
        start = sum(self.widths[:rank])
        return slice(start, start + self.widths[rank])

    def ask(self, ids: Tensor) -> Asked:
        """Each id of every rank."""
        return Asked(torch.arange(len(ids), device=ids.device).repeat(self.size), [len(ids)] * self.size)

    def join(self, parts: Sequence[Tensor], asked: Asked) -> Tensor:
        return torch.cat(list(parts), 1)

    def cut(self, rows: Tensor, asked: Asked) -> list[Tensor]:
        return list(rows.split(self.widths, 1))


Layout = Rows | Columns
