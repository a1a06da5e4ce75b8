"""Means over all tokens of all ranks, exactly, from parts that ranks and microbatches compute by themselves.

Every loss of this room is a *share*: the sum over this microbatch's tokens, divided by the count of the whole batch,
on all ranks and in all microbatches. So shares, and their gradients, are simply added: a rank adds up its microbatches
by calling `backward` on each, and the gradients of the ranks are summed. That is exact whatever the ranks' counts are,
and for a rank without a single token too. (Where a wrapper averages gradients over N ranks, as `DataParallel` does,
multiply the loss by N.) What is told beside a loss, such as the part of the tokens that was clipped, is a share too.

A loss that returned a sum and its own count would invite the wrong mean: of means of unequal counts. The count
of the batch is known before the first forward pass, because it depends on masks only, and it is one number to send.

Advantages are whitened over the whole batch, so their mean and variance need three numbers: `moments`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from labkit.collectives import all_reduce
from labkit.wire.group import Group


def global_count(counted: Tensor | int, group: Group) -> int:
    """How many there are on all ranks: of true elements of a mask, or of whatever `counted` says by a number.

    Sent: one all-reduce of 8 bytes. Raises ValueError, on every rank, where there is nothing on any rank.
    """
    mine = counted.sum() if isinstance(counted, Tensor) else torch.tensor(counted)
    total = int(all_reduce(mine.to(group.device, torch.int64), group))
    if total < 1:
        raise ValueError("no rank has anything that counts: a mean over 0 tokens does not exist; skip this batch")
    return total


def moments(x_bt: Tensor, mask_bt: Tensor) -> Tensor:
    """(3,) float64: count, sum and sum of squares of what counts. Those of parts add up to those of the whole.

    For all ranks: `all_reduce(moments(x, mask), group)`, 24 bytes.
    """
    kept = x_bt.detach()[mask_bt].double()
    return torch.stack([torch.ones_like(kept).sum(), kept.sum(), kept.square().sum()])


def whiten(x_bt: Tensor, mask_bt: Tensor, moments_3: Tensor) -> Tensor:
    """(x - mean) / sqrt(variance + 1e-8) where the mask is true, 0 elsewhere; mean and variance from `moments`.

    The variance divides by n, as in the code of Ziegler et al. 2019 (Huang et al. 2024, "The N+ implementation
    details of RLHF with PPO", detail 12); TRL divides by n - 1. With a single token the result is 0.
    """
    count, total, squares = moments_3.tolist()
    if count < 1:
        raise ValueError("nothing to whiten: the mask is false everywhere")
    mean = total / count
    variance = max(squares / count - mean * mean, 0.0)
    return ((x_bt - mean) / (variance + 1e-8) ** 0.5).where(mask_bt, 0)


def share(x_bt: Tensor, mask_bt: Tensor, total: float) -> Tensor:
    """The sum over what counts divided by `total`, the count of the whole batch: a 0-d tensor. See above."""
    if not total > 0:
        raise ValueError(f"the count of the whole batch must be above 0, not {total!r}")
    return x_bt.where(mask_bt, 0).sum() / total
