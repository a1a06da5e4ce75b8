"""Rollouts of an older policy: how old they may be, and what corrects for their age.

While the trainer makes version after version of the policy, others write responses with the versions that they have.
Three policies meet in a token: the *behaviour* policy drew it (an older version, and the numerics of another engine);
the *proximal* one is the trainer's, as it was before the first update from this batch; and the one that learns. PPO's
clip keeps the last two together. The first two differ by age, and their ratio is a weight that the clip must not
see (Hilton et al. 2022; Fu et al. 2025, AReaL, eq. 5: "decoupled PPO"):

    E_behaviour[ proximal / behaviour * min(r A, clip(r) A) ],     r = policy / proximal

So `old_bt` of the losses is the proximal log-probability, computed anew by the trainer, and the weight is given apart.
"""

from __future__ import annotations

from torch import Tensor


def importance_weights(proximal_bt: Tensor, behaviour_bt: Tensor, mask_bt: Tensor, cap: float) -> Tensor:
    """min(proximal / behaviour, cap) for each token that counts, 0 elsewhere: (b, t), no gradient.

    Without a cap the mean is unbiased, but a few tokens may have nearly all weight. With one it is biased a little, and
    bounded: truncated importance sampling (Ionides 2008; Espeholt et al. 2018, IMPALA; cap is 2 in Yao et al. 2025,
    "Your efficient RL framework secretly brings you off-policy RL training").
    """
    if not cap >= 1:
        raise ValueError(f"cap={cap!r}: the largest weight, at least 1, the weight of a token that is not old at all")
    return (proximal_bt.detach() - behaviour_bt.detach()).exp().clamp(max=cap).where(mask_bt, 0)


def effective_sample_size(moments_3: Tensor) -> float:
    """(sum w)^2 / sum w^2, of `moments(weights, mask)`: as many tokens of equal weights would vary as much.

    Kish 1965. Equal weights: their number. One token with all the weight: 1. 0 where all weights are 0.
    """
    _, total, squares = moments_3.tolist()
    return total * total / squares if squares else 0.0


def fresh(versions_b: Tensor, current: int, most: int) -> Tensor:
    """(b,) bool: which responses are at most `most` versions old; the others are dropped.

    versions_b: that wrote each response; where it was written over several, the oldest of them. current: the trainer's.
    Raises ValueError for a version that does not exist yet.
    """
    if most < 0:
        raise ValueError(f"most={most}: how many versions old a response may be, 0 or more")
    if bool((versions_b > current).any()):
        raise ValueError(f"a response of version {int(versions_b.max())}, and the trainer has made {current} only")
    return current - versions_b <= most


def may_begin(begun: int, batch: int, current: int, most: int) -> bool:
    """May one more response be begun, so that none is older than `most` versions when it is learned from?

    begun: responses so far, finished or not. batch: responses an update. The next one is number `begun` from 0, and
    update begun // batch uses it, if responses are used in the order in which they were begun, so the trainer may
    be at most that far ahead: begun // batch <= current + most (Fu et al. 2025, AReaL, eq. 3). With most = 0
    all wait for the trainer after each batch. With this rule `fresh` drops nothing; without it work is thrown away.
    """
    if batch < 1 or most < 0:
        raise ValueError(f"batch={batch}, most={most}: at least 1 and 0")
    return begun // batch <= current + most
