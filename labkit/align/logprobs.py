"""Log-probabilities of given tokens, and entropies, from logits: with one tensor of the logits' size, in backward.

All losses of this room read (b, t) tensors in which entry t is about token t of its sequence: log p(token t | tokens
before t), its advantage, and whether it counts. The logits that predict token t stand at t - 1, so entry 0 is 0.

The logits (b, t, v) are by far the largest tensor of a step: 32 sequences of 1,024 tokens over 128,000 symbols are 16.8
GB in 32 bits. `log_softmax` would keep a second one for the backward pass. Here the forward pass goes through the
positions in pieces and keeps one number a token, and the backward pass makes the gradient in place, once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

PIECE = 1024  # positions whose probabilities exist at a time: 0.5 GB with 128,000 symbols in 32 bits


def token_logprobs(logits_btv: Tensor, tokens_bt: Tensor) -> Tensor:
    """log p(token t | tokens before t) in nats at (b, t), and 0 at t = 0: float32, or float64 for logits in float64.

    logits_btv: what the model said at each position, so row t of it predicts token t + 1; the last row is not used.
    tokens_bt: int64, what stands there. In a packed row the first token of each document gets what the last position
        of the one before it says about it: `Packed.predicted_bt` masks it.
    Kept for the backward pass, beside the logits themselves: one number a token.
    """
    if logits_btv.shape[:-1] != tokens_bt.shape:
        raise ValueError(
            f"logits of shape {tuple(logits_btv.shape)} and tokens of shape {tuple(tokens_bt.shape)}: the logits need "
            "a row for each token"
        )
    return _TokenLogprobs.apply(logits_btv, tokens_bt)


def token_entropies(logits_btv: Tensor) -> Tensor:
    """-sum over v of p log p in nats at (b, t), of the distribution that token t was drawn from; 0 at t = 0.

    Symbols with a logit of -inf have the probability 0 and add nothing.
    """
    return _Entropies.apply(logits_btv)


def response_mask(prompt_lengths_b: Tensor, lengths_b: Tensor, t: int) -> Tensor:
    """(b, t) bool: true for the tokens of the response, from the end of the prompt to the end of the sequence.

    prompt_lengths_b, lengths_b: tokens of the prompt, and of prompt and response together; what follows is padding.
    Raises ValueError where 1 <= prompt <= length <= t does not hold: without a prompt nothing predicts the first token.
    """
    fits = (prompt_lengths_b >= 1) & (prompt_lengths_b <= lengths_b) & (lengths_b <= t)
    if not bool(fits.all()):
        b = int((~fits).nonzero()[0])
        raise ValueError(
            f"sequence {b} has a prompt of {int(prompt_lengths_b[b])} tokens and {int(lengths_b[b])} in all, in a row "
            f"of {t}: a prompt needs a token at least, and all must fit"
        )
    at_t = torch.arange(t, device=lengths_b.device)
    return (at_t >= prompt_lengths_b[:, None]) & (at_t < lengths_b[:, None])


def masked_sums(x_bt: Tensor, mask_bt: Tensor) -> Tensor:
    """The sum of each row over the tokens that count: (b,). What stands elsewhere, a NaN even, changes nothing."""
    return x_bt.where(mask_bt, 0).sum(1)


def _pieces(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """At most `PIECE` tokens of one sequence: of (b, t) tensors their entries, of (b, t, v) what predicts them.

    Views: the logits of all sequences as one flat tensor, without the last of each, would be a copy.
    """
    for rows in zip(*tensors, strict=True):
        shifted = (row[1:] if row.dim() == 1 else row[:-1] for row in rows)
        yield from zip(*(row.split(PIECE) for row in shifted), strict=True)


def _zeros(logits_btv: Tensor) -> Tensor:
    """A number a token, of at least 32 bits."""
    wide = torch.promote_types(logits_btv.dtype, torch.float32)
    return torch.zeros(logits_btv.shape[:-1], dtype=wide, device=logits_btv.device)


def _gradient_like(logits_btv: Tensor) -> Tensor:
    """To be filled by pieces; the last position predicts nothing."""
    made_btv = torch.empty_like(logits_btv)
    made_btv[:, -1:] = 0
    return made_btv


class _TokenLogprobs(torch.autograd.Function):
    """x_y - log sum exp x. Its gradient is one-hot minus softmax."""

    @staticmethod
    def forward(ctx: Any, logits_btv: Tensor, tokens_bt: Tensor) -> Tensor:
        norms_bt, found_bt = _zeros(logits_btv), _zeros(logits_btv)
        for logits, tokens, norms, found in _pieces(logits_btv, tokens_bt, norms_bt, found_bt):
            torch.logsumexp(logits.to(norms.dtype), -1, out=norms)
            found.copy_(logits.gather(-1, tokens[:, None])[:, 0]).sub_(norms)
        ctx.save_for_backward(logits_btv, tokens_bt, norms_bt)
        return found_bt

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_bt: Tensor) -> tuple[Tensor, None]:
        logits_btv, tokens_bt, norms_bt = ctx.saved_tensors
        made_btv = _gradient_like(logits_btv)
        for made, logits, tokens, norms, gradient in _pieces(made_btv, logits_btv, tokens_bt, norms_bt, gradient_bt):
            softmax = (logits.to(norms.dtype) - norms[:, None]).exp_()
            made.copy_(softmax.mul_(-gradient[:, None]).scatter_add_(-1, tokens[:, None], gradient[:, None]))
        return made_btv, None


class _Entropies(torch.autograd.Function):
    """H = -sum p log p. Its gradient is -p (log p + H)."""

    @staticmethod
    def forward(ctx: Any, logits_btv: Tensor) -> Tensor:
        entropies_bt = _zeros(logits_btv)
        for logits, entropies in _pieces(logits_btv, entropies_bt):
            entropies.copy_(torch.special.entr(logits.to(entropies.dtype).softmax(-1)).sum(-1))
        ctx.save_for_backward(logits_btv, entropies_bt)
        return entropies_bt

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_bt: Tensor) -> tuple[Tensor]:
        logits_btv, entropies_bt = ctx.saved_tensors
        made_btv = _gradient_like(logits_btv)
        for made, logits, entropies, gradient in _pieces(made_btv, logits_btv, entropies_bt, gradient_bt):
            p = logits.to(entropies.dtype).softmax(-1)
            made.copy_((torch.special.entr(p) - p * entropies[:, None]) * gradient[:, None])
        return (made_btv,)
