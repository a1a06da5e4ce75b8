"""Reward models and DPO against their equations written out."""

import math

import pytest
import torch
from hypothesis import given, strategies as st

from labkit.align import dpo_loss, reward_model_loss

number = st.floats(-5, 5)


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


@given(data=st.data(), p=st.integers(1, 4), k=st.integers(2, 5))
def test_the_reward_models_equation(data, p, k):
    rewards = [[data.draw(number) for _ in range(k)] for _ in range(p)]
    loss = hits = margins = 0.0
    for row in rewards:
        pairs = [(row[i], row[j]) for i in range(k) for j in range(i + 1, k)]
        assert len(pairs) == math.comb(k, 2)
        loss += -sum(math.log(sigmoid(a - b)) for a, b in pairs) / len(pairs) / p
        hits += sum(a > b for a, b in pairs) / len(pairs) / p
        margins += sum(a - b for a, b in pairs) / len(pairs) / p
    found = reward_model_loss(torch.tensor(rewards, dtype=torch.float64), p)
    assert [float(found.loss), float(found.accuracy), float(found.margin)] == pytest.approx([loss, hits, margins])


def test_prompts_of_two_microbatches_add_up():
    rewards = torch.randn(5, 3, dtype=torch.float64)
    whole = reward_model_loss(rewards, 5)
    parts = [reward_model_loss(rewards[:2], 5), reward_model_loss(rewards[2:], 5), reward_model_loss(rewards[:0], 5)]
    for name in ("loss", "accuracy", "margin"):
        torch.testing.assert_close(sum(getattr(x, name) for x in parts), getattr(whole, name))


@given(rows=st.lists(st.tuples(number, number, number, number), min_size=1, max_size=5), beta=st.floats(0.01, 2))
def test_dpos_equation_and_its_gradient(rows, beta):
    p = len(rows)
    chosen, rejected, ref_chosen, ref_rejected = (torch.tensor(x, dtype=torch.float64).requires_grad_()
                                                  for x in zip(*rows, strict=True))  # fmt: skip
    found = dpo_loss(chosen, rejected, ref_chosen, ref_rejected, beta, p)
    found.loss.backward()
    loss = hits = 0.0
    for i, (w, x, ref_w, ref_x) in enumerate(rows):
        better, worse = beta * (w - ref_w), beta * (x - ref_x)
        loss += -math.log(sigmoid(better - worse)) / p
        hits += (better > worse) / p
        assert [float(found.chosen_rewards_p[i]), float(found.rejected_rewards_p[i])] == pytest.approx([better, worse])
        # Rafailov et al. 2023, section 4: each pair weighs as much as its rewards are wrong.
        weight = beta * sigmoid(worse - better) / p
        assert [float(chosen.grad[i]), float(rejected.grad[i])] == pytest.approx([-weight, weight])
    assert [found.loss.item(), float(found.accuracy)] == pytest.approx([loss, hits])
    assert ref_chosen.grad is None and ref_rejected.grad is None
    assert not found.margin.requires_grad and not found.chosen_rewards_p.requires_grad


@given(values=st.lists(st.tuples(number, number), min_size=1, max_size=9), beta=st.floats(0.01, 2))
def test_a_policy_that_has_not_moved_loses_ln_2(values, beta):
    chosen, rejected = (torch.tensor(x, dtype=torch.float64) for x in zip(*values, strict=True))
    found = dpo_loss(chosen, rejected, chosen, rejected, beta, len(values))
    assert float(found.loss) == pytest.approx(math.log(2)) and float(found.accuracy) == float(found.margin) == 0


def test_rewards_far_apart_do_not_overflow():
    far = torch.tensor([[-1000.0, 1000.0]], requires_grad=True)
    loss = reward_model_loss(far, 1).loss
    loss.backward()
    assert loss.item() == 2000 and far.grad.tolist() == [[-1, 1]]


@pytest.mark.parametrize(("call", "named"), [
    (lambda x: reward_model_loss(x[:, None], 1), r"\(2, 1\).*2 responses"),
    (lambda x: dpo_loss(x, x, x, x, 0.0, 2), "beta=0.0"),
    (lambda x: dpo_loss(x, x, x, x, 0.1, 0), "above 0, not 0"),
])  # fmt: skip
def test_refusals(call, named):
    with pytest.raises(ValueError, match=named):
        call(torch.zeros(2))
