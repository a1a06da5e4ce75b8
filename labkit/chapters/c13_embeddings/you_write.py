"""What chapter 13 asks its reader to write: sparse pull, sums of equal ids, row-wise Adagrad, masked numbers."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from labkit.chapters.c13_embeddings.hidden import masks_cancel
from labkit.chapters.c13_embeddings.pulled import every_id_has_its_row
from labkit.chapters.c13_embeddings.updated import equal_ids_are_added, only_touched_rows_move
from labkit.collectives import all_to_all
from labkit.grading.writing import you_write
from labkit.optim.synchrony.masking import stream
from labkit.wire import Group


@you_write(every_id_has_its_row)
def pull(ids: Tensor, mine: Tensor, group: Group) -> Tensor:
    """The row of each id (b,). Row i is mine[i // N] of rank i % N."""
    unique, inverse = ids.unique(return_inverse=True)
    owner = unique % group.size
    order, counts = owner.argsort(stable=True), owner.bincount(minlength=group.size)
    out = counts.tolist()
    into = all_to_all(counts, group, algorithm="pairwise").tolist()
    asked = all_to_all(unique[order], group, out, into)
    came = all_to_all(mine[asked // group.size], group, into, out)
    found = torch.empty_like(came)
    found[order] = came
    return found[inverse]


@you_write(equal_ids_are_added)
def sum_equal(ids: Tensor, gradients: Tensor) -> tuple[Tensor, Tensor]:
    """Each distinct id once, in ascending order, and the sum of its gradients."""
    unique, inverse = ids.unique(return_inverse=True)
    total = gradients.new_zeros(len(unique), gradients.shape[1])
    total.index_add_(0, inverse, gradients)
    return unique, total


@you_write(only_touched_rows_move)
def step_rows(mine: Tensor, squares: Tensor, places: Tensor, g: Tensor, lr: float) -> None:
    """Row-wise Adagrad on mine[places], whose gradients are g (u, dim), in place."""
    squares[places] += g.square().mean(1)
    mine[places] -= lr * g / (squares[places].sqrt()[:, None] + 1e-8)


@you_write(masks_cancel)
def masked(numbers: Tensor, secrets: Mapping[int, bytes], me: int) -> Tensor:
    """`numbers` (int32) + the mask of each higher partner, - that of each lower one."""
    total = numbers.clone()
    for partner, secret in secrets.items():
        mask = stream(secret, len(numbers))
        total += mask if me < partner else -mask
    return total
