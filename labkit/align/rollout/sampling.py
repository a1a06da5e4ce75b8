"""How the next token is drawn.

The number that decides a draw follows from the seed, the id of the sequence and the position alone. So a sequence gets
the same tokens whoever generates it, in whichever batch, and again after a failure.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from labkit.wire.errors import RefusedError


@dataclass(frozen=True)
class Sampling:
    """The policy that tokens are drawn from, and when a sequence ends.

    new_tokens: at most so many, and never beyond the model's context. end: the token after which a sequence ends.
    temperature: what logits are divided by; 0 is greedy, the token with the highest logit (the first of several).
    top_k: only the k most probable tokens. top_p: only the fewest most probable tokens that have the probability top_p
    together (Holtzman et al. 2020, section 3.1, the nucleus), after top_k.
    """

    new_tokens: int
    end: int | None = None
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("new_tokens", 1), ("end", 0), ("top_k", 1)):
            value = getattr(self, name)
            if not (value is None and name != "new_tokens") and not (type(value) is int and value >= least):
                raise RefusedError(f"Sampling({name}={value!r}): a whole number of at least {least}")
        if not 0 <= self.temperature < math.inf:
            raise RefusedError(f"Sampling(temperature={self.temperature}): 0 for greedy, or a number above 0")
        if not 0 < self.top_p <= 1:
            raise RefusedError(f"Sampling(top_p={self.top_p}): a probability above 0; 1 keeps every token")

    def log_probs(self, logits_bv: Tensor) -> Tensor:
        """Logarithms of the probabilities with which each token is drawn, (b, v) float64; -inf for one that is not."""
        logits_bv = logits_bv.double()
        if self.temperature == 0:
            best_b1 = logits_bv.argmax(-1, keepdim=True)
            return torch.full_like(logits_bv, -math.inf).scatter(-1, best_b1, 0.0)
        logits_bv = logits_bv - logits_bv.amax(-1, keepdim=True)  # so that a quotient cannot be +inf
        sorted_bv, order_bv = (logits_bv / self.temperature).sort(dim=-1, descending=True, stable=True)
        if self.top_k is not None:
            sorted_bv[:, self.top_k :] = -math.inf
        if self.top_p < 1:
            probs_bv = sorted_bv.softmax(-1)
            without_bv = probs_bv.cumsum(-1) - probs_bv >= self.top_p  # the more probable ones have top_p by themselves
            sorted_bv[without_bv] = -math.inf
        return torch.empty_like(sorted_bv).scatter(-1, order_bv, sorted_bv.log_softmax(-1))


def uniform(seed: int, sequence: int, position: int, purpose: str = "token") -> float:
    """A number from 0 to below 1 that is the same for the same arguments everywhere, and otherwise independent."""
    return random.Random(f"{seed} {sequence} {position} {purpose}").random()


def draw(log_probs_bv: Tensor, uniform_b: Sequence[float]) -> list[int]:
    """A token of each row: the first one with which the probabilities add up to more than its uniform number."""
    upto_bv = log_probs_bv.exp().cumsum(-1)
    wanted_b1 = torch.tensor(uniform_b, dtype=upto_bv.dtype, device=upto_bv.device)[:, None] * upto_bv[:, -1:]
    return [int(token) for token in (upto_bv <= wanted_b1).sum(-1)]


def check_logits(logits_bv: Tensor, sequences: Sequence[int]) -> None:
    """Raise RefusedError, with the ids, where the logits of a sequence are no numbers that one can draw by."""
    bad_b = ~logits_bv.amax(-1).isfinite()
    if bad_b.any():
        named = [i for i, bad in zip(sequences, bad_b.tolist(), strict=True) if bad]
        raise RefusedError(
            f"the logits of sequence {', '.join(map(str, named))} are NaN or infinite: look at the model's weights"
        )
