"""Rows that everybody asks for, held by everybody: read without a message, and their gradients are all-reduced.

A row that n others ask for in a step crosses the owner's link n times as weights and n times as a gradient. One that is
held by all crosses every rank's link less than twice, whoever asked for it: as many bytes in all where everybody asks,
2 (N - 1) rows, but evenly shared out. So a hot owner is relieved, and rows that few ranks ask for are not worth it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from labkit.collectives import all_gather, all_reduce

if TYPE_CHECKING:
    from labkit.parallel.embedding.layouts import Rows
    from labkit.parallel.embedding.table import Table


class HotRows:
    """ids (h,), rising, and rows (h, row_width) of them with their state, equal to the bit on all ranks."""

    def __init__(self, table: Table, layout: Rows, ids: Tensor) -> None:
        """One all-gather of the rows from their owners, who keep what they have until `give_back`."""
        self.table, self.layout, self.ids = table, layout, ids
        owner = layout.owner(ids)
        counts = owner.bincount(minlength=table.group.size).tolist()
        mine = table.store.read(layout.places(ids[owner == table.group.rank])).to(table.group.device)
        came = all_gather(mine, table.group, sizes=counts)
        self.rows = torch.empty_like(came)
        self.rows[owner.argsort(stable=True)] = came
        self._pushed = came.new_zeros(len(ids), table.width + 1)

    def find(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Whether each id is hot, and where it is among the hot ones."""
        place = torch.searchsorted(self.ids, ids).clamp_max(len(self.ids) - 1)
        return self.ids[place] == ids, place

    def push(self, places: Tensor, gradient: Tensor) -> None:
        """Gradients of this rank, for the step to come. Beside each stands that the row was touched."""
        self._pushed[places, : self.table.width] += gradient
        self._pushed[places, -1] += 1

    def step(self, scale: float) -> None:
        """Ring all-reduce of h (dim + 1) numbers; then every rank updates the touched rows in the same way."""
        total = all_reduce(self._pushed, self.table.group, algorithm="ring")
        touched = total[:, -1] > 0
        rows = self.rows[touched]
        self.table.update(rows, total[touched, :-1] * scale)
        self.rows[touched] = rows
        self._pushed.zero_()

    def give_back(self) -> None:
        """Owners take the rows as they are by now."""
        mine = self.layout.owner(self.ids) == self.table.group.rank
        self.table.store.write(self.layout.places(self.ids[mine]), self.rows[mine])

    @property
    def nbytes(self) -> int:
        return self.ids.nbytes + self.rows.nbytes + self._pushed.nbytes


def hottest(table: Table, count: int) -> list[int]:
    """The ids that ranks have asked for most often since rows last moved, `count` or all, the same on every rank.

    One all-gather of an id and a number for each of the `count` hottest rows of each rank. Of equals the lower id.
    """
    held = table.layout.held(table.group.rank).to(table.asked.device)
    order = table.asked.argsort(descending=True, stable=True)[:count]
    mine = torch.stack([held[order], table.asked[order].long()], 1)
    came = all_gather(mine, table.group, sizes=[min(count, rows) for rows in table.layout.rows_by_rank]).tolist()
    return [i for i, _ in sorted(came, key=lambda pair: (-pair[1], pair[0]))[:count]]
