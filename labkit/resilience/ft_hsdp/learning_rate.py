"""How the learning rate follows the number of replicas that trained a step.

A step that lost replicas has seen fewer samples, so its gradient is noisier. "none" leaves the rate as it is, "linear"
multiplies it by k / n (k healthy of n replicas), and "sqrt" by the root of that, which keeps rate over noise the same
(Salpekar et al. 2026, "Training LLMs with Fault Tolerant HSDP on 100,000 GPUs", section 6.2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from labkit.wire.errors import RefusedError

INTERVENTIONS = {"none": lambda share: 1.0, "linear": lambda share: share, "sqrt": math.sqrt}


def factor(intervention: str, healthy: int, total: int) -> float:
    """What the rate of a step is multiplied by that `healthy` of `total` replicas trained."""
    if intervention not in INTERVENTIONS:
        raise RefusedError(f"intervention={intervention!r}: choose {', '.join(map(repr, INTERVENTIONS))}")
    if not 1 <= healthy <= total:
        raise RefusedError(f"{healthy} healthy replicas of {total}: needs at least 1, and at most all")
    return INTERVENTIONS[intervention](healthy / total)


def set_rates(optimizer: torch.optim.Optimizer, rates: Sequence[float]) -> None:
    """Give each of the optimizer's groups its rate for the next step."""
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
