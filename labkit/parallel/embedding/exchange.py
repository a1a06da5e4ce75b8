"""Sparse pull and push: ids to the ranks that hold their rows, the rows back, and later their gradients.

One exchange serves several tables, so that a model with hundreds of them has three all-to-alls in its forward pass (how
many ids, the ids, the rows) and one in its backward pass. Whoever was asked remembers the ids, so gradients travel
without them. A rank asks for each id once, whatever the number of times that its batch has it, and sends one gradient
for it, in which autograd has added up all these times.
Bytes: `cost.embedding_bytes_by_rank`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor

from labkit.collectives import all_to_all
from labkit.parallel.embedding.table import Table
from labkit.wire.group import Group


class Exchange:
    """One look-up of ids[t] (u,), all different, in tables[t], and the push of its gradients.

    asked_of[s][t]: how many ids this rank asks of rank s. asked_by[s][t]: the ids that rank s asks of this one.
    """

    def __init__(self, tables: Sequence[Table], ids: Sequence[Tensor], group: Group) -> None:
        self.tables, self.group = tables, group
        self._asked = [table.layout.ask(i) for table, i in zip(tables, ids, strict=True)]
        to_nt = torch.tensor([a.counts for a in self._asked], device=group.device).T.contiguous()
        from_nt = all_to_all(to_nt, group, algorithm="pairwise")
        self.asked_of: list[list[int]] = to_nt.tolist()
        by_table = [i[a.order].split(a.counts) for i, a in zip(ids, self._asked, strict=True)]
        by_rank = torch.cat(list(chain.from_iterable(zip(*by_table, strict=True))))
        came = all_to_all(by_rank, group, to_nt.sum(1).tolist(), from_nt.sum(1).tolist())
        self.asked_by = _split(came, from_nt.tolist())

    def pull(self) -> list[Tensor]:
        """The rows of each table, (u, dim) in the order of its ids."""
        mine = [[table.look_up(ids) for table, ids in zip(self.tables, row, strict=True)] for row in self.asked_by]
        widths = [[table.layout.widths[rank] for table in self.tables] for rank in range(self.group.size)]
        theirs = [[n * w for n, w in zip(*pair, strict=True)] for pair in zip(self.asked_of, widths, strict=True)]
        came = self._swap(mine, theirs)
        by_rank = [[rows.view(-1, w) for rows, w in zip(*pair, strict=True)] for pair in zip(came, widths, strict=True)]
        by_table = zip(*by_rank, strict=True)
        return [t.layout.join(rows, a) for t, a, rows in zip(self.tables, self._asked, by_table, strict=True)]

    def push(self, gradients: Sequence[Tensor]) -> list[list[tuple[Tensor, Tensor]]]:
        """Send gradients[t] (u, dim). What comes is, at [t][s], the ids that rank s had asked for and its gradients."""
        cut = [t.layout.cut(g, a) for t, a, g in zip(self.tables, self._asked, gradients, strict=True)]
        mine = [[len(ids) * t.width for ids, t in zip(row, self.tables, strict=True)] for row in self.asked_by]
        came = list(zip(self.asked_by, self._swap(list(zip(*cut, strict=True)), mine), strict=True))
        return [[(i[t], g[t].view(-1, table.width)) for i, g in came] for t, table in enumerate(self.tables)]

    def _swap(self, sent: Sequence[Sequence[Tensor]], counts: Sequence[Sequence[int]]) -> list[list[Tensor]]:
        """sent[s][t] to rank s, as plain numbers, since tables differ in width; counts[s][t] of them from rank s."""
        out = [sum(part.numel() for part in row) for row in sent]
        flat = torch.cat([part.flatten() for row in sent for part in row])
        return _split(all_to_all(flat, self.group, out, [sum(row) for row in counts]), counts)


def _split(flat: Tensor, counts: Sequence[Sequence[int]]) -> list[list[Tensor]]:
    """`flat` in parts [s][t] of counts[s][t]."""
    parts = iter(flat.split([n for row in counts for n in row]))
    return [[next(parts) for _ in row] for row in counts]
