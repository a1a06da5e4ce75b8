"""The rows that a rank holds, each with the optimizer's state beside its weights: what moves a row moves all of it.

`read(places)` gives a copy of rows (u, width + state), `write(places, rows)` puts rows back; places (u,) are different
ones. `Plain` has all in one tensor. `Cached` keeps the hot rows in a small fast tier (a GPU's memory) before a large
slow one (the host's), as FBGEMM's tables in unified memory do; what is in the cache is newer than below it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from labkit.wire.errors import RefusedError


class Plain:
    """All rows in one tensor."""

    def __init__(self, rows: Tensor) -> None:
        self._rows = rows

    def read(self, places: Tensor, lookup: bool = False) -> Tensor:
        return self._rows[places]

    def write(self, places: Tensor, rows: Tensor) -> None:
        self._rows[places] = rows

    def all(self) -> Tensor:
        """Every row, in order of place. Not a copy."""
        return self._rows

    @property
    def nbytes(self) -> int:
        return self._rows.nbytes


class Cached:
    """`capacity` rows in a fast tier on `device`, all of them in a slow one.

    policy: who leaves when a row is missed. "lru": the row that was looked up longest ago. "lfu": the row that was
    looked up least often in all; a row that was missed enters only when it has been looked up more often than who would
    leave, so that what is rare does not wash the cache out.
    hits, misses: of rows looked up. moved_bytes: into the cache and back from it.
    """

    def __init__(self, rows: Tensor, capacity: int, policy: str = "lru", device: torch.device | None = None) -> None:
        if policy not in ("lru", "lfu"):
            raise RefusedError(f"policy={policy!r}: a cache is 'lru' or 'lfu'")
        if type(capacity) is not int or capacity < 1:
            raise RefusedError(f"cache={capacity!r}: a whole number of rows, 1 or more")
        self.capacity, self.policy = min(capacity, len(rows)), policy
        self.hits = self.misses = self.moved_bytes = 0
        self._slow, self._fast = rows, rows.new_empty((self.capacity, rows.shape[1]), device=device)
        where = self._fast.device
        self._slot = torch.full((len(rows),), -1, dtype=torch.int32, device=where)  # where a row is in the cache
        self._in = torch.full((self.capacity,), -1, device=where)  # which row is in a slot
        self._score = torch.zeros(len(rows), dtype=torch.int32, device=where)  # its last look-up, or how many it had
        self._lookups = 0

    def read(self, places: Tensor, lookup: bool = False) -> Tensor:
        """lookup: this counts as a use, and rows that are missed may enter."""
        slots = self._slot[places].long()
        missed = slots < 0
        rows = self._fast[slots.clamp_min(0)]
        rows[missed] = self._below(places[missed])
        if lookup:
            self._lookups += 1
            self._score[places] = self._score[places] + 1 if self.policy == "lfu" else self._lookups
            self.misses += int(missed.sum())
            self.hits += len(places) - int(missed.sum())
            self._admit(places[missed], rows[missed])
        return rows

    def write(self, places: Tensor, rows: Tensor) -> None:
        slots = self._slot[places].long()
        inside = slots >= 0
        self._fast[slots[inside]] = rows[inside]
        self._put_below(places[~inside], rows[~inside])

    def all(self) -> Tensor:
        """Every row, in order of place, as the slow tier is once all of the cache is written back to it."""
        full = self._in >= 0
        self._put_below(self._in[full], self._fast[full])
        return self._slow

    @property
    def nbytes(self) -> int:
        """Of the rows in both tiers, and of the index: 8 bytes a row, and 8 more a row in the cache."""
        index = self._slot.nbytes + self._score.nbytes + self._in.nbytes
        return self._slow.nbytes + self._fast.nbytes + index

    def _admit(self, places: Tensor, rows: Tensor) -> None:
        """Those missed with the highest scores take the slots with the lowest, while their own is higher."""
        best = self._score[places].argsort(descending=True, stable=True)[: self.capacity]
        standing = torch.where(self._in < 0, -1, self._score[self._in.clamp_min(0)])
        worst = standing.argsort(stable=True)[: len(best)]
        enter = self._score[places[best]] > standing[worst]
        best, slots = best[enter], worst[enter]
        leaving = self._in[slots]
        old = leaving >= 0
        self._put_below(leaving[old], self._fast[slots[old]])
        self._slot[leaving[old]] = -1
        self._fast[slots] = rows[best]
        self._in[slots] = places[best]
        self._slot[places[best]] = slots.int()
        self.moved_bytes += (len(slots) + int(old.sum())) * rows.shape[1] * rows.itemsize

    def _below(self, places: Tensor) -> Tensor:
        return self._slow[places.to(self._slow.device)].to(self._fast.device)

    def _put_below(self, places: Tensor, rows: Tensor) -> None:
        self._slow[places.to(self._slow.device)] = rows.to(self._slow.device)


Store = Plain | Cached
