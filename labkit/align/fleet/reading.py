"""What models say about a chunk that they only read: log-probabilities, values and rewards, without a gradient."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from labkit.align.fleet.chunks import Chunk
from labkit.align.logprobs import token_logprobs
from labkit.models.scalar_gpt import before


def logprobs(model: nn.Module, tokens_bt: Tensor) -> Tensor:
    """log p of each token, (b, t): see `token_logprobs`."""
    return token_logprobs(model(tokens_bt), tokens_bt)


def values(model: nn.Module, tokens_bt: Tensor) -> Tensor:
    """What a critic expects before it has seen each token, (b, t)."""
    return before(model(tokens_bt))


@torch.no_grad()
def read(chunk: Chunk, budget: int, what: Callable[[Tensor], Tensor]) -> Tensor:
    """`what(tokens_bt)`, (b, t), at the tokens of all responses: (r,)."""
    found = dict[int, Tensor]()
    for rows in chunk.microbatches(budget):
        lengths = [chunk.lengths[i] for i in rows.which]
        found |= dict(zip(rows.which, what(rows.tokens_bt)[rows.mask_bt].split(lengths), strict=True))
    return chunk.gather(found)


def rewards(model: nn.Module, chunk: Chunk, budget: int) -> Tensor:
    """What a reward model says at the tokens of each response, added up: (s,)."""
    return torch.stack([part.sum() for part in read(chunk, budget, model).split(chunk.lengths)])
