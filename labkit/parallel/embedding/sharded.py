"""`ShardedEmbedding` and `ShardedEmbeddings`: tables cut among ranks, each of which brings its own part of the batch.

    tables = ShardedEmbeddings({"user": TableConfig(10_000_000, 16), "city": TableConfig(500, 16, "table")}, group,
                               RowwiseAdagrad(lr=0.1))
    user, city = tables([user_ids, city_ids])        pull
    loss.backward()
    tables.step()                                    push, and one step of the optimizer where the rows are

Rows are no parameters of the module: a table has its own optimizer, which sees the touched rows only, and a wrapper
such as `DataParallel` around the whole model averages the other layers and leaves the tables alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.parallel.embedding.exchange import Exchange
from labkit.parallel.embedding.hot import HotRows
from labkit.parallel.embedding.layouts import Rows
from labkit.parallel.embedding.moving import move
from labkit.parallel.embedding.optimizers import Rule
from labkit.parallel.embedding.problems import first_bad
from labkit.parallel.embedding.table import Table, TableConfig
from labkit.parallel.refusals.agreement import agree
from labkit.parallel.refusals.gradients import refuse_nan
from labkit.parallel.refusals.same_model import check_same
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group

Init = Callable[[Tensor], Tensor]


class _LookedUp(NamedTuple):
    """What a look-up leaves behind until its gradients are pushed."""

    exchange: Exchange
    rows: list[Tensor]  # of each table, one row for each id that was asked for: autograd puts its gradient here
    cold: list[Tensor]  # which of these came from their owner
    places: list[Tensor]  # where the others are among the hot rows


class ShardedEmbeddings(nn.Module):
    """Tables by name, cut among the ranks of `group` as their configurations say.

    rule: the optimizer of all of them. average: gradients of the ranks are averaged, as `DataParallel` does where each
    loss is a mean over the rank's own examples; else summed. dtype: of rows and state. init: for a table by name, its
    first rows (see `Table`). seed: else they are drawn by it, the same values for every sharding and number of ranks.

    Equal to the whole tables on one rank that has the examples of all ranks in rank order: results to the bit, and
    weights but for the order in which a row's gradients are added (here: on a rank as autograd does, then by rank).
    Raises RefusedError, on every rank, if the ranks bring different tables or rules, and for ids that cannot be.
    """

    def __init__(
        self, tables: Mapping[str, TableConfig], group: Group, rule: Rule, *, average: bool = True,
        dtype: torch.dtype = torch.float32, init: Mapping[str, Init] | None = None, seed: int = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        if not tables:
            raise RefusedError("ShardedEmbeddings({}): needs one table or more")
        if dtype not in (torch.float32, torch.float64):
            raise RefusedError(f"dtype={dtype}: rows are torch.float32 or torch.float64")
        words = {f"table {name!r}": str(asdict(config)) for name, config in tables.items()}
        check_same(words | {"rule": repr(rule), "average": repr(average), "dtype": repr(dtype)}, group)
        self.group, self.average = group, average
        self.tables = {
            name: Table(name, config, rule, group, dtype, (init or {}).get(name), seed + n)
            for n, (name, config) in enumerate(tables.items())
        }
        self._open: list[_LookedUp] = []

    def forward(self, ids: Sequence[Tensor], offsets: Sequence[Tensor | None] | None = None) -> list[Tensor]:
        """This rank's ids for each table, int32 or int64, to what each table has for them.

        A table of mode "sum" or "mean" takes ids (b, bag), or (n,) with offsets (b,) at which its bags begin, and gives
        (b, dim), zeros for an empty bag; one of mode None takes any shape and adds a dimension of dim. With gradients
        enabled the look-up is remembered until `step`; there may be several, as many on every rank.
        """
        tables = list(self.tables.values())
        starts = [None] * len(ids) if offsets is None else list(offsets)
        agree(self.group, first_bad(tables, ids, starts))
        device, uniques, inverses = self.group.device, [], []
        for i in ids:
            unique, inverse = i.to(device).long().unique(return_inverse=True)
            uniques.append(unique)
            inverses.append(inverse)
        looked_up = self._pull(tables, uniques)
        if torch.is_grad_enabled():
            for rows in looked_up.rows:
                rows.requires_grad_()
            self._open.append(looked_up)
        return [
            _pooled(rows, inverse, None if start is None else start.to(device), table.config.mode)
            for rows, inverse, start, table in zip(looked_up.rows, inverses, starts, tables, strict=True)
        ]

    def _pull(self, tables: Sequence[Table], uniques: Sequence[Tensor]) -> _LookedUp:
        colds, places = [], []
        for table, unique in zip(tables, uniques, strict=True):
            hot, place = (torch.zeros_like(unique).bool(), unique) if table.hot is None else table.hot.find(unique)
            colds.append(~hot)
            places.append(place[hot])
        exchange = Exchange(tables, [u[cold] for u, cold in zip(uniques, colds, strict=True)], self.group)
        found = exchange.pull()
        for t, (table, cold, place) in enumerate(zip(tables, colds, places, strict=True)):
            if table.hot is not None:
                rows = found[t].new_empty(len(cold), table.width)
                rows[cold], rows[~cold] = found[t], table.hot.rows[place, : table.width]
                found[t] = rows
        return _LookedUp(exchange, found, colds, places)

    @torch.no_grad()
    def step(self) -> None:
        """Push the gradients of all look-ups since the last step, and update the rows that any rank looked up.

        A row that was looked up and got no gradient counts as touched, with a gradient of zeros. Raises RefusedError,
        on every rank and before anything is pushed, for a gradient with NaN or infinity in it, by rank and table.
        """
        agree(self.group, self._unfit())
        scale = 1 / self.group.size if self.average else 1.0
        pushed: list[list[tuple[Tensor, Tensor]]] = [[] for _ in self.tables]
        for looked_up in self._open:
            gradients = [torch.zeros_like(rows) if rows.grad is None else rows.grad for rows in looked_up.rows]
            cold = [g[c] for g, c in zip(gradients, looked_up.cold, strict=True)]
            for into, came in zip(pushed, looked_up.exchange.push(cold), strict=True):
                into.extend(came)
            for table, g, c, place in zip(
                self.tables.values(), gradients, looked_up.cold, looked_up.places, strict=True
            ):
                if table.hot is not None:
                    table.hot.push(place, g[~c])
        for table, pairs in zip(self.tables.values(), pushed, strict=True):
            table.step(*table.add_up(pairs, scale))
            if table.hot is not None:
                table.hot.step(scale)
        self._open.clear()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the look-ups whose gradients were not pushed: what a batch needs that is dropped, on every rank."""
        self._open.clear()

    def _unfit(self) -> str | None:
        if not self._open:
            return "step() has nothing to push: no table was looked up with gradients enabled since the last one"
        try:
            for looked_up in self._open:
                for name, rows in zip(self.tables, looked_up.rows, strict=True):
                    if rows.grad is not None:
                        refuse_nan(self.group.rank, rows.grad, [name], [rows.grad])
        except RefusedError as refusal:
            return str(refusal)
        return None

    # -- between steps -----------------------------------------------------------------------------------------

    def replicate(self, name: str, ids: Sequence[int]) -> None:
        """Hold these rows of a table on all ranks from now on, in place of those held so before; [] ends it."""
        table, layout = self._still(name, "replicate", ids)
        wrong = [i for i in ids if type(i) is not int or not 0 <= i < table.config.num]
        if wrong:
            raise RefusedError(
                f"replicate({name!r}): id {wrong[0]!r} is not among the rows 0 to {table.config.num - 1}"
            )
        if table.hot is not None:
            table.hot.give_back()
        hot = torch.tensor(sorted(set(ids)), dtype=torch.int64, device=self.group.device)
        table.hot = HotRows(table, layout, hot) if len(hot) else None

    def rebalance(self, name: str, owners: Sequence[int]) -> int:
        """Give bucket b of a table to rank owners[b], rows with their state; the bytes that this rank sent."""
        table, layout = self._still(name, "rebalance", owners)
        if len(owners) != len(layout.owners):
            raise RefusedError(f"rebalance({name!r}): {len(owners)} owners for {len(layout.owners)} buckets")
        new = Rows(layout.num, table.config.dim, self.group.size, owners, layout.by)
        if table.hot is not None:
            raise RefusedError(f"rebalance({name!r}): end replicate({name!r}, []) first, since owners hold what is hot")
        return move(table, layout, new)

    def _still(self, name: str, what: str, asked: Sequence[int]) -> tuple[Table, Rows]:
        """The table, if it lies still and its rows can move. Compares with the other ranks what is asked."""
        problem = None
        if name not in self.tables:
            problem = f"{what}({name!r}): the tables are {', '.join(map(repr, self.tables))}"
        elif not isinstance(self.tables[name].layout, Rows):
            problem = f"{what}({name!r}): this table is cut by columns, and every rank has a part of every row"
        elif self._open:
            problem = f"{what}({name!r}): gradients of a look-up are still to be pushed. Call step() first"
        agree(self.group, problem)
        check_same({f"argument of {what}({name!r})": repr(list(asked))}, self.group)
        layout: Any = self.tables[name].layout
        return self.tables[name], layout

    @property
    def nbytes(self) -> int:
        """What this rank holds of all tables."""
        return sum(table.nbytes for table in self.tables.values())


class ShardedEmbedding(ShardedEmbeddings):
    """One table of `num` rows and `dim` columns. Options: those of `TableConfig` and `ShardedEmbeddings`."""

    def __init__(
        self, num: int, dim: int, group: Group, rule: Rule, shard: str = "rows", *, average: bool = True,
        dtype: torch.dtype = torch.float32, init: Init | None = None, seed: int = 0, **config: Any,
    ) -> None:  # fmt: skip
        super().__init__({"table": TableConfig(num, dim, shard, **config)}, group, rule, average=average, dtype=dtype,
                         init=None if init is None else {"table": init}, seed=seed)  # fmt: skip
        self.table = self.tables["table"]

    def forward(self, ids: Tensor, offsets: Tensor | None = None) -> Any:  # type: ignore[override]
        return super().forward([ids], [offsets])[0]


def _pooled(rows: Tensor, inverse: Tensor, offsets: Tensor | None, mode: str | None) -> Tensor:
    if mode is None:
        return F.embedding(inverse, rows)
    if not len(rows):  # bags without an id
        bags = len(inverse) if offsets is None else len(offsets)
        return rows.sum() + rows.new_zeros(bags, rows.shape[1])
    return F.embedding_bag(inverse, rows, offsets, mode=mode)
