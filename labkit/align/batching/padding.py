"""Padding, and microbatches of a budget of tokens: of padded rows of like lengths, or of packed sequences."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from labkit.align.batching.packing import check_lengths, first_fit_decreasing


def padded(sequences: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Rows as long as the longest sequence, filled up with 0 at their ends; and bool, true where a token stands.

    sequences: one or more, (n,) each, of one dtype and device. Causal attention needs no mask for such rows: padding
    comes last, so no token reads it.
    """
    tokens_bt = torch.nn.utils.rnn.pad_sequence(list(sequences), batch_first=True)
    lengths_b = torch.tensor([len(s) for s in sequences], device=tokens_bt.device)
    return tokens_bt, torch.arange(tokens_bt.shape[1], device=tokens_bt.device) < lengths_b[:, None]


def length_buckets(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Indices into `lengths`, in microbatches of sequences of like lengths: rows times the longest is within `budget`.

    The longest come first, each microbatch takes the next ones until it is full, and is padded by itself.
    """
    check_lengths(lengths, budget)
    buckets: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if not buckets or (len(buckets[-1]) + 1) * lengths[buckets[-1][0]] > budget:
            buckets.append([])
        buckets[-1].append(i)
    return buckets


def token_microbatches(lengths: Sequence[int], budget: int, at_least: int = 0) -> list[list[int]]:
    """Indices into `lengths`, in microbatches of at most `budget` tokens, so that each takes about as much memory.

    at_least: microbatches there must be: the most that any rank has, where each begins a collective (with sharded
    parameters, for example), and a rank with fewer would leave the others waiting. The microbatches with most
    sequences are then halved; where sequences run out, empty ones follow, whose loss is 0.
    """
    found = first_fit_decreasing(lengths, budget)
    while len(found) < at_least:
        most = max(range(len(found)), key=lambda m: len(found[m]), default=-1)
        if most < 0 or len(found[most]) < 2:
            return found + [[] for _ in range(at_least - len(found))]
        found[most], other = found[most][::2], found[most][1::2]
        found.append(other)
    return found
