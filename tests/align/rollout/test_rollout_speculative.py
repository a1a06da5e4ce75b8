"""A draft changes how many passes the target needs, and nothing of what it would have said."""

from __future__ import annotations

import pytest
import torch
from likely import chi_square

import labkit.align.rollout.speculative as speculative
from labkit.align.rollout import Sampling, generate, speculate
from labkit.align.rollout.sequences import Growing
from labkit.models import GPT, GPTConfig
from labkit.wire.errors import RefusedError

TARGET = GPT(GPTConfig(vocab=4, context=24, layers=1, heads=2, width=16, rotary=True, tied=False), seed=5)
DRAFT = GPT(GPTConfig(vocab=4, context=24, layers=1, heads=1, width=8, tied=False), seed=4)
DRAFTS = [DRAFT, GPT(TARGET.config, seed=7), TARGET]
PROMPTS = {3 * i: [i % 4] * (1 + i % 5) for i in range(8)}
P = torch.tensor([0.5, 0.3, 0.2, 0.0], dtype=torch.float64)
Q = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("k", [1, 2, 5, 30])
@pytest.mark.parametrize("end", [None, 2])
def test_greedy_it_is_the_targets_own_output(draft, k, end):
    how = Sampling(15, end=end, temperature=0)
    found, wanted = speculate(TARGET, draft, PROMPTS, how, k), generate(TARGET, PROMPTS, how)
    assert found.samples == wanted.samples
    made = sum(len(s.tokens) for s in wanted.samples.values())
    assert found.passes <= made and found.accepted <= found.examined <= found.proposed
    assert found.examined - found.accepted <= found.passes  # a pass rejects one guess, and looks at none behind it
    if draft is TARGET:
        assert found.acceptance == 1.0 and found.proposed <= made  # nothing is proposed after an end token
        if end is None:  # k + 1 tokens a pass
            assert found.passes == 8 * -(-15 // (k + 1)) and made == found.passes + found.accepted


@pytest.mark.parametrize("how", [Sampling(10, end=1, temperature=0.8, seed=5), Sampling(10, top_k=2, top_p=0.9)])
def test_log_probs_are_the_targets_and_a_sequence_ends_as_it_should(how):
    found = speculate(TARGET, DRAFT, PROMPTS, how, 3)
    for s in found.samples.values():
        with torch.no_grad():
            logits_tv = TARGET(torch.tensor([[*s.prompt, *s.tokens]]))[0, len(s.prompt) - 1 : -1]
        wanted = how.log_probs(logits_tv)[range(len(s.tokens)), s.tokens]
        torch.testing.assert_close(torch.tensor(s.log_probs).double(), wanted, rtol=0, atol=1e-5)
        assert how.end not in s.tokens[:-1] and (s.ended == "end") == (s.tokens[-1] == how.end)
        assert s.ended == "end" or len(s.tokens) == 10
    assert found == speculate(TARGET, DRAFT, PROMPTS, how, 3)
    assert speculate(TARGET, TARGET, PROMPTS, how, 3).acceptance == 1.0


def test_up_to_the_last_position_of_the_context():
    found = speculate(TARGET, DRAFT, {0: [1] * 23, 1: [2] * 18}, Sampling(50), 4).samples
    assert [(len(s.tokens), s.ended) for s in found.values()] == [(1, "length"), (6, "length")]


def outcomes(count=4000, k=1):
    """What `accept` makes of k proposals drawn from Q where the target has P: the first token, and how many."""
    first, kept = [], 0
    for sequence in range(count):
        s = Growing(sequence, (0,), Sampling(9), 24)
        guesses = [speculative.draw(Q.log()[None], [s.uniform("draft", ahead=i)])[0] for i in range(k)]
        tokens = speculative.accept(P.log().expand(k + 1, 4), Q.log().expand(k, 4), guesses, s)
        first.append(tokens[0])
        kept += len(tokens) - 1
    return torch.tensor(first).bincount(minlength=4), kept / count


@pytest.mark.parametrize("k", [1, 3])
def test_the_rule_gives_the_targets_distribution_and_accepts_what_both_have_in_common(k):
    counts, kept = outcomes(k=k)
    assert counts[3] == 0 and chi_square(counts[:3], 4000 * P[:3]) > 0.01
    alpha = float(torch.minimum(P, Q).sum())  # 0.5
    assert abs(kept - sum(alpha**i for i in range(1, k + 1))) < 0.04  # the paper's equation 1, without the target's


def pairs(count=400):
    """The first two of three tokens after a prompt, by frequency and as the target has them."""
    how = Sampling(3, temperature=1.1, seed=2)
    found = speculate(TARGET, DRAFT, dict.fromkeys(range(count), [1, 0]), how, 2)
    with torch.no_grad():
        first = how.log_probs(TARGET(torch.tensor([[1, 0]]))[:, -1])[0]
        second = how.log_probs(TARGET(torch.tensor([[1, 0, x] for x in range(4)]))[:, -1])
    counts = torch.tensor([4 * s.tokens[0] + s.tokens[1] for s in found.samples.values()]).bincount(minlength=16)
    return counts, count * (first[:, None] + second).exp().flatten()


def test_two_tokens_in_a_row_have_the_targets_distribution():
    counts, expected = pairs()
    assert expected.min() > 2 and chi_square(counts, expected) > 0.01


@pytest.mark.parametrize("slip", ["keeps everything", "draws again from the target", "draws again from the draft"])
def test_the_tests_of_the_distribution_see_a_wrong_rule(slip, monkeypatch):
    right = speculative.accept

    def wrong(p_kv, q_kv, guesses, s):
        tokens = right(p_kv, q_kv, guesses, s)
        at = len(tokens) - 1
        if at == len(guesses):
            return tokens
        if slip == "keeps everything":
            return [*guesses, tokens[-1]]
        again = (p_kv if slip.endswith("target") else q_kv)[at : at + 1]
        return [*guesses[:at], *speculative.draw(again, [s.uniform("token", ahead=at)])]

    monkeypatch.setattr(speculative, "accept", wrong)
    counts, _ = outcomes()
    assert counts[3] or chi_square(counts[:3], 4000 * P[:3]) < 1e-4
    if slip == "keeps everything":
        assert chi_square(*pairs()) < 1e-4


def test_models_that_do_not_fit_are_refused():
    other = GPT(GPTConfig(vocab=5, context=24))
    short = GPT(GPTConfig(vocab=4, context=23))
    for draft in (other, short):
        with pytest.raises(RefusedError, match="the draft has"):
            speculate(TARGET, draft, PROMPTS, Sampling(3))
    with pytest.raises(RefusedError, match="k=0"):
        speculate(TARGET, TARGET, PROMPTS, Sampling(3), 0)
    with pytest.raises(RefusedError, match="sequence 7 is empty"):
        speculate(TARGET, TARGET, {7: []}, Sampling(3))
