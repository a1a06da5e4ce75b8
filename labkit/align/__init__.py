"""Alignment training: what a policy learns from preferences and rewards.

logprobs.py      log-probabilities of tokens, entropies, masks of responses: without a second tensor of logits
shares.py        means over all ranks' tokens, exactly; whitening
preferences.py   a reward model from rankings (Bradley-Terry), and DPO
kl.py            estimates of the KL divergence from drawn tokens: k1, k3
advantages.py    PPO's rewards with their penalty, and generalized advantages
ppo.py           the clipped losses of the policy and of the critic
grpo.py          advantages within a group of responses, and GRPO's loss with two kinds of mean
off_policy.py    rollouts of an older policy: weights, effective sample size, bounded staleness
batching/        sequences of unequal lengths: packing, padding, balance
rollout/         responses: a paged KV cache, sampling, continuous batching, speculative decoding, many ranks
task/            a task that takes seconds: a language model, preferences with a known truth, a reward model
fleet/           steps of PPO, GRPO and DPO with all models on any placement; asynchronous rollouts
reshard.py       a policy's weights from the layout that trains to the one that generates

`labkit.cost` has the bytes of the models and of the KV cache, and how well a fleet is used.
"""

from labkit.align.advantages import generalized_advantages, token_rewards
from labkit.align.grpo import GRPOLoss, group_advantages, grpo_loss
from labkit.align.kl import k1, k3
from labkit.align.logprobs import masked_sums, response_mask, token_entropies, token_logprobs
from labkit.align.off_policy import effective_sample_size, fresh, importance_weights, may_begin
from labkit.align.ppo import PolicyLoss, ValueLoss, clipped_objective, policy_loss, value_loss
from labkit.align.preferences import DPO, Preference, dpo_loss, reward_model_loss
from labkit.align.shares import global_count, moments, share, whiten

__all__ = [
    "DPO",
    "GRPOLoss",
    "PolicyLoss",
    "Preference",
    "ValueLoss",
    "clipped_objective",
    "dpo_loss",
    "effective_sample_size",
    "fresh",
    "generalized_advantages",
    "global_count",
    "group_advantages",
    "grpo_loss",
    "importance_weights",
    "k1",
    "k3",
    "masked_sums",
    "may_begin",
    "moments",
    "policy_loss",
    "response_mask",
    "reward_model_loss",
    "share",
    "token_entropies",
    "token_logprobs",
    "token_rewards",
    "value_loss",
    "whiten",
]
