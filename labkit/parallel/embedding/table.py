"""One table as a rank has it: a layout, the rows that it holds, and how they are updated."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from labkit.collectives import all_gather, all_reduce
from labkit.models.rows import uniform_rows
from labkit.parallel.embedding.hot import HotRows
from labkit.parallel.embedding.layouts import Columns, Layout, Rows
from labkit.parallel.embedding.optimizers import Rule
from labkit.parallel.embedding.stores import Cached, Plain, Store
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group

SHARDS = ("rows", "columns", "table")


@dataclass(frozen=True)
class TableConfig:
    """num rows of dim numbers.

    shard: "rows", "columns", or "table", which lies whole on rank `owner`. by: "range" or "modulo", see `Rows`.
    buckets: pieces that can move between ranks, in place of one a rank. mode: a bag of ids is looked up as the "sum" or
    "mean" of its rows, or with None every id by itself. cache: rows in a fast tier, by `policy`: see `Cached`.
    """

    num: int
    dim: int
    shard: str = "rows"
    by: str = "range"
    buckets: int | None = None
    owner: int = 0
    mode: str | None = "sum"
    cache: int | None = None
    policy: str = "lru"

    def __post_init__(self) -> None:
        for name in ("num", "dim", *(("buckets",) if self.buckets is not None else ())):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise RefusedError(f"TableConfig({name}={value!r}): needs a whole number, 1 or more")
        if self.shard not in SHARDS:
            raise RefusedError(f"shard={self.shard!r}: {', '.join(map(repr, SHARDS))}")
        if self.mode not in ("sum", "mean", None):
            raise RefusedError(f"mode={self.mode!r}: 'sum', 'mean' or None")

    def layout(self, size: int) -> Layout:
        """Who holds what among `size` ranks, before anything has moved."""
        if self.shard == "columns":
            return Columns(self.num, self.dim, size)
        if self.shard == "table":
            return Rows(self.num, self.dim, size, [self.owner])
        buckets = self.buckets or min(size, self.num)
        return Rows(self.num, self.dim, size, [b * size // buckets for b in range(buckets)]
                    if self.by == "range" else [b % size for b in range(buckets)], self.by)  # fmt: skip


class Table:
    """This rank's part of a table.

    init(ids): rows (u, dim) of the table at the start; `whole.__getitem__` cuts an existing one. The default is
    `uniform_rows`. asked: how often each row here was asked for by a rank, int32, since rows last moved.
    """

    def __init__(
        self, name: str, config: TableConfig, rule: Rule, group: Group, dtype: torch.dtype = torch.float32,
        init: Callable[[Tensor], Tensor] | None = None, seed: int = 0,
    ) -> None:  # fmt: skip
        self.name, self.config, self.rule, self.group, self.dtype = name, config, rule, group, dtype
        self.layout = config.layout(group.size)
        self.width = self.layout.widths[group.rank]
        self.hot: HotRows | None = None
        self._steps = 0
        ids = self.layout.held(group.rank)
        full = torch.zeros(len(ids), self.row_width, dtype=dtype)
        mine = self.layout.columns(group.rank) if isinstance(self.layout, Columns) else slice(None)
        for part, rows in zip(ids.split(1 << 12), full.split(1 << 12), strict=True):  # no second table while it begins
            drawn = uniform_rows(part, config.num, config.dim, seed) if init is None else init(part)
            rows[:, : self.width] = drawn[:, mine]
        self.hold(full)

    @property
    def row_width(self) -> int:
        """Numbers of a row as a rank stores it: its weights and its state."""
        return self.width + self.rule.state_width(self.width)

    def hold(self, rows: Tensor) -> None:
        """From now on these are this rank's rows, (rows, row_width) in order of place."""
        config, device = self.config, self.group.device
        self.store: Store = (
            Plain(rows.to(device)) if config.cache is None else Cached(rows, config.cache, config.policy, device)
        )
        self.asked = torch.zeros(len(rows), dtype=torch.int32, device=device)

    def look_up(self, ids: Tensor) -> Tensor:
        """Weights (u, width) of ids that this rank holds, all different."""
        places = self.layout.places(ids)
        self.asked[places] += 1
        return self.store.read(places, lookup=True)[:, : self.width]

    def add_up(self, pushed: Iterable[tuple[Tensor, Tensor]], scale: float) -> tuple[Tensor, Tensor]:
        """(ids, gradients) of the touched rows, of what each rank pushed: (ids, gradients), ids of one rank different.

        Added in the order of the ranks, so that equal pushes give equal bits.
        """
        pairs = list(pushed)
        ids, places = torch.cat([i for i, _ in pairs]).unique(return_inverse=True)
        total = torch.zeros(len(ids), self.width, dtype=self.dtype, device=self.group.device)
        for place, (_, gradient) in zip(places.split([len(i) for i, _ in pairs]), pairs, strict=True):
            total.index_add_(0, place, gradient)
        return ids, total.mul_(scale)

    def step(self, ids: Tensor, gradient: Tensor) -> None:
        """One step of the optimizer on the touched rows of this rank, and on the hot ones."""
        self._steps += 1
        places = self.layout.places(ids)
        rows = self.store.read(places)
        self.update(rows, gradient)
        self.store.write(places, rows)

    def update(self, rows: Tensor, gradient: Tensor) -> None:
        """Change rows (u, row_width) in place by gradients (u, width)."""
        self.rule.update(rows[:, : self.width], rows[:, self.width :], gradient, self._steps, self._row_mean)

    def _row_mean(self, x: Tensor) -> Tensor:
        if not isinstance(self.layout, Columns):
            return x.mean(1, keepdim=True)
        return all_reduce(x.sum(1), self.group, algorithm="ring")[:, None] / self.config.dim

    @property
    def nbytes(self) -> int:
        """What this rank holds: rows with their state, the count of each, and hot rows. See `cost.table_bytes`."""
        return self.store.nbytes + self.asked.nbytes + (0 if self.hot is None else self.hot.nbytes)

    def whole(self) -> Tensor:
        """The table (num, dim) on every rank: one all-gather. Hot rows as they are in their replicas."""
        mine = self.store.all()[:, : self.width].to(self.group.device)
        counts = [r * w for r, w in zip(self.layout.rows_by_rank, self.layout.widths, strict=True)]
        parts = all_gather(mine.flatten(), self.group, sizes=counts).split(counts)
        parts = [p.view(-1, w) for p, w in zip(parts, self.layout.widths, strict=True)]
        if isinstance(self.layout, Columns):
            return torch.cat(parts, 1)
        table = torch.empty(self.config.num, self.config.dim, dtype=self.dtype, device=self.group.device)
        for rank, part in enumerate(parts):
            table[self.layout.held(rank)] = part
        if self.hot is not None:
            table[self.hot.ids] = self.hot.rows[:, : self.width]
        return table
