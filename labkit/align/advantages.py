"""PPO's rewards and advantages: from a score for a whole response to a number for each of its tokens.

All tensors are (b, t), and tokens that do not count (prompt, padding, what a tool wrote) may stand anywhere: the steps
of a response are its tokens that count, in their order. What is returned is 0 elsewhere, and has no gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

from labkit.align.kl import k1


def token_rewards(scores_b: Tensor, logprobs_bt: Tensor, reference_bt: Tensor, mask_bt: Tensor, beta: float) -> Tensor:
    """-beta (log policy - log reference) at each token, and the response's score more at its last one.

    In sum it is the objective of InstructGPT (Ouyang et al. 2022, eq. 2, without its pretraining term): the score
    minus beta log(policy / reference) of the response. logprobs_bt: of the policy that wrote it. beta: 0.02 there.
    Raises ValueError for a response without a token: nothing could have its score.
    """
    empty = ~mask_bt.any(1)
    if bool(empty.any()):
        raise ValueError(f"response {int(empty.nonzero()[0])} has no token that counts, so its score has no place")
    rewards_bt = (-beta * k1(logprobs_bt.detach(), reference_bt.detach())).where(mask_bt, 0)
    at_t = torch.arange(mask_bt.shape[1], device=mask_bt.device)
    last_b = (at_t * mask_bt).argmax(1)
    return rewards_bt.scatter_add(1, last_b[:, None], scores_b.detach().to(rewards_bt.dtype)[:, None])


def generalized_advantages(
    rewards_bt: Tensor, values_bt: Tensor, mask_bt: Tensor, gamma: float = 1.0, lam: float = 0.95
) -> tuple[Tensor, Tensor]:
    """Advantages and returns, (b, t) each: GAE (Schulman et al. 2016, eq. 16), backwards over the tokens that count.

        delta_t = r_t + gamma V_t+1 - V_t          V is 0 after the last token: the response has ended
        A_t = delta_t + gamma lam A_t+1
        return_t = A_t + V_t                       what the critic learns

    values_bt: the critic's V before token t was drawn. gamma, lam: 1 and 0.95 in InstructGPT; with lam = 1 the
    advantage is the sum of rewards to come minus V. Raises ValueError where they are not from 0 to 1.
    """
    for name, value in (("gamma", gamma), ("lam", lam)):
        if not 0 <= value <= 1:
            raise ValueError(f"{name}={value!r}: from 0 to 1")
    values_bt, rewards_bt = values_bt.detach(), rewards_bt.detach()
    advantages_bt = torch.zeros_like(values_bt)
    next_value_b = next_advantage_b = torch.zeros_like(values_bt[:, 0])
    for t in reversed(range(values_bt.shape[1])):
        counts_b, value_b = mask_bt[:, t], values_bt[:, t]
        advantage_b = rewards_bt[:, t] + gamma * next_value_b - value_b + gamma * lam * next_advantage_b
        advantages_bt[:, t] = advantage_b.where(counts_b, 0)
        next_value_b = value_b.where(counts_b, next_value_b)
        next_advantage_b = advantage_b.where(counts_b, next_advantage_b)
    return advantages_bt, (advantages_bt + values_bt).where(mask_bt, 0)
