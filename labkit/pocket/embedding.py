"""An embedding table cut among ranks (Naumov et al. 2019, DLRM; Mudigere et al. 2022, whose optimizer this is).

    table = Embedding(10_000_000, 16, group, 0.1, init)   # rank r holds the rows r, r + N, r + 2 N, ...
    y = table(ids)                                        # this rank's bags of ids, (b, bag) -> sums of rows, (b, dim)
    loss.backward()
    table.step()                                          # updates the rows that somebody looked up, and no other

A batch reads few of many rows, so ids travel to the rows' owners and only these rows come back; later their gradients
take the same way. A rank asks once for an id that its batch has many times, and sends one gradient, the sum. Row-wise
Adagrad keeps one number a row, the sum of the mean squares of its gradients, and divides the step by the root of it.
What the full one (`labkit.parallel.embedding`) does more: cuts by columns or by table, several tables in one exchange,
other optimizers, hot rows on all ranks, a cache, rows that move between ranks, refusals.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.collectives import all_to_all
from labkit.wire import Group


class Embedding(nn.Module):
    """This rank's rows and their sums of squares. init(ids): the first rows (u, dim) of these ids."""

    def __init__(self, num: int, dim: int, group: Group, lr: float, init: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.group, self.lr = group, lr
        self.rows = init(torch.arange(group.rank, num, group.size))
        self.squares = self.rows.new_zeros(len(self.rows), 1)
        self.open: list[Any] = []

    def forward(self, ids: Tensor) -> Tensor:
        """(b, bag) -> (b, dim): three all-to-alls, of how many ids, of the ids, and of their rows."""
        unique, inverse = ids.unique(return_inverse=True)
        order = (unique % self.group.size).argsort(stable=True)
        out = (unique % self.group.size).bincount(minlength=self.group.size)
        into = all_to_all(out[:, None], self.group, algorithm="pairwise")[:, 0]
        places = all_to_all(unique[order], self.group, out.tolist(), into.tolist()) // self.group.size
        came = all_to_all(self.rows[places], self.group, into.tolist(), out.tolist())
        rows = torch.empty_like(came).index_copy(0, order, came).requires_grad_()
        self.open.append((rows, order, out.tolist(), into.tolist(), places))
        return F.embedding_bag(inverse, rows, mode="sum")

    @torch.no_grad()
    def step(self) -> None:
        """One all-to-all of gradients, which the owner of a row adds up in the order of the ranks."""
        places, gradients = [], []
        for rows, order, out, into, asked in self.open:
            came = all_to_all(rows.grad[order], self.group, out, into)
            places += asked.split(into)
            gradients += came.split(into)
        touched, inverse = torch.cat(places).unique(return_inverse=True)
        g = self.rows.new_zeros(len(touched), self.rows.shape[1])
        for place, gradient in zip(inverse.split([len(p) for p in places]), gradients, strict=True):
            g.index_add_(0, place, gradient)
        self.squares[touched] += g.square().mean(1, keepdim=True)
        self.rows[touched] -= self.lr * g / (self.squares[touched].sqrt() + 1e-8)
        self.open.clear()
