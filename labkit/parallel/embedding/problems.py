"""What cannot be looked up, in words: found on the rank that brings it, before anything is sent."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from labkit.parallel.embedding.table import Table


def first_bad(tables: Sequence[Table], ids: Sequence[Tensor], offsets: Sequence[Tensor | None]) -> str | None:
    """Why these ids cannot be looked up, or None."""
    if len(ids) != len(tables):
        return f"{len(ids)} tensors of ids, and {len(tables)} tables"
    if len(offsets) != len(tables):
        return f"{len(offsets)} tensors of offsets, and {len(tables)} tables: give None for a table without"
    for table, i, starts in zip(tables, ids, offsets, strict=True):
        problem = _bad_ids(table, i) or _bad_bags(table, i, starts)
        if problem:
            return f"table {table.name!r}: {problem}"
    return None


def _bad_ids(table: Table, ids: Tensor) -> str | None:
    if not isinstance(ids, Tensor) or ids.dtype not in (torch.int64, torch.int32):
        return f"ids are a tensor of int64 or int32, not {getattr(ids, 'dtype', type(ids).__name__)}"
    bad = (ids < 0) | (ids >= table.config.num)
    if bad.any():
        return (
            f"id {int(ids[bad][0])} is not among its {table.config.num} rows, 0 to {table.config.num - 1} "
            f"({int(bad.sum())} such in all)"
        )
    return None


def _bad_bags(table: Table, ids: Tensor, offsets: Tensor | None) -> str | None:
    if table.config.mode is None:
        return None if offsets is None else "offsets need mode='sum' or 'mean'"
    if offsets is None:
        return None if ids.dim() == 2 else f"ids of shape {tuple(ids.shape)} without offsets: bags are (b, bag)"
    if ids.dim() != 1 or offsets.dim() != 1 or offsets.dtype not in (torch.int64, torch.int32):
        return f"with offsets, ids are (n,) and offsets (b,), whole numbers, not {tuple(ids.shape)} and {offsets!r:.60}"
    starts = offsets.tolist()
    if starts and (starts[0] != 0 or starts != sorted(starts) or starts[-1] > len(ids)):
        return f"offsets begin with 0, rise, and end within the {len(ids)} ids, unlike {starts!r:.60}"
    return None if starts or not len(ids) else f"{len(ids)} ids, and no bag that they are in"
