"""What chapter 13 hands to its reader: what a rank was asked for, a placement by name, and gradients to owners."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labkit import Kill
from labkit.collectives import all_to_all
from labkit.data import Clicks, Images, auc, batch_indices
from labkit.parallel import ShardedEmbedding
from labkit.parallel.embedding.exchange import Exchange
from labkit.parallel.embedding.layouts import Columns
from labkit.wire import Group

ROWS, DIM = 20_000, 16  # of the table of the workbenches
PLACEMENTS: dict[str, dict[str, Any]] = {
    "range": {"by": "range"},
    "modulo": {"by": "modulo"},
    "columns": {"shard": "columns"},
    "one rank": {"shard": "table"},
}
HELD = (0, 16, 64, 256, 1024, 2048)  # so many of the most popular rows are on every rank


class Told(NamedTuple):
    """What a rank says of a look-up. asked: the different ids that it asked others or itself for, and places: where
    these lie, as (owner, part of the owner's rows before it). counts: how many of each rank. served: how many rows it
    was asked for. widths: columns that each rank holds. draws: ids of its batch."""

    placement: str
    skew: float
    asked: list[int]
    places: list[tuple[int, float]]
    counts: list[int]
    served: int
    widths: list[int]
    draws: int


def told(table: ShardedEmbedding, ids: Tensor, placement: str, skew: float) -> Told:
    """After a look-up of `ids`, before rows move."""
    layout, unique = table.table.layout, ids.unique()
    places: list[tuple[int, float]] = []
    if isinstance(layout, Columns):
        places = [(r, i / layout.num) for r in range(layout.size) for i in unique.tolist()]
    else:
        where = zip(layout.owner(unique).tolist(), layout.places(unique).tolist(), strict=True)
        places = [(r, p / layout.rows_by_rank[r]) for r, p in where]
    return Told(placement, skew, unique.tolist(), places, layout.ask(unique).counts, int(table.table.asked.sum()),
                layout.widths, ids.numel())  # fmt: skip


class Trip(NamedTuple):
    """ids: of a rank's batch. unique: each once. asked_by: what each rank asked this one for. rows: what came home."""

    ids: list[int]
    unique: list[int]
    asked_by: list[list[int]]
    rows: list[float]


def watched(table: ShardedEmbedding, ids: Tensor) -> Trip:
    """A look-up through labkit's own exchange, which remembers who asked for what."""
    unique = ids.unique()
    exchange = Exchange([table.table], [unique], table.group)
    (rows,) = exchange.pull()
    return Trip(ids.tolist(), unique.tolist(), [row[0].tolist() for row in exchange.asked_by], rows[:, 0].tolist())


def to_owners(ids: Tensor, gradients: Tensor, group: Group) -> tuple[Tensor, Tensor]:
    """Ids and their gradients to rank id % N; returns what came from all ranks, in their order."""
    owner = ids % group.size
    order, out = owner.argsort(stable=True), owner.bincount(minlength=group.size)
    into = all_to_all(out, group, algorithm="pairwise").tolist()
    came = all_to_all(ids[order], group, out.tolist(), into)
    return came, all_to_all(gradients[order], group, out.tolist(), into)


def dice(group: Group, seed: int = 0) -> torch.Generator:
    """Each rank draws a batch of its own."""
    return torch.Generator().manual_seed(1000 * seed + group.rank)


def exchanged(run: Any, rank: int = 0) -> list[int]:
    """Bytes that a rank sent in each collective of a run, in order."""
    mine = [m for m in run.trace.sends if m.src == rank and m.collective >= 0]
    return [sum(m.nbytes for m in mine if m.collective == c) for c in sorted({m.collective for m in mine})]


def labels_of(parts: Any, labels: Tensor) -> list[list[int]]:
    """How many examples of each of ten labels each client has."""
    return [labels[part].bincount(minlength=10).tolist() for part in parts]


def by_rank(loads: list[int], owners: list[int], size: int) -> list[int]:
    """How many rows each rank was asked for, of those of its buckets."""
    return [sum(n for n, owner in zip(loads, owners, strict=True) if owner == r) for r in range(size)]


@torch.no_grad()
def tested(model: nn.Module, data: Clicks, group: Group) -> float:
    """AUC on these examples; every rank looks at all of them. What it sends belongs to step 0."""
    group.step(0)
    return auc(model(data.dense, data.ids), data.y)


@torch.no_grad()
def accuracy(model: nn.Module, images: Images) -> float:
    """The part of the images whose digit the model says."""
    return float((model(images.x).argmax(1) == images.y).double().mean())


def epochs(model: nn.Module, images: Images, mine: Tensor, count: int, seed: int) -> int:
    """SGD on the images `mine`, in batches of 32, `count` times over them; returns how many these are."""
    sgd, dice = torch.optim.SGD(model.parameters(), 0.1), torch.Generator().manual_seed(seed)
    for _ in range(count):
        for part in mine[torch.randperm(len(mine), generator=dice)].split(32):
            sgd.zero_grad()
            F.cross_entropy(model(images.x[part]), images.y[part]).backward()
            sgd.step()
    return len(mine)


DYING = ("nobody", "the largest client", "the smallest client")


def dies(who: str, parts: Sequence[Tensor]) -> dict[str, Any]:
    """Options of a run in which one of the clients is killed in round 3, after two whole rounds; rank 0 is the server.

    who: one of `DYING`. parts: the images of each client.
    """
    if who not in DYING:
        raise ValueError(f"who={who!r} is none of {', '.join(map(repr, DYING))}")
    if who == "nobody":
        return {}
    pick = max if who == "the largest client" else min
    client = pick(range(len(parts)), key=lambda n: len(parts[n]))
    return {"faults": [Kill(client + 1, step=3)], "on_failure": "continue"}


def thirty_steps(group: Group, seed: int) -> Iterator[tuple[int, Tensor]]:
    """The number of a training step, which is marked in the trace, and this rank's part of its batch of 840 clicks."""
    order = batch_indices(25_200, 840 // group.size, seed, group.rank, group.size)
    for step, which in zip(range(1, 31), order, strict=False):
        group.step(step)
        yield step, which
