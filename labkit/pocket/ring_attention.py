"""Ring attention (Liu et al. 2023): a sequence too long for one device, and keys and values that go around.

    positions = [zigzag(r, group.size, length) for r in range(group.size)]  # of each rank: an early, a late piece
    y = ring_attention(q, k, v, positions, group)  # q, k, v: those of this rank's positions, (b, h, t, d); so is y

Attention is a weighted mean of the values. A rank sees only some of the keys at a time, so it keeps for each query the
mean so far and the logarithm of the sum of exponentials behind it, lse. Two such means are joined exactly: each counts
by its share of the sum (the online softmax, as in FlashAttention). So the scores of the whole sequence, t x t numbers,
are never there, and a rank holds at most two blocks of keys and values beside its own.

Backward the blocks go around once more. exp(score - lse) is the weight that a key had in the whole softmax, so each
block's share of the gradients can be computed alone; the shares of k and v travel behind their block, and go home.

What the full one (`labkit.parallel.context`) does more: overlap, tiles, sliding windows, packed texts, grouped queries,
16-bit inputs, parts of different length, Ulysses, and refusals.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from labkit.wire import Group


def zigzag(rank: int, size: int, length: int) -> Tensor:
    """Of 2 N chunks, numbered from 0, chunk r and chunk 2 N - 1 - r."""
    chunks = torch.arange(length).tensor_split(2 * size)
    return torch.cat((chunks[rank], chunks[2 * size - 1 - rank]))


def ring_attention(q: Tensor, k: Tensor, v: Tensor, positions: list[Tensor], group: Group) -> Tensor:
    """positions: of every rank, all equally long."""
    return Ring.apply(q, k, v, positions, group)


def scores_of(q: Tensor, k: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
    """q k / sqrt(d), and -inf where a key is later than the query: (b, h, queries, keys)."""
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    return scores.masked_fill(keys[None, :] > queries[:, None], -math.inf)


class Ring(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, positions: list[Tensor], group: Group) -> Tensor:
        mean, lse = torch.zeros_like(q), torch.full_like(q[..., 0], -math.inf)
        for owner, (k_block, v_block) in around(torch.stack((k, v)), group):
            scores = scores_of(q, k_block, positions[group.rank], positions[owner])
            block_lse = scores.logsumexp(-1)
            joined = torch.logaddexp(lse, block_lse)
            mine = (scores - joined[..., None]).exp() @ v_block  # this block's share of the joined mean
            mean, lse = mean * (lse - joined).exp()[..., None] + mine, joined
        ctx.save_for_backward(q, k, v, mean, lse)
        ctx.positions, ctx.group = positions, group
        return mean

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        q, k, v, y, lse = ctx.saved_tensors
        positions, group = ctx.positions, ctx.group
        scale, dq, behind = 1 / math.sqrt(q.shape[-1]), torch.zeros_like(q), torch.zeros(2, *k.shape, dtype=k.dtype)
        for owner, (k_block, v_block) in around(torch.stack((k, v)), group):
            weights = (scores_of(q, k_block, positions[group.rank], positions[owner]) - lse[..., None]).exp()
            d_scores = weights * (dy @ v_block.mT - (dy * y).sum(-1, keepdim=True)) * scale
            dq += d_scores @ k_block
            behind = behind + torch.stack((d_scores.mT @ q, weights.mT @ dy))
            behind = pass_on(behind, group)  # after the last round: home
        return dq, behind[0], behind[1], None, None


def around(block: Tensor, group: Group) -> Any:
    """(owner, block), N times: at first this rank's own, then the one of the left neighbour, and so on."""
    for i in range(group.size):
        if i > 0:
            block = pass_on(block, group)
        yield (group.rank - i) % group.size, block


def pass_on(x: Tensor, group: Group) -> Tensor:
    """Give `x` to the right neighbour, and return what the left one gives."""
    n, me = group.size, group.rank
    if n == 1:
        return x
    return group.exchange(x.contiguous(), (me + 1) % n, torch.empty_like(x), (me - 1) % n)
