"""Rows to other ranks while training goes on: each with its optimizer's state, so that nothing is forgotten.

Who has too much is seen from `load_by_bucket`, and `cost.rebalanced_owners` says which buckets should move.
"""

from __future__ import annotations

import torch
from torch import Tensor

from labkit.collectives import all_reduce, all_to_all
from labkit.parallel.embedding.layouts import Rows
from labkit.parallel.embedding.table import Table


def load_by_bucket(table: Table) -> list[int]:
    """How many rows of each bucket all ranks have asked for since rows last moved. One all-reduce of a number each."""
    assert isinstance(table.layout, Rows)
    count = torch.zeros(len(table.layout.owners), dtype=torch.int64, device=table.group.device)
    held = table.layout.held(table.group.rank).to(count.device)
    count.index_add_(0, table.layout.bucket(held), table.asked.long())
    loads: list[int] = all_reduce(count, table.group).tolist()
    return loads


def move(table: Table, old: Rows, new: Rows) -> int:
    """From `old` to `new`, which have the same buckets: one all-to-all of rows. The bytes that this rank sent.

    Both ends know what moves, so no counts go ahead. Needs this rank's rows twice for the moment.
    Bytes: `cost.moved_bytes_by_rank`.
    """
    me, n = table.group.rank, table.group.size
    rows = table.store.all().to(table.group.device)
    out = [_going(old, new, me, to) for to in range(n)]
    into = [_going(old, new, source, me) for source in range(n)]
    sent = rows[old.places(torch.cat(out).to(rows.device))]
    came = all_to_all(sent, table.group, [len(ids) for ids in out], [len(ids) for ids in into])
    held = torch.empty_like(came)
    held[new.places(torch.cat(into).to(rows.device))] = came
    table.layout = new
    table.hold(held)
    return (len(sent) - len(out[me])) * table.row_width * rows.itemsize


def _going(old: Rows, new: Rows, source: int, to: int) -> Tensor:
    """The ids that rank `source` holds and rank `to` will hold."""
    owners = enumerate(zip(old.owners, new.owners, strict=True))
    parts = [old.ids_of(b) for b, pair in owners if pair == (source, to)]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64)
