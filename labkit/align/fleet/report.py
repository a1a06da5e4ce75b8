"""What a step did, in numbers of the whole batch that all ranks are told."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from labkit.align.fleet.experience import Experience
from labkit.align.kl import k1
from labkit.align.rollout import Sample
from labkit.collectives import all_reduce
from labkit.wire.group import Group


@dataclass(frozen=True)
class Report:
    """reward: mean of the reward model's. kl: mean over responses of log(policy / reference), in nats.

    length: mean tokens of a response. loss, clipped: of the policy, means over its updates (see `PolicyLoss`).
    value_loss: of the critic. updates: of the policy; 0 where nothing was left to learn from. samples: those of this
    rank, as one of the policy.
    """

    reward: float
    kl: float
    length: float
    loss: float
    clipped: float
    value_loss: float
    updates: int
    samples: list[Sample] = field(repr=False, compare=False, default_factory=list)


def report(group: Group, found: Experience, told: Tensor, value_told: Tensor, updates: int) -> Report:
    """From what each rank has: its own chunks and what was said about them, and its shares.

    Sent: one all-reduce of 64 bytes.
    """
    sums = torch.zeros(8, dtype=torch.float64)
    samples = list[Sample]()
    for c in (chunk.number for chunk in found.chunks):
        rewards_s, old_r = found.rewards_s[c], found.old_r[c]
        kl = k1(old_r, found.reference_r[c]).sum()
        sums[:4] += torch.tensor([len(rewards_s), rewards_s.sum(), kl, len(old_r)])
        samples += found.samples[c]
    sums[4 : 4 + min(2, len(told))] += told[:2]
    sums[6] = value_told[0]
    responses, reward, kl, tokens, loss, clipped, value, _ = all_reduce(sums.to(group.device), group).tolist()
    each = max(responses, 1)
    return Report(reward / each, kl / each, tokens / each, loss, clipped, value, updates, samples)
