"""PPO: rewards, advantages and losses against loops over tokens, whatever the masks are."""

import math

import pytest
import torch
from hypothesis import given, strategies as st

from labkit.align import (
    clipped_objective,
    generalized_advantages,
    k1,
    k3,
    moments,
    policy_loss,
    token_rewards,
    value_loss,
    whiten,
)

from .batches import batch, counted, seeds


@given(seed=seeds, beta=st.floats(0, 1))
def test_rewards_of_tokens(seed, beta):
    mask, (policy, reference, *_) = batch(seed)
    scores = torch.tensor([2.0, -1.0, 0.5], dtype=torch.float64)
    found = token_rewards(scores, policy, reference, mask, beta)
    for b, steps in enumerate(counted(mask)):
        expected = [0.0] * mask.shape[1]
        for at in steps:
            expected[at] = -beta * float(policy[b, at] - reference[b, at])
        expected[steps[-1]] += float(scores[b])
        assert found[b].tolist() == pytest.approx(expected)


def test_a_response_without_a_token_has_no_place_for_its_score():
    mask = torch.tensor([[True, False], [False, False]])
    with pytest.raises(ValueError, match="response 1 has no token"):
        token_rewards(torch.zeros(2), torch.zeros(2, 2), torch.zeros(2, 2), mask, 0.1)


@given(seed=seeds, gamma=st.sampled_from([0.0, 0.9, 1.0]), lam=st.sampled_from([0.0, 0.5, 0.95, 1.0]))
def test_advantages_as_the_paper_sums_them(seed, gamma, lam):
    """A_t = sum over l of (gamma lam)^l delta_(t + l), forwards, with 0^0 = 1."""
    mask, (rewards, values, *_) = batch(seed)
    advantages, returns = generalized_advantages(rewards, values, mask, gamma, lam)
    for b, steps in enumerate(counted(mask)):
        r, v = ([float(x[b, at]) for at in steps] for x in (rewards, values))
        delta = [r[i] + gamma * (v[i + 1] if i + 1 < len(v) else 0.0) - v[i] for i in range(len(r))]
        expected = [0.0] * mask.shape[1]
        for i, at in enumerate(steps):
            expected[at] = sum((gamma * lam) ** (j - i) * delta[j] for j in range(i, len(delta)))
        assert advantages[b].tolist() == pytest.approx(expected)
        kept = [expected[at] + float(values[b, at]) if at in steps else 0.0 for at in range(mask.shape[1])]
        assert returns[b].tolist() == pytest.approx(kept)


@given(seed=seeds, gamma=st.sampled_from([0.5, 1.0]))
def test_with_lambda_1_an_advantage_is_what_comes_minus_the_value(seed, gamma):
    mask, (rewards, values, *_) = batch(seed)
    advantages, returns = generalized_advantages(rewards, values, mask, gamma, lam=1.0)
    for b, steps in enumerate(counted(mask)):
        for i, at in enumerate(steps):
            coming = sum(gamma**n * float(rewards[b, later]) for n, later in enumerate(steps[i:]))
            assert float(returns[b, at]) == pytest.approx(coming)
            assert float(advantages[b, at]) == pytest.approx(coming - float(values[b, at]))


@pytest.mark.parametrize("name", ["gamma", "lam"])
def test_discounts_are_shares(name):
    x, mask = torch.zeros(1, 2), torch.ones(1, 2, dtype=torch.bool)
    with pytest.raises(ValueError, match=f"{name}=1.5"):
        generalized_advantages(x, x, mask, **{name: 1.5})


@given(seed=seeds, cut=st.integers(0, 3))
def test_whitening_by_parts_is_whitening_the_whole(seed, cut):
    mask, (x, *_) = batch(seed)
    both = moments(x[:cut], mask[:cut]) + moments(x[cut:], mask[cut:])
    found = torch.cat([whiten(x[:cut], mask[:cut], both), whiten(x[cut:], mask[cut:], both)])
    kept = [float(x[b, at]) for b, steps in enumerate(counted(mask)) for at in steps]
    mean = sum(kept) / len(kept)
    spread = math.sqrt(sum((one - mean) ** 2 for one in kept) / len(kept) + 1e-8)
    assert found[mask].tolist() == pytest.approx([(one - mean) / spread for one in kept], abs=1e-6)
    assert not found[~mask].any()


def test_whitening_one_token_and_none():
    x, mask = torch.tensor([[3.0, 5.0]]), torch.tensor([[False, True]])
    assert whiten(x, mask, moments(x, mask)).tolist() == [[0, 0]]
    with pytest.raises(ValueError, match="false everywhere"):
        whiten(x, mask & False, moments(x, mask & False))


@given(seed=seeds, clip=st.sampled_from([0.1, 0.2, 0.5]), weighted=st.booleans())
def test_the_policys_loss_token_by_token(seed, clip, weighted):
    mask, (new, old, advantages, weights) = batch(seed)
    new.requires_grad_()
    tokens = int(mask.sum()) + 2  # two more are on another rank
    found = policy_loss(new, old, advantages, mask, tokens, clip, weights if weighted else None)
    found.loss.backward()
    loss = clipped = kl = 0.0
    for b, steps in enumerate(counted(mask)):
        for at in range(mask.shape[1]):
            if at not in steps:
                assert float(new.grad[b, at]) == 0
                continue
            a, w = float(advantages[b, at]), float(weights[b, at]) if weighted else 1.0
            ratio = math.exp(float((new.detach() - old)[b, at]))
            inside = min(max(ratio, 1 - clip), 1 + clip)
            stopped = inside * a < ratio * a
            loss -= w * min(ratio * a, inside * a) / tokens
            clipped += stopped / tokens
            kl += (ratio - 1 - math.log(ratio)) / tokens
            # The derivative of a ratio by its logarithm is the ratio.
            assert float(new.grad[b, at]) == pytest.approx(0.0 if stopped else -w * ratio * a / tokens)
    assert [found.loss.item(), float(found.clipped), float(found.kl)] == pytest.approx([loss, clipped, kl])


@given(seed=seeds, clip=st.sampled_from([0.1, 0.5]))
def test_the_critics_loss_token_by_token(seed, clip):
    mask, (new, old, returns, _) = batch(seed)
    new.requires_grad_()
    tokens = int(mask.sum())
    found = value_loss(new, old, returns, mask, tokens, clip)
    found.loss.backward()
    loss = clipped = 0.0
    for b, steps in enumerate(counted(mask)):
        for at in steps:
            v, before, goal = float(new.detach()[b, at]), float(old[b, at]), float(returns[b, at])
            near = min(max(v, before - clip), before + clip)
            plain, other = (v - goal) ** 2, (near - goal) ** 2
            loss += 0.5 * max(plain, other) / tokens
            clipped += (other > plain) / tokens
            assert float(new.grad[b, at]) == pytest.approx(0.0 if other > plain else (v - goal) / tokens)
    assert not new.grad[~mask].any()
    assert [found.loss.item(), float(found.clipped)] == pytest.approx([loss, clipped])


@given(seed=seeds, cut=st.integers(0, 3))
def test_microbatches_add_up_in_losses_and_gradients(seed, cut):
    mask, (new, old, advantages, _) = batch(seed)
    new.requires_grad_()
    tokens = int(mask.sum())
    whole = policy_loss(new, old, advantages, mask, tokens)
    (expected,) = torch.autograd.grad(whole.loss, new)
    parts = [policy_loss(*(x[rows] for x in (new, old, advantages, mask)), tokens)
             for rows in (slice(cut), slice(cut, None))]  # fmt: skip
    for part in parts:
        part.loss.backward()
    torch.testing.assert_close(new.grad, expected)
    for name in ("loss", "clipped", "kl"):
        torch.testing.assert_close(sum(getattr(x, name) for x in parts), getattr(whole, name))


def test_before_the_first_update_nothing_is_clipped():
    logprobs = -torch.rand(2, 3)
    objective, stopped = clipped_objective(logprobs, logprobs, torch.tensor([[1.0, -1, 0]] * 2), 0.2)
    assert objective.tolist() == [[1, -1, 0]] * 2 and not stopped.any()


def test_the_estimates_have_the_divergence_as_their_mean():
    p, q = (torch.tensor(x, dtype=torch.float64) for x in ([0.5, 0.3, 0.2], [0.2, 0.3, 0.5]))
    divergence = sum(a * math.log(a / b) for a, b in zip(p.tolist(), q.tolist(), strict=True))
    for estimate in (k1, k3):
        assert float((p * estimate(p.log(), q.log())).sum()) == pytest.approx(divergence)
    assert (k1(p.log(), q.log()) < 0).any() and (k3(p.log(), q.log()) >= 0).all()


@pytest.mark.parametrize(("call", "named"), [
    (lambda x, m: policy_loss(x, x, x, m, 2, clip=0.0), "clip=0.0"),
    (lambda x, m: policy_loss(x, x, x, m, 2, clip=1.0), "clip=1.0"),
    (lambda x, m: policy_loss(x, x, x, m, 0), "above 0, not 0"),
    (lambda x, m: value_loss(x, x, x, m, 2, clip=0), "clip=0"),
])  # fmt: skip
def test_refusals(call, named):
    with pytest.raises(ValueError, match=named):
        call(torch.zeros(1, 2), torch.ones(1, 2, dtype=torch.bool))
