"""Estimates of KL(policy, reference) from tokens that the policy drew (Schulman 2020, "Approximating KL divergence").

With log r = log reference - log policy of a token that was drawn from the policy:

    k1 = -log r               unbiased; of a single token it may be negative, and it varies much
    k3 = (r - 1) - log r      unbiased too, since E[r] = 1; never negative, and varies less where the two are close

They estimate the value. Their derivatives are something else: the expected gradient of k1 is 0, that of k3 is the
gradient of KL(reference, policy). A penalty in the *reward* (`advantages.py`) needs the value only; GRPO puts k3 into
the *loss*.
"""

from __future__ import annotations

import torch
from torch import Tensor


def k1(logprobs_bt: Tensor, reference_bt: Tensor) -> Tensor:
    """log policy - log reference, a number a token."""
    return logprobs_bt - reference_bt


def k3(logprobs_bt: Tensor, reference_bt: Tensor) -> Tensor:
    """r - 1 - log r with r = reference / policy, a number a token."""
    log_ratio_bt = reference_bt - logprobs_bt
    return torch.expm1(log_ratio_bt) - log_ratio_bt
