"""Experts on several ranks (Shazeer et al. 2017; Lepikhin et al. 2020, "GShard"; Fedus et al. 2021, "Switch").

    layer = Experts(width, hidden, experts, choices, group)   # rank r holds the r-th part of the experts
    y, balance = layer(x)                                     # x: this rank's tokens, (n, d)

A router chooses k experts for each token. A token's row travels once for each of them, to the rank that holds the
expert, and the result comes back the same way. How many rows go where changes with every batch, so the counts go ahead
in an all-to-all of their own. `balance` is 1 when all experts are chosen alike: add a small part of it to the loss.
N ranks divide the experts. What the full one (`labkit.parallel.expert`) does more: a capacity and what is dropped, a
shared expert that computes while rows travel, a bias in place of the loss, nodes that get each row once, refusals.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.collectives import all_gather, all_to_all
from labkit.wire import Group


class Swap(torch.autograd.Function):
    """The next out[r] rows go to rank r, and into[r] rows come from it. Backward: their gradients go back."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, out: Sequence[int], into: Sequence[int], group: Group) -> Tensor:
        ctx.about = into, out, group
        return all_to_all(rows, group, out, into)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        return Swap.apply(gradient.contiguous(), *ctx.about), None, None, None


class Expert(nn.Module):
    """A small network of its own for the tokens that choose it."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x_nd: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x_nd)))


class Experts(nn.Module):
    """A router, which is the same on all ranks, and this rank's experts, by their number."""

    def __init__(self, width: int, hidden: int, experts: int, choices: int, group: Group) -> None:
        super().__init__()
        self.count, self.choices, self.group = experts, choices, group
        self.each = experts // group.size
        mine = range(group.rank * self.each, (group.rank + 1) * self.each)
        self.gate = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleDict({str(e): Expert(width, hidden) for e in mine})

    def forward(self, x_nd: Tensor) -> tuple[Tensor, Tensor]:
        """(n, d) -> (n, d), and the balancing loss."""
        scores_ne = self.gate(x_nd).softmax(-1)
        best_nk = scores_ne.sort(dim=-1, descending=True, stable=True).indices[:, : self.choices]  # ties: lower number
        weights_nk = scores_ne.gather(1, best_nk)
        weights_nk = weights_nk / weights_nk.sum(-1, keepdim=True)
        order = best_nk.flatten().sort(stable=True).indices  # choices, sorted by expert and so by rank
        y_md = self.travel(x_nd[order // self.choices], best_nk.flatten().bincount(minlength=self.count))
        weighted_md = weights_nk.flatten()[order, None] * y_md
        y_nd = torch.zeros_like(x_nd).index_add(0, order // self.choices, weighted_md)
        return y_nd, self.balance(scores_ne, best_nk)

    def travel(self, rows_md: Tensor, counts_e: Tensor) -> Tensor:
        """Rows sorted by expert: to their ranks, through the experts, and back."""
        n, group = self.group.size, self.group
        came_re = all_to_all(counts_e.view(n, self.each), group, algorithm="pairwise")  # from rank r for my expert e
        out, into = (counts.view(n, -1).sum(1).tolist() for counts in (counts_e, came_re))
        rows_md = Swap.apply(rows_md, out, into, group)
        which = torch.arange(self.each).repeat(n).repeat_interleave(came_re.flatten())
        order = which.sort(stable=True).indices  # came sorted by rank, then by expert
        parts = rows_md[order].split(came_re.sum(0).tolist())
        y_md = torch.cat([expert(part) for expert, part in zip(self.experts.values(), parts, strict=True)])
        return Swap.apply(y_md[order.argsort()], into, out, group)

    def balance(self, scores_ne: Tensor, best_nk: Tensor) -> Tensor:
        """e times the sum over experts of their share of all ranks' choices and of this rank's mean score."""
        chosen_ke = torch.stack([column.bincount(minlength=self.count) for column in best_nk.T])
        load_e = all_gather(chosen_ke[None], self.group).sum((0, 1))
        return self.count * (load_e / load_e.sum() * scores_ne.mean(0)).sum()
