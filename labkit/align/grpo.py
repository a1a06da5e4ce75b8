"""GRPO (Shao et al. 2024, "DeepSeekMath", section 4.1): no critic; a response is compared with others to its prompt.

Every token of a response has the same advantage: how much better its reward is than the group's mean, in units of the
group's standard deviation. And the KL to the reference is in the loss, by the estimate k3, in place of the reward.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from labkit.align.kl import k3
from labkit.align.ppo import clipped_objective
from labkit.align.shares import share


def group_advantages(rewards_pg: Tensor, scale: bool = True) -> Tensor:
    """(reward - mean) / standard deviation of each group of g responses to one of p prompts: (p, g).

    A group whose rewards are all equal teaches nothing: its advantages are 0, exactly, and so are those of a group of
    one. The deviation divides by g - 1. scale=False does not divide by it (Liu et al. 2025, "Understanding R1-Zero-like
    training", Dr. GRPO): dividing lets prompts that are nearly always, or nearly never, solved weigh most.
    """
    if rewards_pg.dim() != 2 or not rewards_pg.shape[1]:
        raise ValueError(f"rewards of shape {tuple(rewards_pg.shape)}: give (prompts, responses to each)")
    rewards_pg = rewards_pg.detach()
    unequal_p1 = rewards_pg.amax(1, keepdim=True) > rewards_pg.amin(1, keepdim=True)
    apart_pg = rewards_pg - rewards_pg.mean(1, keepdim=True)
    if scale and rewards_pg.shape[1] > 1:
        apart_pg = apart_pg / rewards_pg.std(1, keepdim=True)
    return apart_pg.where(unequal_p1, 0)  # rounding may leave a remainder in a group of equals


@dataclass(frozen=True)
class GRPOLoss:
    """loss: a share, with a gradient. clipped, kl: shares of the same mean, of stopped tokens and of k3."""

    loss: Tensor
    clipped: Tensor
    kl: Tensor


def grpo_loss(
    logprobs_bt: Tensor, old_bt: Tensor, reference_bt: Tensor, advantages_b: Tensor, mask_bt: Tensor, total: float,
    mean: Literal["sequence", "token"], clip: float = 0.2, beta: float = 0.04, weights_bt: Tensor | None = None,
) -> GRPOLoss:  # fmt: skip
    """-E[min(r A, clip(r) A) - beta k3(policy, reference)] (eq. 3), a share of one of two means.

    mean="sequence": over the tokens of each response, then over responses, as in the paper; `total` counts the
        responses of the whole batch that have a token. A token of a long response weighs less.
    mean="token": over all tokens at once; `total` is the tokens of the whole batch (Yu et al. 2025, DAPO), or responses
        times the longest that is allowed, a constant (Dr. GRPO). Every token weighs the same.

    advantages_b: one a response, `group_advantages(...).flatten()`. logprobs_bt, old_bt, reference_bt, weights_bt: as
    in `ppo.policy_loss`.
    """
    if mean not in ("sequence", "token"):
        raise ValueError(f'mean={mean!r}: one of "sequence" and "token"')
    logprobs_bt = logprobs_bt.where(mask_bt, 0)  # so that a NaN in the padding of the others has no gradient
    objective_bt, stopped_bt = clipped_objective(logprobs_bt, old_bt, advantages_b.detach()[:, None], clip)
    if weights_bt is not None:
        objective_bt = objective_bt * weights_bt.detach()
    kl_bt = k3(logprobs_bt, reference_bt.detach())
    each_b1 = mask_bt.sum(1, keepdim=True).clamp(min=1) if mean == "sequence" else 1
    return GRPOLoss(
        share((beta * kl_bt - objective_bt) / each_b1, mask_bt, total),
        share(stopped_bt.to(kl_bt.dtype) / each_b1, mask_bt, total),
        share(kl_bt.detach() / each_b1, mask_bt, total),
    )
