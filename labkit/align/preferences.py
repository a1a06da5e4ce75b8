"""Losses of preferences: a reward model from rankings, and DPO, which trains the policy from pairs directly.

Both are the Bradley-Terry model: y_w is preferred to y_l with the probability sigmoid(r(y_w) - r(y_l)). A reward model
learns r itself (Ouyang et al. 2022, InstructGPT, eq. 1). DPO (Rafailov et al. 2023, eq. 7) puts in the reward of which
the policy is the optimum, r = beta log(policy / reference) up to a term of the prompt alone, which cancels in a pair.
Losses are shares of the whole batch's mean: see `shares.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from labkit.align.shares import share


@dataclass(frozen=True)
class Preference:
    """loss: a share, with a gradient. accuracy, margin: shares of the means of [r_w > r_l] and of r_w - r_l."""

    loss: Tensor
    accuracy: Tensor
    margin: Tensor


def reward_model_loss(rewards_pk: Tensor, prompts: float) -> Preference:
    """-1 / C(k, 2) E[log sigmoid(r_w - r_l)], over all pairs of the k responses to each of p prompts.

    rewards_pk: what the model gives to the responses, the best of each prompt first. k = 2 for plain pairs. prompts: of
    the whole batch, on all ranks. All pairs of a prompt come together, because a response stands in k - 1 of them:
    drawn one by one they would let it be learned k - 1 times an epoch, and overfitted (Ouyang et al. 2022, 3.5).
    """
    k = rewards_pk.shape[1]
    if k < 2:
        raise ValueError(f"rewards of shape {tuple(rewards_pk.shape)}: a comparison needs 2 responses to a prompt")
    better, worse = torch.triu_indices(k, k, 1, device=rewards_pk.device)
    return _bradley_terry(rewards_pk[:, better] - rewards_pk[:, worse], prompts * len(better))


@dataclass(frozen=True)
class DPO(Preference):
    """A `Preference` whose rewards are implicit: beta log(policy / reference) of each response, (p,), no gradient."""

    chosen_rewards_p: Tensor
    rejected_rewards_p: Tensor


def dpo_loss(
    chosen_p: Tensor, rejected_p: Tensor, reference_chosen_p: Tensor, reference_rejected_p: Tensor, beta: float,
    pairs: float,
) -> DPO:  # fmt: skip
    """-log sigmoid(beta (log pi(y_w) / ref(y_w) - log pi(y_l) / ref(y_l))), a share of the mean over `pairs`.

    chosen_p, rejected_p: log-probabilities in nats of whole responses under the policy, one a pair: `masked_sums` of
    `token_logprobs` over `response_mask`. The next two: the same under the reference; no gradient flows there.
    pairs: of the whole batch, on all ranks. Where policy and reference are equal the loss is ln 2.
    """
    if not beta > 0:
        raise ValueError(f"beta={beta!r}: how far the policy may move from the reference, above 0; 0.1 in the paper")
    chosen = beta * (chosen_p - reference_chosen_p.detach())
    rejected = beta * (rejected_p - reference_rejected_p.detach())
    found = _bradley_terry(chosen - rejected, pairs)
    return DPO(found.loss, found.accuracy, found.margin, chosen.detach(), rejected.detach())


def _bradley_terry(margins: Tensor, total: float) -> Preference:
    everything, told = torch.ones_like(margins, dtype=torch.bool), margins.detach()
    return Preference(
        share(-F.logsigmoid(margins), everything, total),
        share((told > 0).to(told.dtype), everything, total),
        share(told, everything, total),
    )
