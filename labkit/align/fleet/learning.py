"""The second half of a step: a model learns from the chunks, minibatch after minibatch, an update each."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from labkit.align.fleet.chunks import Chunk, Rows
from labkit.align.fleet.fleet import Fleet
from labkit.collectives import all_reduce
from labkit.cost.alignment.placements import split

Loss = Callable[[Chunk, Rows, float], Tensor]  # (k,) shares: the loss first, then what is told beside it


def learn(
    fleet: Fleet, role: str, chunks: Mapping[int, Chunk], count: int, loss: Loss, *, epochs: int, minibatches: int,
    budget: int, per: str = "token",
) -> tuple[Tensor, int]:  # fmt: skip
    """Update the model of `role` epochs * minibatches times: (shares of this rank, mean over the updates; updates).

    chunks: this rank's, of the `count` of the batch; minibatches are stretches of these. Each loss is a share of the
    mean over the minibatch, on all ranks: per "token" of responses, or per "response". A minibatch without any, on all
    ranks, is left out. Sent: an all-reduce of the counts, 8 bytes a minibatch, and one of the model for each update.
    """
    parts, told, updates = split(count, minibatches), torch.zeros(1), 0
    with fleet.phase(f"train {role}"):
        if (learner := fleet.learners.get(role)) is None:
            return told, 0
        own = [[chunks[c] for c in part if c in chunks] for part in parts]
        sizes = [[sum(c.lengths) if per == "token" else len(c.lengths) for c in part] for part in own]
        totals = all_reduce(torch.tensor([sum(n) for n in sizes], device=fleet.group.device), learner.pool).tolist()
        for _ in range(epochs):
            for part, total in zip(own, totals, strict=True):
                if not total:
                    continue
                for chunk in part:
                    for rows in chunk.microbatches(budget):
                        shares = loss(chunk, rows, total)
                        shares[0].backward()
                        told = told + shares.detach()
                    fleet.spend("train", chunk.load.tokens)
                learner.step()
                updates += 1
    return told / max(updates, 1), updates
