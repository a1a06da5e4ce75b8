"""Speculative decoding: a small model guesses several tokens, and the large one checks all of them in one pass.

A decoding step takes as long as reading all weights from memory, whether it has one token to look at or five. So a
draft model proposes k tokens, one after the other, and the target model looks at all of them at once. What is kept is
distributed exactly as if the target had drawn each token by itself (Leviathan et al. 2023, appendix A.1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from labkit.align.rollout.cache import PagedCache
from labkit.align.rollout.decode import extend
from labkit.align.rollout.sampling import Sampling, check_logits, draw
from labkit.align.rollout.sequences import Growing, Prompts, Sample, begin
from labkit.models.gpt import GPT
from labkit.wire.errors import RefusedError


@dataclass(frozen=True)
class Speculation:
    """samples: by id. passes: of the target model. proposed: tokens of the draft.

    examined: proposals before which none of the same pass was rejected. accepted: those that were kept.
    """

    samples: dict[int, Sample]
    passes: int
    proposed: int
    examined: int
    accepted: int

    @property
    def acceptance(self) -> float:
        """The part of the examined proposals that was kept: alpha in the paper. NaN if there were none."""
        return self.accepted / self.examined if self.examined else math.nan


def speculate(target: GPT, draft: GPT, prompts: Prompts, how: Sampling, k: int = 4) -> Speculation:
    """Go on from each prompt, one sequence at a time, with k proposals of `draft` before each pass of `target`.

    A pass gives one token more than it accepts. With temperature 0 the tokens are those of `generate`; otherwise they
    are others with the same distribution, and like those they follow from seed, id and position. Both models draw by
    the same policy, and `log_probs` are the target's. Raises RefusedError for models of different vocabularies, a draft
    with a shorter context, and what `generate` refuses.
    """
    if type(k) is not int or k < 1:
        raise RefusedError(f"k={k!r}: a whole number of proposals for each pass of the target, at least 1")
    if draft.config.vocab != target.config.vocab or draft.config.context < target.config.context:
        raise RefusedError(
            f"the draft has {draft.config.vocab} symbols and a context of {draft.config.context}, the target "
            f"{target.config.vocab} and {target.config.context}: it needs the same symbols and no shorter context"
        )
    samples, passes, proposed, examined, accepted = dict[int, Sample](), 0, 0, 0, 0
    for s in begin(prompts, how, target.config):
        target_cache, draft_cache = _cache(target), _cache(draft)
        while not s.ended:
            guesses, q_kv = propose(draft, draft_cache, s, min(k, s.left - 1))
            p_kv = _log_probs(target, target_cache, s, guesses)
            tokens = accept(p_kv, q_kv, guesses, s)
            for token, log_probs_v in zip(tokens, p_kv[: len(tokens)], strict=True):
                if not s.ended:  # after an accepted end token comes nothing
                    s.add(token, float(log_probs_v[token]))
            for cache in (target_cache, draft_cache):  # what was rejected
                cache.cut(s.sequence, min(cache.lengths.get(s.sequence, 0), len(s.whole) - 1))
            passes, proposed, accepted = passes + 1, proposed + len(guesses), accepted + len(tokens) - 1
            examined += min(len(tokens), len(guesses))
        samples[s.sequence] = s.sample()
    return Speculation(samples, passes, proposed, examined, accepted)


def propose(draft: GPT, cache: PagedCache, s: Growing, k: int) -> tuple[list[int], Tensor]:
    """Up to k tokens that the draft draws one after the other, none after an end token, and its log-probs (k, v).

    A guess behind a rejected one was never looked at, so the number that decided it may decide again in the next pass.
    """
    guesses, rows = list[int](), [draft.tokens.weight.new_empty(0, draft.config.vocab, dtype=torch.float64)]
    while len(guesses) < k and s.how.end not in guesses:
        rows.append(_log_probs(draft, cache, s, guesses)[-1:])
        guesses += draw(rows[-1], [s.uniform("draft", ahead=len(guesses))])
    return guesses, torch.cat(rows)


def accept(p_kv: Tensor, q_kv: Tensor, guesses: Sequence[int], s: Growing) -> list[int]:
    """The guesses up to the first that is rejected, and then one token of the target's (algorithm 1 of the paper).

    p_kv: the target's log-probabilities, one row more than the draft's, q_kv. A guess x is kept with probability
    min(1, p(x) / q(x)). In the place of a rejected one comes a token drawn from max(0, p - q), normalised, which has
    what the draft proposes too rarely; after the last guess, if all are kept, one drawn from p.
    """
    for i, guess in enumerate(guesses):
        if s.uniform("accept", ahead=i) >= math.exp(p_kv[i, guess] - q_kv[i, guess]):
            left_1v = (p_kv[i : i + 1].exp() - q_kv[i : i + 1].exp()).clamp(min=0).log()
            return [*guesses[:i], *draw(left_1v, [s.uniform("token", ahead=i)])]
    return [*guesses, *draw(p_kv[-1:], [s.uniform("token", ahead=len(guesses))])]


def _log_probs(model: GPT, cache: PagedCache, s: Growing, guesses: Sequence[int]) -> Tensor:
    """Log-probabilities of the token after the sequence and after each guess, by one pass over what the cache lacks.

    (k + 1, v) for k guesses; fewer rows, the last ones, where the first guesses are in the cache already.
    """
    fresh = [*s.whole, *guesses][cache.lengths.get(s.sequence, 0) :]
    logits_tv = extend(model, cache, {s.sequence: fresh})[0][-(len(guesses) + 1) :]
    check_logits(logits_tv, [s.sequence] * len(logits_tv))
    return s.how.log_probs(logits_tv)


def _cache(model: GPT) -> PagedCache:
    """For one sequence: a single block for the whole context."""
    weight = model.tokens.weight
    return PagedCache(model.config, 1, model.config.context, weight.dtype, weight.device)
