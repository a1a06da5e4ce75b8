"""Cross-entropy of logits that are cut along the vocabulary: no rank ever sees the logits of another.

With logits x_j of a position, target y and M the largest score, the loss is

    log(sum_j exp(x_j - M)) - (x_y - M)

M is a maximum over ranks, the sum a sum over ranks, and x_y - M is known to one rank and 0 on the others. So three
numbers a position travel, whatever the vocabulary is (Shoeybi et al. 2019, "Megatron-LM", section 3). The gradient of
a rank's logits, softmax minus one-hot, needs nothing more: the backward pass sends nothing.
With label smoothing e the one-hot becomes 1 - e for the target and e / V for each of all V ids more, so that the sum of
x_j - M over ranks is a fourth number (Szegedy et al. 2016, "Rethinking the Inception architecture", section 7).
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from labkit.collectives import all_gather, all_reduce
from labkit.collectives.chunks import even_sizes
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group

REDUCTIONS = ("mean", "sum", "none")


def vocab_parallel_cross_entropy(
    logits_part: Tensor, targets: Tensor, group: Group, ignore_index: int = -100, *, vocab: int | None = None,
    ids: Sequence[Sequence[int]] | None = None, reduction: str = "mean", label_smoothing: float = 0.0,
    algorithm: str = "auto",
) -> Tensor:  # fmt: skip
    """The loss of `F.cross_entropy(logits, targets)`, the same on every rank, from this rank's part of the logits.

    logits_part: (..., part), this rank's columns of the logits (..., vocab), in the order of the ranks. float32 or
        float64; 16-bit floats are reckoned with in 32 bits, and their gradient is rounded once, at the end.
    targets: (...), ids in the whole vocabulary, the same on every rank. Those equal to `ignore_index` count nothing.
    vocab: size of the whole vocabulary. Parts are then those of `torch.tensor_split`. Without it the ranks first tell
        each other how many columns they have, and check that they have the same targets: 16 bytes a rank more.
    ids: with `vocab`, the ids of each rank's columns, where these are no equal ranges (see `tensor/placement.py`).
    reduction: "mean" over the targets that count (NaN if there are none), "sum", or "none" for a loss a target.
    label_smoothing: the part of a target that is shared out among all ids, from 0 to 1, as in `F.cross_entropy`.

    Two all-reduces by `algorithm`: the maximum (1 number a target), then sum and target's score (2 numbers; 3 with
    label smoothing).
    Bytes: `cost.vocabulary_parallel_loss_bytes`. Beside the logits and their gradient one more tensor of their size
    exists, for a moment. Raises RefusedError, before anything is sent, for a target that is not in the vocabulary.
    """
    part = _checked(logits_part, targets, reduction)
    if not 0 <= label_smoothing <= 1:
        raise RefusedError(
            f"label_smoothing={label_smoothing!r}: the part of a target that goes to all ids, from 0 to 1"
        )
    wanted = targets.reshape(-1).long()
    if ids is not None:
        sizes = [len(mine) for mine in ids]
    else:
        sizes = _parts(part, wanted, group) if vocab is None else even_sizes(vocab, group.size)
    if sizes[group.rank] != part or not all(sizes):
        raise RefusedError(
            f"rank {group.rank} has the logits of {part} ids, but {sum(sizes)} ids on {group.size} ranks "
            f"are {' + '.join(map(str, sizes))}: cut the vocabulary as torch.tensor_split does, one id a "
            "rank or more"
        )
    kept = wanted != ignore_index
    _check_targets(wanted, kept, sum(sizes), targets.shape, ignore_index)
    if ids is None:
        start = list(accumulate(sizes, initial=0))[group.rank]
        places = wanted - start
    else:
        places = places_of(torch.where(kept, wanted, 0), sum(sizes), group, ids)
    loss: Tensor = _Loss.apply(
        logits_part.reshape(-1, part), places, kept, group, algorithm, label_smoothing, sum(sizes)
    )
    if reduction == "none":
        return loss.view(targets.shape)
    return loss.sum() / kept.sum() if reduction == "mean" else loss.sum()


def places_of(ids: Tensor, vocab: int, group: Group, held: Sequence[Sequence[int]] | None) -> Tensor:
    """Where each of `ids` is among those of this rank, -1 if another rank has it. held: the ids of each rank, in order;
    None for equal ranges, as `torch.tensor_split` cuts them."""
    if held is None:
        sizes = even_sizes(vocab, group.size)
        start = sum(sizes[: group.rank])
        return torch.where((ids >= start) & (ids < start + sizes[group.rank]), ids - start, -1)
    table = torch.full((vocab,), -1, device=ids.device)
    table[torch.tensor(held[group.rank], device=ids.device)] = torch.arange(len(held[group.rank]), device=ids.device)
    return table[ids]


class _Loss(torch.autograd.Function):
    """(n, part) logits -> (n,) losses. places: of the targets among this rank's columns, outside of them elsewhere."""

    @staticmethod
    def forward(
        ctx: Any, x_nv: Tensor, places: Tensor, kept: Tensor, group: Group, algorithm: str, smooth: float, vocab: int
    ) -> Tensor:
        dtype = torch.promote_types(x_nv.dtype, torch.float32)
        mine = kept & (places >= 0) & (places < x_nv.shape[1])
        column = torch.where(mine, places, 0)[:, None]

        top_n = x_nv.amax(1).to(dtype)
        all_reduce(top_n, group, "max", algorithm)
        below_nv = x_nv.to(dtype, copy=True).sub_(top_n[:, None])
        shares = torch.empty(3 if smooth else 2, len(x_nv), dtype=dtype, device=x_nv.device)
        sum_n, target_n = shares[:2]
        torch.sum(below_nv, 1, out=shares[2]) if smooth else None
        target_n.copy_(below_nv.gather(1, column)[:, 0].masked_fill_(~mine, 0))
        torch.sum(below_nv.exp_(), 1, out=sum_n)
        all_reduce(shares, group, "sum", algorithm)

        ctx.save_for_backward(x_nv, top_n, sum_n, column, mine, kept)
        ctx.smooth, ctx.vocab = smooth, vocab
        if smooth:
            target_n = (1 - smooth) * target_n + smooth / vocab * shares[2]
        return (sum_n.log() - target_n).masked_fill_(~kept, 0)

    @staticmethod
    def backward(ctx: Any, grad_n: Tensor) -> Any:
        x_nv, top_n, sum_n, column, mine, kept = ctx.saved_tensors
        of_loss = grad_n.masked_fill(~kept, 0)[:, None]
        gradient = x_nv.to(top_n.dtype, copy=True).sub_(top_n[:, None]).exp_()
        gradient.mul_(of_loss / sum_n[:, None])  # the softmax, times the gradient of the loss
        of_target = of_loss.masked_fill(~mine[:, None], 0)
        gradient.scatter_add_(1, column, of_target.mul_(ctx.smooth - 1))  # minus one-hot, where it is mine
        if ctx.smooth:
            gradient.sub_(of_loss, alpha=ctx.smooth / ctx.vocab)
        return gradient.to(x_nv.dtype), None, None, None, None, None, None


def _checked(logits: Tensor, targets: Tensor, reduction: str) -> int:
    """This rank's number of columns."""
    if reduction not in REDUCTIONS:
        raise RefusedError(f"reduction={reduction!r} is not one of {', '.join(map(repr, REDUCTIONS))}")
    if not logits.is_floating_point() or logits.dim() == 0:
        raise RefusedError(
            f"logits must be floating-point numbers of shape (..., part), not {logits.dtype} of shape "
            f"{list(logits.shape)}"
        )
    if targets.is_floating_point() or targets.dtype == torch.bool or targets.is_complex():
        raise RefusedError(f"targets must be whole numbers (ids in the vocabulary), not {targets.dtype}")
    if targets.shape != logits.shape[:-1]:
        raise RefusedError(
            f"logits of shape {list(logits.shape)} need targets of shape {list(logits.shape[:-1])}, not "
            f"{list(targets.shape)}"
        )
    return logits.shape[-1]


def _parts(part: int, ids: Tensor, group: Group) -> list[int]:
    """How many columns each rank has. Refused on every rank if their targets differ."""
    digest = zlib.crc32(ids.cpu().numpy().tobytes())
    table = all_gather(torch.tensor([[part, digest]], device=group.device), group).tolist()
    others = [rank for rank, (_, theirs) in enumerate(table) if theirs != table[0][1]]
    if others:
        raise RefusedError(
            f"rank {others[0]} has other targets than rank 0: all ranks that share a vocabulary work on the same batch"
        )
    return [columns for columns, _ in table]


def _check_targets(ids: Tensor, kept: Tensor, vocab: int, shape: torch.Size, ignore_index: int) -> None:
    """Every rank has the same targets, so all refuse, in the same words, and nobody waits."""
    bad = kept & ((ids < 0) | (ids >= vocab))
    if bad.any():
        first = int(bad.nonzero()[0])
        at = [int(i) for i in torch.unravel_index(torch.tensor(first), shape)]
        raise RefusedError(
            f"target {int(ids[first])} at {at} is not in the vocabulary of {vocab} ids, 0 to {vocab - 1} "
            f"({int(bad.sum())} such in all): give what should not count the id {ignore_index}, which is "
            "ignore_index"
        )
