"""GRPO against its equations, and what old rollouts weigh."""

import math
from statistics import mean, stdev

import pytest
import torch
from hypothesis import given, strategies as st

from labkit.align import (
    effective_sample_size,
    fresh,
    group_advantages,
    grpo_loss,
    importance_weights,
    may_begin,
    moments,
    policy_loss,
)

from .batches import batch, counted, seeds

rewards = st.floats(-3, 3).map(lambda x: round(x, 3))


@given(groups=st.lists(st.lists(rewards, min_size=4, max_size=4), min_size=1, max_size=4), scale=st.booleans())
def test_advantages_within_groups(groups, scale):
    found = group_advantages(torch.tensor(groups, dtype=torch.float64), scale).tolist()
    for group, ours in zip(groups, found, strict=True):
        if len(set(group)) == 1:
            assert ours == [0.0] * 4
        else:
            spread = stdev(group) if scale else 1
            assert ours == pytest.approx([(r - mean(group)) / spread for r in group])


@pytest.mark.parametrize("reward", [0.0, 0.1, 1e8, -3.3])
@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_equals_teach_nothing(reward, size):
    """The mean of seven times 0.1 is not 0.1 in 32 bits, and neither is their deviation 0."""
    assert group_advantages(torch.full((3, size), reward)).tolist() == [[0.0] * size] * 3


def test_rewards_need_groups():
    with pytest.raises(ValueError, match=r"\(4,\).*prompts"):
        group_advantages(torch.zeros(4))
    with pytest.raises(ValueError, match='"sequence" and "token"'):
        grpo_loss(*[torch.zeros(1, 2)] * 3, torch.zeros(1), torch.ones(1, 2, dtype=torch.bool), 2, mean="prompt")


@given(seed=seeds, how=st.sampled_from(["sequence", "token"]), beta=st.sampled_from([0.0, 0.04, 1.0]))
def test_the_loss_token_by_token(seed, how, beta):
    mask, (new, old, reference, weights) = batch(seed)
    advantages, clip = torch.tensor([1.5, -0.5, 0.0], dtype=torch.float64), 0.2
    total = 3 if how == "sequence" else int(mask.sum())

    def written_out(x):
        terms = []
        for b, steps in enumerate(counted(mask)):
            of_one = []
            for at in steps:
                ratio = torch.exp(x[b, at] - old[b, at])
                kept = ratio.clamp(1 - clip, 1 + clip)
                gain = weights[b, at] * torch.minimum(ratio * advantages[b], kept * advantages[b])
                r = torch.exp(reference[b, at] - x[b, at])
                of_one.append(gain - beta * (r - torch.log(r) - 1))
            terms.append(sum(of_one) / len(of_one) / 3 if how == "sequence" else sum(of_one) / int(mask.sum()))
        return -sum(terms)

    ours, theirs = new.clone().requires_grad_(), new.clone().requires_grad_()
    found = grpo_loss(ours, old, reference, advantages, mask, total, how, clip, beta, weights)
    found.loss.backward()
    expected = written_out(theirs)
    expected.backward()
    torch.testing.assert_close(found.loss, expected)
    torch.testing.assert_close(ours.grad, theirs.grad.where(mask, 0))


@given(seed=seeds)
def test_a_constant_denominator_is_drgrpo_and_the_same_sum(seed):
    mask, (new, old, reference, _) = batch(seed)
    advantages = torch.tensor([1.0, -1.0, 0.5], dtype=torch.float64)
    dapo = grpo_loss(new, old, reference, advantages, mask, int(mask.sum()), "token")
    constant = grpo_loss(new, old, reference, advantages, mask, 3 * mask.shape[1], "token")
    for name in ("loss", "clipped", "kl"):
        torch.testing.assert_close(getattr(dapo, name) * int(mask.sum()), getattr(constant, name) * 3 * mask.shape[1])


@given(seed=seeds, how=st.sampled_from(["sequence", "token"]), cut=st.integers(0, 3))
def test_microbatches_add_up(seed, how, cut):
    mask, (new, old, reference, _) = batch(seed)
    advantages = torch.tensor([1.0, -1.0, 0.5], dtype=torch.float64)
    total = 3 if how == "sequence" else int(mask.sum())
    tensors = (new, old, reference, advantages, mask)
    whole = grpo_loss(*tensors, total, how)
    parts = [grpo_loss(*(x[rows] for x in tensors), total, how) for rows in (slice(cut), slice(cut, None))]
    for name in ("loss", "clipped", "kl"):
        torch.testing.assert_close(sum(getattr(x, name) for x in parts), getattr(whole, name))


# Rollouts of an older policy


@given(seed=seeds, cap=st.sampled_from([1.0, 2.0, 100.0]))
def test_weights_token_by_token(seed, cap):
    mask, (proximal, behaviour, *_) = batch(seed)
    found = importance_weights(proximal, behaviour, mask, cap)
    for b, steps in enumerate(counted(mask)):
        for at in range(mask.shape[1]):
            ratio = math.exp(float(proximal[b, at] - behaviour[b, at])) if at in steps else 0.0
            assert float(found[b, at]) == pytest.approx(min(ratio, cap))


def test_the_weights_undo_the_age_of_the_rollouts():
    """Over all tokens that there are, drawn as often as the old policy draws them: the new policy's own gradient."""
    old, now = (torch.tensor(x, dtype=torch.float64) for x in ([0.6, 0.3, 0.1], [0.3, 0.3, 0.4]))
    gain, mask = torch.tensor([[1.0, -2.0, 0.5]], dtype=torch.float64), torch.ones(1, 3, dtype=torch.bool)

    def gradient(behaviour, weights):
        logits = now.log().clone().requires_grad_()
        logprobs = logits.log_softmax(0)[None]
        drawn = gain * behaviour  # as often
        policy_loss(logprobs, now.log()[None], drawn, mask, 1, weights_bt=weights).loss.backward()
        return logits.grad

    weights = importance_weights(now.log()[None], old.log()[None], mask, cap=10)
    torch.testing.assert_close(gradient(old, weights), gradient(now, None))
    assert not torch.allclose(gradient(old, None), gradient(now, None))


def test_a_cap_is_no_smaller_than_the_weight_of_a_fresh_token():
    with pytest.raises(ValueError, match="cap=0.9"):
        importance_weights(torch.zeros(1, 1), torch.zeros(1, 1), torch.ones(1, 1, dtype=torch.bool), 0.9)


def test_effective_sample_sizes():
    everything = torch.ones(1, 8, dtype=torch.bool)
    assert effective_sample_size(moments(torch.full((1, 8), 0.3), everything)) == pytest.approx(8)
    one = torch.tensor([[0.0, 0, 5, 0, 0, 0, 0, 0]])
    assert effective_sample_size(moments(one, everything)) == 1
    assert effective_sample_size(moments(one * 0, everything)) == 0
    parts = moments(one[:, :3], everything[:, :3]) + moments(one[:, 3:] + 5, everything[:, 3:])
    assert effective_sample_size(parts) == pytest.approx(6)


def test_what_is_too_old_is_dropped():
    versions = torch.tensor([5, 4, 3, 0])
    assert [fresh(versions, 5, most).tolist() for most in (0, 2, 5)] == [
        [True, False, False, False], [True, True, True, False], [True] * 4
    ]  # fmt: skip
    with pytest.raises(ValueError, match="version 5, and the trainer has made 4"):
        fresh(versions, 4, 1)
    with pytest.raises(ValueError, match="most=-1"):
        fresh(versions, 5, -1)


@given(batch_size=st.integers(1, 4), most=st.integers(0, 3), finishing=st.lists(st.booleans(), max_size=60))
def test_by_the_rule_of_admission_nothing_gets_too_old(batch_size, most, finishing):
    """Generators begin whatever they may; now and then the trainer uses the oldest batch, and none is too old."""
    begun, current, versions = 0, 0, []
    for train in finishing:
        if may_begin(begun, batch_size, current, most):
            begun += 1
            versions.append(current)
        elif not train:
            assert len(versions) >= batch_size  # who must wait has left enough for an update, so nothing stands still
        if train and len(versions) >= batch_size:
            used, versions = versions[:batch_size], versions[batch_size:]
            assert fresh(torch.tensor(used), current, most).all()
            current += 1


def test_the_rule_lets_nobody_begin_too_much():
    assert [may_begin(n, 4, 0, 0) for n in (0, 3, 4)] == [True, True, False]
    assert [may_begin(n, 4, 2, 1) for n in (15, 16)] == [True, False]
    with pytest.raises(ValueError, match="batch=0"):
        may_begin(0, 0, 0, 0)
