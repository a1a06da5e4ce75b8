"""Tables and batches of chapter 13: cut among ranks, looked up, trained, and compared with labkit's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labkit import book
from labkit.collectives import all_to_all
from labkit.data import Clicks, auc, batch_indices, clicks, zipf_ids
from labkit.models import DLRM, DLRMConfig
from labkit.parallel import ShardedEmbedding
from labkit.parallel.embedding.exchange import Exchange
from labkit.parallel.embedding.layouts import Columns
from labkit.parallel.embedding.moving import load_by_bucket
from labkit.parallel.embedding.optimizers import SGD, RowwiseAdagrad
from labkit.wire import Group

ROWS, DIM = 20_000, 16  # of the table of the workbenches
PLACEMENTS: dict[str, dict[str, Any]] = {
    "range": {"by": "range"},
    "modulo": {"by": "modulo"},
    "columns": {"shard": "columns"},
    "one rank": {"shard": "table"},
}
COPIED = (0, 16, 64, 256, 1024, 2048)  # so many of the most popular rows are on every rank

Batches = Callable[..., Tensor]  # of a group, and of a step


def allowed(world_size: int, transport: str, rows: int, batch: int) -> None:
    """Raises ParameterError for parameters that the chapter's pictures and batches have no room for."""
    book.allow({
        "the pictures have room for 2 to 8 ranks: world_size is a number from 2 to 8": world_size in range(2, 9),
        'transport is "local" or "gloo"': transport in ("local", "gloo"),
        "rows is a number from 4,000 on": rows in range(4000, 10**8),
        "batch is a number of examples from 64 to 2,048": batch in range(64, 2049),
    })  # fmt: skip


def batches(rows: int, size: int, seed: int) -> Batches:
    """ids_of(group, step=0): this rank's batch of a step, with 4 ids for each of `size` examples."""
    return partial(_batch_of, size=size, rows=rows, seed=seed)


def _batch_of(group: Any, step: int = 0, *, size: int, rows: int, seed: int) -> Tensor:
    return batch(group, 1.1, size, rows, 100 * seed + step)


def batch(group: Any, skew: float, size: int = 512, rows: int = ROWS, seed: int = 0) -> Tensor:
    """Ids (size, 4) of this rank's examples, by Zipf's law."""
    return zipf_ids((size, 4), rows, skew, dice(group, seed))


def sharded(group: Group, placement: str, rows: int = ROWS, dim: int = DIM) -> ShardedEmbedding:
    """A table that is cut as `placement` says, one of `PLACEMENTS`. What its ranks send from now on is of step 1."""
    table = ShardedEmbedding(rows, dim, group, SGD(0.1), **PLACEMENTS[placement])
    group.step(1)
    return table


def weights(rows: int, seed: int) -> Tensor:
    """A whole table of `rows` rows of 16 numbers, to compare with."""
    return torch.randn(rows, DIM, generator=torch.Generator().manual_seed(seed))


class Requests(NamedTuple):
    """What a rank says of a look-up. asked: the different ids that it asked others or itself for, and places: where
    these lie, as (owner, part of the owner's rows before it). counts: how many of each rank. served: how many rows it
    was asked for. widths: columns that each rank holds. draws: ids of its batch."""

    asked: list[int]
    places: list[tuple[int, float]]
    counts: list[int]
    served: int
    widths: list[int]
    draws: int


def requests(table: ShardedEmbedding, ids: Tensor) -> Requests:
    """After a look-up of `ids`, before rows move."""
    layout, unique = table.table.layout, ids.unique()
    places: list[tuple[int, float]] = []
    if isinstance(layout, Columns):
        places = [(r, i / layout.num) for r in range(layout.size) for i in unique.tolist()]
    else:
        where = zip(layout.owner(unique).tolist(), layout.places(unique).tolist(), strict=True)
        places = [(r, p / layout.rows_by_rank[r]) for r, p in where]
    return Requests(unique.tolist(), places, layout.ask(unique).counts, int(table.table.asked.sum()), layout.widths,
                ids.numel())  # fmt: skip


class Trip(NamedTuple):
    """ids: of a rank's batch. unique: each once. asked_by: what each rank asked this one for. rows: what came home."""

    ids: list[int]
    unique: list[int]
    asked_by: list[list[int]]
    rows: list[float]


def trip(group: Group, seed: int) -> Trip:
    """Eight skewed ids of each rank, and their rows through labkit's own exchange, which remembers who asked for
    what. The table has five rows for each rank, and row i holds its own number, i."""
    table = ShardedEmbedding(5 * group.size, 1, group, SGD(0.1), by="modulo", init=_named)
    ids = zipf_ids((8,), 5 * group.size, 0.8, dice(group, seed + 1))
    unique = ids.unique()
    exchange = Exchange([table.table], [unique], table.group)
    (rows,) = exchange.pull()
    return Trip(ids.tolist(), unique.tolist(), [row[0].tolist() for row in exchange.asked_by], rows[:, 0].tolist())


def _named(ids: Tensor) -> Tensor:
    return ids[:, None].float()


def evenly(count: int, rows: int, group: Group) -> Tensor:
    """`count` different ids of this rank, other ones than its neighbours', spread evenly over the owners by modulo."""
    return (torch.arange(count) + count * group.rank) % (rows // group.size * group.size)


def asked(ids_of: Batches, size: int) -> tuple[int, int]:
    """How many ids the first batches of all ranks have, and how many when each rank keeps equal ones once."""
    drawn = [ids_of(SimpleNamespace(rank=r)) for r in range(size)]
    return sum(ids.numel() for ids in drawn), sum(len(ids.unique()) for ids in drawn)


def trained_by_labkit(group: Group, table: Tensor, ids_of: Batches) -> Tensor:
    """This rank's rows of `table` after three steps of labkit's own sharded embedding, dealt out by modulo."""
    theirs = ShardedEmbedding(len(table), DIM, group, RowwiseAdagrad(0.1), by="modulo", mode=None, average=False,
                              init=table.__getitem__)  # fmt: skip
    for step in range(3):
        theirs(ids_of(group, step).flatten()).sin().sum().backward()
        theirs.step()
    return theirs.table.store.all()[:, :DIM]


def by_owner(ids: Tensor, group: Group) -> tuple[Tensor, list[int], list[int]]:
    """The order that sorts ids by their owner, rank id % N; how many go to each rank, and how many come from it."""
    owner = ids % group.size
    counts = owner.bincount(minlength=group.size)
    into = all_to_all(counts, group, algorithm="pairwise")
    return owner.argsort(stable=True), counts.tolist(), into.tolist()


def to_owners(ids: Tensor, gradients: Tensor, group: Group) -> tuple[Tensor, Tensor]:
    """Ids and their gradients to rank id % N; returns what came from all ranks, in their order."""
    order, out, into = by_owner(ids, group)
    came = all_to_all(ids[order], group, out, into)
    return came, all_to_all(gradients[order], group, out, into)


def dice(group: Any, seed: int = 0) -> torch.Generator:
    """Each rank draws a batch of its own."""
    return torch.Generator().manual_seed(1000 * seed + group.rank)


def kilobytes(run: Any, rank: int = 0) -> tuple[float, float]:
    """What a rank sent in a pull: ids, and rows. The first of its three collectives has the counts."""
    mine = [m for m in run.trace.sends if m.src == rank and m.collective >= 0]
    sent = [sum(m.nbytes for m in mine if m.collective == c) for c in sorted({m.collective for m in mine})]
    _, ids, rows = sent
    return ids / 1e3, rows / 1e3


def three_steps(table: ShardedEmbedding, ids_of: Batches, first: int) -> list[int]:
    """Three steps of training; returns how many rows of each bucket all ranks asked for in them."""
    for step in range(first, first + 3):
        table(ids_of(table.group, step)).sum().backward()
        table.step()
    return load_by_bucket(table.table)


SIZES = (2000, 300, 20)  # rows of the tables of users, films and cities


def clicks_of(seed: int) -> tuple[Clicks, Clicks]:
    """Made-up clicks over tables of `SIZES`: 30 batches of 840 to train on, each example once, and 4,200 others."""
    return clicks(25_200, SIZES, seed=seed), clicks(4200, SIZES, seed=seed, part=1)


class Scores:
    """The AUC of a model as it trains, on clicks that it has not seen. by_step: it, before and after each ten steps."""

    def __init__(self, model: nn.Module, unseen: Clicks, group: Group) -> None:
        self.model, self.unseen, self.group = model, unseen, group
        self.by_step: dict[int, float] = {}

    def thirty_steps(self, data: Clicks, seed: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """This rank's part of each batch of 840 clicks, as (dense features, ids, clicked or not); gradients are zero
        again. The number of the step is marked in the trace."""
        self._test(0)
        order = batch_indices(25_200, 840 // self.group.size, seed, self.group.rank, self.group.size)
        for step, which in zip(range(1, 31), order, strict=False):
            self.group.step(step)
            self.model.zero_grad()
            yield data.dense[which], data.ids[which], data.y[which]
            if step % 10 == 0:
                self._test(step)

    @torch.no_grad()
    def _test(self, step: int) -> None:
        """Every rank looks at all examples. What that sends belongs to step 0."""
        self.group.step(0)
        self.by_step[step] = auc(self.model(self.unseen.dense, self.unseen.ids), self.unseen.y)


def trained_whole(group: Group, data: Clicks, unseen: Clicks, seed: int) -> dict[int, float]:
    """The AUC by step of a DLRM of PyTorch's own layers, on one rank, with PyTorch's Adagrad."""
    model = DLRM(DLRMConfig(rows=SIZES), seed)
    adagrad = torch.optim.Adagrad(model.parameters(), 0.1)
    scores = Scores(model, unseen, group)
    for dense, ids, clicked in scores.thirty_steps(data, seed):
        F.binary_cross_entropy_with_logits(model(dense, ids), clicked).backward()
        adagrad.step()
    return scores.by_step
