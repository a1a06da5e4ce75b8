"""Steps of PPO, GRPO and DPO are what one computes by hand on one device, with the whole batch at once."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from slices import few
from small_fleet import HOW, PROMPTS, STEP, make

import labkit
from labkit.align import (
    dpo_loss,
    generalized_advantages,
    group_advantages,
    grpo_loss,
    masked_sums,
    policy_loss,
    token_logprobs,
    token_rewards,
    value_loss,
)
from labkit.align.batching import padded
from labkit.align.fleet import GRPO, DPOConfig, Fleet, Placement, dpo_step, grpo_step, ppo_step
from labkit.align.fleet.grpo import asked
from labkit.align.rollout import generate
from labkit.models import state
from labkit.models.threads import one_thread

ONCE = replace(STEP, epochs=1, minibatches=1)
PAIRS = [((1, 2, n), tuple(range(1 + n % 3)), tuple(range(4, 6 + n % 4))) for n in range(7)]

pytestmark = pytest.mark.ranks


def plain(fleet, max_norm):
    """The same fleet with SGD: Adam would hide a gradient that is too large by a factor."""
    for learner in fleet.learners.values():
        learner.optimizer = torch.optim.SGD(learner.model.parameters(), 0.5)
        learner.max_norm = max_norm
    return fleet


def on(placement, step, make=make, max_norm=math.inf):
    """What every rank tells of `step(fleet)`, and the weights of each model after it."""

    def work(group):
        with one_thread():
            fleet = plain(Fleet(placement, group, make), max_norm)
            told = step(fleet)
            return told, {role: state(model) for role, model in fleet.models.items()}

    results = labkit.launch(work, placement.size, transport="local").results
    return results, {role: weights for _, held in results for role, weights in held.items()}


def updated(model, loss, max_norm=math.inf):
    """The weights after one update by the gradient of `loss`."""
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    assert norm > 0.02 and (max_norm == math.inf or norm > max_norm)
    torch.optim.SGD(model.parameters(), 0.5).step()
    return state(model)


def close(weights, others):
    for name, x in weights.items():
        torch.testing.assert_close(x, others[name], rtol=0, atol=2e-6, msg=lambda said, name=name: f"{name}: {said}")


def rows(samples):
    """Tokens and mask of the responses of all samples, in one padded batch."""
    tokens, mask = padded([torch.tensor(s.prompt + s.tokens) for s in samples])
    for b, s in enumerate(samples):
        mask[b, : len(s.prompt)] = False
    return tokens, mask


def written(prompts):
    return list(generate(make("policy"), prompts, HOW).samples.values())


@pytest.mark.parametrize("placement", few([Placement.separate(2, 1, 1, 2), Placement.colocated(3)], 1))
def test_a_step_of_ppo(placement):
    policy, reference, reward, critic = (make(role) for role in ("policy", "reference", "reward", "critic"))
    samples = written(PROMPTS)
    tokens, mask = rows(samples)
    old, fixed = (token_logprobs(m(tokens), tokens).detach() for m in (policy, reference))
    values = torch.zeros(tokens.shape)
    values[:, 1:] = critic(tokens)[:, :-1]
    scores = masked_sums(reward(tokens), mask)
    advantages, returns = generalized_advantages(token_rewards(scores, old, fixed, mask, ONCE.beta), values, mask,
                                                 ONCE.gamma, ONCE.lam)  # fmt: skip
    kept = advantages[mask]
    white = torch.where(mask, (advantages - kept.mean()) / kept.std(correction=0), 0)
    n = int(mask.sum())
    told = policy_loss(token_logprobs(policy(tokens), tokens), old, white, mask, n)
    value = value_loss(values, values, returns, mask, n, ONCE.value_clip)
    results, weights = on(placement, lambda fleet: ppo_step(fleet, PROMPTS, HOW, ONCE), max_norm=0.01)
    for found, _ in results:
        assert found.reward == pytest.approx(scores.mean().item(), rel=1e-4)
        assert found.value_loss == pytest.approx(value.loss.item(), rel=1e-4)
        assert found.loss == pytest.approx(told.loss.item(), abs=1e-6) and found.kl == pytest.approx(0, abs=1e-5)
        assert found.length == pytest.approx(n / len(samples))
    close(weights["policy"], updated(policy, told.loss, 0.01))
    close(weights["critic"], updated(critic, value.loss, 0.01))


@pytest.mark.parametrize("mean", ["token", "sequence"])
@pytest.mark.parametrize("placement", few([Placement.separate(2, 1, 1), Placement.colocated(2, critic=False)], 1))
def test_a_step_of_grpo(placement, mean):
    grpo = GRPO(responses=3, prompts=2, mean=mean, epochs=1, minibatches=1, budget=64)
    policy, reference, reward = (make(role) for role in ("policy", "reference", "reward"))
    samples = written(asked(PROMPTS, 3))
    tokens, mask = rows(samples)
    old, fixed = (token_logprobs(m(tokens), tokens).detach() for m in (policy, reference))
    advantages = group_advantages(masked_sums(reward(tokens), mask).view(-1, 3)).flatten()
    total = int(mask.sum()) if mean == "token" else len(samples)
    told = grpo_loss(token_logprobs(policy(tokens), tokens), old, fixed, advantages, mask, total, mean, 0.2, grpo.beta)
    results, weights = on(placement, lambda fleet: grpo_step(fleet, PROMPTS, HOW, grpo))
    for found, _ in results:
        assert found.loss == pytest.approx(told.loss.item(), abs=1e-5)
    close(weights["policy"], updated(policy, told.loss))


def test_advantages_of_ones_own_are_those_that_are_learned_from():
    grpo = GRPO(responses=3, prompts=2, epochs=1, minibatches=1, budget=64)
    policy, reference, reward = (make(role) for role in ("policy", "reference", "reward"))
    tokens, mask = rows(written(asked(PROMPTS, 3)))
    old, fixed = (token_logprobs(m(tokens), tokens).detach() for m in (policy, reference))
    advantages = 2 * masked_sums(reward(tokens), mask)  # not even their mean taken away
    told = grpo_loss(token_logprobs(policy(tokens), tokens), old, fixed, advantages, mask, int(mask.sum()), "token")
    places = Placement.colocated(2, critic=False)
    _, weights = on(places, lambda fleet: grpo_step(fleet, PROMPTS, HOW, grpo, advantages=lambda r: 2 * r))
    close(weights["policy"], updated(policy, told.loss))


def test_responses_of_an_older_policy_are_weighted():
    grpo = GRPO(responses=3, prompts=2, epochs=1, minibatches=1)
    policy, reference, reward = (make(role) for role in ("policy", "reference", "reward"))
    older = make("policy")
    with torch.no_grad():
        for p in older.parameters():
            p.mul_(1.3)
    samples = generate(older, asked(PROMPTS, 3), HOW).samples
    tokens, mask = rows(samples.values())
    old, fixed, behaviour = (token_logprobs(m(tokens), tokens).detach() for m in (policy, reference, older))
    weights = torch.where(mask, (old - behaviour).exp().clamp(max=1.2), 0)
    assert 0.1 < float((weights[mask] == 1.2).float().mean()) < 0.9
    advantages = group_advantages(masked_sums(reward(tokens), mask).view(-1, 3)).flatten()
    n = int(mask.sum())
    logprobs = token_logprobs(policy(tokens), tokens)
    told = grpo_loss(logprobs, old, fixed, advantages, mask, n, "token", 0.2, grpo.beta, weights)
    results, models = on(
        Placement.separate(2, 1, 1), lambda fleet: grpo_step(fleet, PROMPTS, HOW, grpo, samples, cap=1.2)
    )
    assert [found.loss for found, _ in results] == [pytest.approx(told.loss.item(), abs=1e-5)] * 4
    close(models["policy"], updated(policy, told.loss))


@pytest.mark.parametrize("placement", few([Placement((0, 1), (2,)), Placement((1, 0, 2), (2, 1))], 1))
def test_a_step_of_dpo(placement):
    policy, reference = make("policy"), make("reference")
    with torch.no_grad():
        for p in policy.parameters():
            p.mul_(1.1)

    def step(fleet):
        if "policy" in fleet.models:
            with torch.no_grad():
                for p in fleet.models["policy"].parameters():
                    p.mul_(1.1)
        return dpo_step(fleet, PAIRS, DPOConfig(pairs=2, budget=50))

    def sums(model, which):
        tokens, mask = padded([torch.tensor(pair[0] + pair[which]) for pair in PAIRS])
        mask[:, :3] = False
        return masked_sums(token_logprobs(model(tokens), tokens), mask)

    told = dpo_loss(sums(policy, 1), sums(policy, 2), sums(reference, 1), sums(reference, 2), 0.1, len(PAIRS))
    results, weights = on(placement, step)
    for found, _ in results:
        assert found.loss == pytest.approx(told.loss.item(), rel=1e-4) and found.loss != pytest.approx(
            math.log(2), rel=1e-4
        )
        assert found.accuracy == pytest.approx(told.accuracy.item()) and 0 < found.accuracy < 1
        assert found.margin == pytest.approx(told.margin.item(), abs=1e-5)
    close(weights["policy"], updated(policy, told.loss))


def test_prompts_whose_responses_have_equal_rewards_are_left_out():
    """Here a reward is the number of tokens 12, so that some prompts have two responses of equal reward."""
    grpo = GRPO(responses=2, prompts=3, epochs=1, minibatches=1)

    def equal_for_some(role):
        model = make(role)
        if role == "reward":
            model.forward = lambda tokens: (tokens == 12).float()
        return model

    samples = written(asked(PROMPTS, 2))
    scores = torch.tensor([float(sum(t == 12 for t in s.tokens)) for s in samples]).view(-1, 2)
    kept = (scores[:, 0] != scores[:, 1]).repeat_interleave(2).nonzero()[:, 0].tolist()
    assert 0 < len(kept) < len(samples)
    policy, reference = make("policy"), make("reference")
    tokens, mask = rows([samples[i] for i in kept])
    old, fixed = (token_logprobs(m(tokens), tokens).detach() for m in (policy, reference))
    advantages = group_advantages(scores).flatten()[kept]
    n = int(mask.sum())
    told = grpo_loss(token_logprobs(policy(tokens), tokens), old, fixed, advantages, mask, n, "token", 0.2, grpo.beta)

    results, weights = on(
        Placement.colocated(2, critic=False), lambda fleet: grpo_step(fleet, PROMPTS, HOW, grpo), equal_for_some
    )
    assert [found.loss for found, _ in results] == [pytest.approx(told.loss.item(), abs=1e-5)] * 2
    close(weights["policy"], updated(policy, told.loss))
