"""PPO's two losses (Schulman et al. 2017): the policy's, clipped, and the critic's.

Rollouts are written once and used for several updates, so the policy that learns drifts away from the one that wrote.
The ratio of the two corrects for it, and the clip removes the gain of moving a token's ratio beyond 1 +- clip.
Every number is a share of the mean over the tokens of the whole batch: see `shares.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from labkit.align.kl import k3
from labkit.align.shares import share


@dataclass(frozen=True)
class PolicyLoss:
    """loss: a share, with a gradient. clipped: of tokens whose gradient the clip stopped. kl: of k3(old, policy)."""

    loss: Tensor
    clipped: Tensor
    kl: Tensor


def clipped_objective(logprobs_bt: Tensor, old_bt: Tensor, advantages_bt: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """min(r A, clip(r, 1 - clip, 1 + clip) A) for each token (eq. 7), and where the clip is what was taken.

    r = policy / old, from log-probabilities in nats.
    """
    if not 0 < clip < 1:
        raise ValueError(f"clip={clip!r}: how far the ratio may move from 1, between 0 and 1; 0.2 is usual")
    ratios_bt = (logprobs_bt - old_bt.detach()).exp()
    plain_bt = ratios_bt * advantages_bt
    clipped_bt = ratios_bt.clamp(1 - clip, 1 + clip) * advantages_bt
    return torch.minimum(plain_bt, clipped_bt), clipped_bt < plain_bt


def policy_loss(
    logprobs_bt: Tensor, old_bt: Tensor, advantages_bt: Tensor, mask_bt: Tensor, tokens: float, clip: float = 0.2,
    weights_bt: Tensor | None = None,
) -> PolicyLoss:  # fmt: skip
    """-E[min(r A, clip(r) A)] over the tokens that count.

    logprobs_bt: under the policy that learns; only here a gradient flows. old_bt: under the policy as it was before the
    first update from this batch. tokens: that count in the whole batch, on all ranks. weights_bt: of each token's term,
    where old rollouts are corrected for (`off_policy.importance_weights`).
    """
    logprobs_bt = logprobs_bt.where(mask_bt, 0)  # so that a NaN in the padding of the others has no gradient
    objective_bt, stopped_bt = clipped_objective(logprobs_bt, old_bt, advantages_bt, clip)
    if weights_bt is not None:
        objective_bt = objective_bt * weights_bt.detach()
    kl_bt = k3(old_bt.detach(), logprobs_bt.detach())
    return PolicyLoss(
        share(-objective_bt, mask_bt, tokens),
        share(stopped_bt.to(kl_bt.dtype), mask_bt, tokens),
        share(kl_bt, mask_bt, tokens),
    )


@dataclass(frozen=True)
class ValueLoss:
    """loss: a share, with a gradient. clipped: of tokens whose gradient the clip stopped."""

    loss: Tensor
    clipped: Tensor


def value_loss(
    values_bt: Tensor, old_values_bt: Tensor, returns_bt: Tensor, mask_bt: Tensor, tokens: float, clip: float = 0.2
) -> ValueLoss:
    """E[max((V - R)^2, (V_clip - R)^2)] / 2, with V_clip = V kept within `clip` of the values of the rollout.

    As in the code of PPO's authors (the paper does not have it): the critic, too, moves only so far in one batch.
    """
    if not clip > 0:
        raise ValueError(f"clip={clip!r}: how far a value may move from that of the rollout, above 0")
    values_bt = values_bt.where(mask_bt, 0)
    old = old_values_bt.detach()
    near_bt = old + (values_bt - old).clamp(-clip, clip)
    plain_bt, clipped_bt = (values_bt - returns_bt).square(), (near_bt - returns_bt).square()
    stopped_bt = (clipped_bt > plain_bt).to(values_bt.dtype)
    return ValueLoss(share(0.5 * torch.maximum(plain_bt, clipped_bt), mask_bt, tokens),
                     share(stopped_bt, mask_bt, tokens))  # fmt: skip
