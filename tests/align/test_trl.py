"""The same losses as TRL's own trainers, where it is installed; each part is for the versions that have such a method.

No trainer is built: its method is called with a stand-in for `self` that has what the method reads. DPO, GRPO and
reward models: trl 1.16. PPO: trl 0.11, the last one with a method for each part of it.
"""

from collections import defaultdict
from importlib import import_module
from importlib.metadata import version
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch

from labkit.align import (
    dpo_loss,
    generalized_advantages,
    group_advantages,
    grpo_loss,
    importance_weights,
    masked_sums,
    moments,
    policy_loss,
    reward_model_loss,
    token_entropies,
    token_logprobs,
    token_rewards,
    value_loss,
    whiten,
)

pytest.importorskip("trl")

B, T = 6, 8


def method(module, of, name):
    try:
        return getattr(getattr(import_module(f"trl.trainer.{module}"), of), name)
    except (ImportError, AttributeError, RuntimeError) as why:
        pytest.skip(f"this version of trl has no {of}.{name}: {why}")


def drawn(count, b=B, t=T):
    random = torch.Generator().manual_seed(3)
    mask = torch.arange(t) < torch.randint(1, t + 1, (b, 1), generator=random)  # responses, from 0 to their ends
    return mask, [torch.randn(b, t, generator=random).double() for _ in range(count)]


def alone():
    """An `Accelerator` of one process."""
    same = lambda x, *_, **__: x  # noqa: E731
    return SimpleNamespace(device="cpu", num_processes=1, gather=same, gather_for_metrics=same, reduce=same)


def test_log_probabilities_and_entropies():
    utils = pytest.importorskip("trl.trainer.utils")
    logits, tokens = 3 * torch.randn(B, T, 50), torch.randint(50, (B, T))
    if hasattr(utils, "selective_log_softmax"):
        theirs = utils.selective_log_softmax(logits[:, :-1], tokens[:, 1:])
        torch.testing.assert_close(token_logprobs(logits, tokens)[:, 1:], theirs)
        theirs = utils.entropy_from_logits(logits[:, :-1])
        torch.testing.assert_close(token_entropies(logits)[:, 1:], theirs)


@pytest.mark.parametrize("beta", [0.1, 1.0])
def test_dpo(beta):
    compute = method("dpo_trainer", "DPOTrainer", "_compute_loss")
    mask, (policy, reference) = drawn(2)
    policy.requires_grad_()
    ones = torch.ones(B, T + 1).long()
    completion = torch.cat([torch.zeros(B, 1), mask], 1).long()
    inputs = {"completion_mask": completion, "input_ids": ones, "attention_mask": ones}
    like = dict(entropy=policy.detach(), mean_logits=policy.detach(), is_top1=mask)
    trainer = MagicMock(
        accelerator=alone(), aux_loss_enabled=False, ld_alpha=None, precompute_ref_logps=False, beta=beta,
        f_divergence_type="reverse_kl", loss_types=["sigmoid"], loss_weights=[1.0], use_weighting=False,
        _metrics=defaultdict(lambda: defaultdict(list)), _total_train_tokens=0, _tp_size=1,
        args=SimpleNamespace(gradient_checkpointing_kwargs=None),
        ref_model=lambda **_: SimpleNamespace(log_probs=reference * mask, **like),
    )  # fmt: skip
    theirs = compute(trainer, lambda **_: SimpleNamespace(log_probs=policy * mask, **like), inputs, False)
    sums, reference_sums = masked_sums(policy, mask), masked_sums(reference, mask)
    ours = dpo_loss(*sums.chunk(2), *reference_sums.chunk(2), beta, B // 2)
    torch.testing.assert_close(ours.loss, theirs)
    for a, b in zip(*(torch.autograd.grad(x, policy, retain_graph=True) for x in (ours.loss, theirs)), strict=True):
        torch.testing.assert_close(a, b)
    told = trainer._metrics["train"]
    assert told["rewards/accuracies"] == [pytest.approx(float(ours.accuracy))]
    assert told["rewards/margins"] == [pytest.approx(float(ours.margin))]
    assert told["rewards/chosen"] == [pytest.approx(float(ours.chosen_rewards_p.mean()))]


def test_reward_models():
    if version("trl").startswith("0."):
        pytest.skip("this version of trl gives the two responses of a pair to the model one after the other")
    compute = method("reward_trainer", "RewardTrainer", "compute_loss")
    rewards = torch.randn(B, 1).double()
    trainer = MagicMock(accelerator=alone(), args=SimpleNamespace(center_rewards_coefficient=None), _tp_size=1,
                        _total_train_tokens=0, _metrics=defaultdict(lambda: defaultdict(list)))  # fmt: skip
    theirs = compute(trainer, lambda **_: SimpleNamespace(logits=rewards), {"attention_mask": torch.ones(B, T)})
    ours = reward_model_loss(torch.stack(rewards[:, 0].chunk(2), 1), B // 2)
    torch.testing.assert_close(ours.loss, theirs)


@pytest.mark.parametrize("beta", [0.0, 0.04])
@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("kind", ["grpo", "dapo", "dr_grpo"])
def test_grpo(kind, corrected, beta):
    compute = method("grpo_trainer", "GRPOTrainer", "_compute_loss")
    mask, (policy, old, reference, behaviour) = drawn(4)
    policy.requires_grad_()
    rewards = torch.randn(B // 3, 3).double()
    # TRL adds 1e-4 to a deviation.
    spread = rewards.std(1, keepdim=True)
    advantages = (group_advantages(rewards) * spread / (spread + 1e-4)).flatten()
    torch.testing.assert_close(advantages, ((rewards - rewards.mean(1, keepdim=True)) / (spread + 1e-4)).flatten())
    weights = importance_weights(old, behaviour, mask, cap=2.0)
    trainer = MagicMock(
        accelerator=alone(), aux_loss_enabled=False, top_entropy_quantile=1.0, off_policy_mask_threshold=None,
        importance_sampling_level="token", beta=beta, loss_type=kind, epsilon_low=0.2, epsilon_high=0.2,
        use_vllm=corrected, vllm_importance_sampling_correction=True, current_gradient_accumulation_steps=1,
        max_completion_length=T, _entropy_bonus_enabled=False, _metrics=defaultdict(lambda: defaultdict(list)),
        args=SimpleNamespace(use_bias_correction_kl=False, delta=None, steps_per_generation=1),
        _get_per_token_logps_and_entropies=lambda *_, **__: (policy, policy.detach(), None),
    )  # fmt: skip
    prompts = torch.ones(B, 2).long()
    inputs = {
        "prompt_ids": prompts, "prompt_mask": prompts, "completion_ids": mask.long(), "completion_mask": mask.long(),
        "advantages": advantages, "old_per_token_logps": old, "ref_per_token_logps": reference,
        "num_items_in_batch": mask.sum(), "importance_sampling_ratio": weights,
    }  # fmt: skip
    theirs = compute(trainer, None, inputs)
    total = {"grpo": B, "dapo": int(mask.sum()), "dr_grpo": B * T}[kind]
    ours = grpo_loss(policy, old, reference, advantages, mask, total, "sequence" if kind == "grpo" else "token",
                     beta=beta, weights_bt=weights if corrected else None)  # fmt: skip
    torch.testing.assert_close(ours.loss, theirs)
    for a, b in zip(*(torch.autograd.grad(x, policy, retain_graph=True) for x in (ours.loss, theirs)), strict=True):
        torch.testing.assert_close(a, b)
    if kind == "dapo":
        told = trainer._metrics["train"]
        assert told["clip_ratio/region_mean"] == [pytest.approx(float(ours.clipped), abs=1e-6)]
        assert not beta or told["kl"] == [pytest.approx(float(ours.kl), rel=1e-5)]


def test_rewards_and_advantages_of_ppo():
    rewards_of = method("ppo_trainer", "PPOTrainer", "compute_rewards")
    advantages_of = method("ppo_trainer", "PPOTrainer", "compute_advantages")
    mask, (policy, reference, values) = drawn(3)
    scores = torch.randn(B).double()
    trainer = SimpleNamespace(kl_ctl=SimpleNamespace(value=0.2), _kl_penalty=lambda a, b: a - b,
                              config=SimpleNamespace(whiten_rewards=False, gamma=0.9, lam=0.95))  # fmt: skip
    theirs, _, _ = rewards_of(trainer, scores, policy, reference, mask)
    ours = token_rewards(scores, policy, reference, mask, 0.2)
    torch.testing.assert_close(ours, theirs * mask)
    _, their_advantages, their_returns = advantages_of(trainer, values, theirs, mask)
    advantages, returns = generalized_advantages(ours, values, mask, 0.9, 0.95)
    torch.testing.assert_close(returns, their_returns * mask)
    n = int(mask.sum())
    white = whiten(advantages, mask, moments(advantages, mask))
    torch.testing.assert_close(white * ((n - 1) / n) ** 0.5, their_advantages * mask, atol=1e-6, rtol=1e-6)


def test_the_losses_of_ppo():
    compute = method("ppo_trainer", "PPOTrainer", "loss")
    mask, (old, new, values, old_values, advantages) = drawn(5)
    returns = advantages + old_values
    new.requires_grad_()
    values.requires_grad_()
    trainer = SimpleNamespace(
        config=SimpleNamespace(cliprange_value=0.2, cliprange=0.2, vf_coef=1.0, ratio_threshold=1e9)
    )
    their_policy, their_value, stats = compute(
        trainer, old, old_values, torch.randn(B, T, 5), values, new, mask, advantages, returns
    )
    n = int(mask.sum())
    policy, value = policy_loss(new, old, advantages, mask, n), value_loss(values, old_values, returns, mask, n)
    torch.testing.assert_close(policy.loss, their_policy)
    torch.testing.assert_close(value.loss, their_value)
    pairs = [(policy.loss, their_policy, new), (value.loss, their_value, values)]
    for ours, theirs, x in pairs:
        torch.testing.assert_close(torch.autograd.grad(ours, x), torch.autograd.grad(theirs, x))
    told = [float(stats["policy/clipfrac"]), float(stats["val/clipfrac"])]
    assert told == pytest.approx([float(policy.clipped), float(value.clipped)], abs=1e-6)
