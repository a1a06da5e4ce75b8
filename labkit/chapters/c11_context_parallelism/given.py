"""What the programs of chapter 11's exercises are given: attention without positions, unequal parts, and a loss."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from labkit.chapters.c11_context_parallelism.attention import later
from labkit.collectives import all_to_all
from labkit.wire import Group


def block_attention(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> tuple[Tensor, Tensor]:
    """Attention to one block of keys: its mean, (h, q, d), and its lse, (h, q).

    q: (h, q, d). k, v: (g, k, d), where g divides h, and neighbouring heads of queries share one. causal: query i reads
    the keys 0 to i; otherwise each query reads all of them.
    """
    k, v = (x.repeat_interleave(len(q) // len(k), 0) for x in (k, v))
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if causal:
        scores = scores.masked_fill(later(*map(torch.arange, scores.shape[1:])), -math.inf)
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


def swap(parts: Sequence[Tensor], shapes: Sequence[Sequence[int]], group: Group) -> list[Tensor]:
    """Give parts[r] to rank r, and return what each rank gave to this one: shapes[r] is the shape of what r gave.

    A part may be empty. Bytes sent: those of all parts but this rank's own.
    """
    counts, due = [part.numel() for part in parts], [math.prod(shape) for shape in shapes]
    came = all_to_all(torch.cat([part.flatten() for part in parts]), group, counts, due)
    return [flat.view(*shape) for flat, shape in zip(came.split(due), shapes, strict=True)]


def token_losses(positions: Tensor, tokens: Tensor, targets: Tensor) -> Tensor:
    """Stands for a model and its cross-entropy: one loss for each token, float64. All three have the same shape."""
    return ((tokens - 2 * targets) ** 2 * (positions + 1)).double()
