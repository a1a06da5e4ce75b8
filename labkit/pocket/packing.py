"""Packed rows: sequences of unequal lengths in rows of one length, with hardly any padding (Krell et al. 2021).

    token_weighted_gradients(model, sequences, room, group)   # sequences: this rank's; afterwards .grad is of them all

Padded to the longest sequence, most of a batch may be padding. Here several sequences share a row. The longest is
placed first, and each goes into the first row that still has room: first-fit decreasing. A sequence in a row must not
notice the others. So its positions begin at 0, and a mask lets a token read its own sequence only.

Then each rank has about as many rows as it needs, but not as many tokens as the others. The mean over all tokens is the
sum over each rank's tokens divided by the count of all ranks. A mean of the ranks' means would be another number.

What the full one (`labkit.align.batching`) does more: what belongs to which sequence afterwards, buckets of like
lengths, budgets of tokens, balance between ranks, and refusals.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from labkit.collectives import all_reduce
from labkit.models.attention import attend
from labkit.wire import Group


def first_fit_decreasing(lengths: Sequence[int], room: int) -> list[list[int]]:
    """Which sequences share a row of `room` tokens: indices into `lengths`."""
    rows: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        fits = [row for row in rows if sum(lengths[j] for j in row) + lengths[i] <= room]
        if fits:
            fits[0].append(i)
        else:
            rows.append([i])
    return [sorted(row) for row in rows]


def pack(sequences: Sequence[Tensor], room: int) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, numbers of sequences and positions in them, (b, room) each; padding is token 0 of sequence -1."""
    rows = first_fit_decreasing([len(s) for s in sequences], room)
    tokens_bt = torch.zeros(len(rows), room, dtype=torch.int64)
    documents_bt, positions_bt = torch.full_like(tokens_bt, -1), torch.zeros_like(tokens_bt)
    for b, row in enumerate(rows):
        start = 0
        for i in row:
            place = slice(start, start + len(sequences[i]))
            tokens_bt[b, place] = sequences[i]
            documents_bt[b, place] = i
            positions_bt[b, place] = torch.arange(len(sequences[i]))
            start = place.stop
    return tokens_bt, documents_bt, positions_bt


def attention_mask(documents_bt: Tensor) -> Tensor:
    """Bool (b, t, t): whether a query (first t) may read a key (second t): one of its own sequence, not later."""
    t = documents_bt.shape[1]
    same_btt = documents_bt[:, :, None] == documents_bt[:, None, :]
    return same_btt & torch.ones(t, t, dtype=torch.bool).tril()


def token_weighted_gradients(model: nn.Module, sequences: Sequence[Tensor], room: int, group: Group) -> None:
    """Gradients of the mean loss, in nats, over all tokens of all ranks that another one of their sequence predicts.

    sequences: (n,) int64 each, n at most `room`. Sent: 8 bytes for the count, one all-reduce of the gradients.
    """
    tokens_bt, documents_bt, positions_bt = pack(sequences, room)
    predicted_bt = (documents_bt >= 0) & (positions_bt > 0)  # nothing predicts the first token of a sequence
    mask_btt = attention_mask(documents_bt)

    def core(qkv_btn: Tensor, heads: int, groups: int, dropout: float, rotary: bool) -> Tensor:
        """What each layer attends with. Rotary positions need no new start: what counts there is a distance."""
        return attend(qkv_btn, heads, groups, dropout, rotary, mask_btt=mask_btt)

    logprobs_btv = model(tokens_bt, positions_bt, core).log_softmax(-1)
    logprobs_bt = logprobs_btv[:, :-1].gather(-1, tokens_bt[:, 1:, None])[..., 0]
    count = all_reduce(predicted_bt.sum(), group)
    (-(logprobs_bt * predicted_bt[:, 1:]).sum() / count).backward()

    parameters: list[Any] = list(model.parameters())
    summed = all_reduce(torch.cat([p.grad.flatten() for p in parameters]), group)
    for p, part in zip(parameters, summed.split([p.numel() for p in parameters]), strict=True):
        p.grad = part.view_as(p)
