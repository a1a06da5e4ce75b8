"""All that comes before PPO, made once for a seed: a tuned policy, judged pairs of its responses, a reward model."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cache
from statistics import mean

from torch import nn

from labkit.align.rollout import Sampling, generate
from labkit.align.task.language import END, ROOM, pretrained, prompts
from labkit.align.task.preferences import Pair, preferences
from labkit.align.task.reward_model import reward_model
from labkit.align.task.truth import truth
from labkit.align.task.tuning import tuned
from labkit.models.gpt import GPT
from labkit.models.scalar_gpt import ScalarGPT
from labkit.models.threads import one_thread


@dataclass(frozen=True)
class Task:
    """policy: after supervised tuning. pairs: what people prefer. rewards: the reward model that learned from them."""

    policy: GPT
    pairs: list[Pair]
    rewards: ScalarGPT

    def make(self, role: str) -> nn.Module:
        """The model that a role of a fleet begins with: a new copy. The critic has the reward model's layers."""
        if role == "critic":
            return ScalarGPT.of(self.rewards)
        return copy.deepcopy(self.rewards if role == "reward" else self.policy)


@cache
def prepared(seed: int = 0, steps: int = 100, pairs: int = 768) -> Task:
    """In about ten seconds of one core. steps: of pretraining. pairs: that are judged. All follows from the seed."""
    with one_thread():
        policy = tuned(pretrained(seed, steps), seed, steps=20)
        judged = preferences(policy, pairs, seed)
        return Task(policy, judged, reward_model(policy, judged, seed))


def mean_truth(policy: GPT, count: int = 128, seed: int = 0) -> float:
    """The mean truth of one response to each of `count` prompts."""
    asked = prompts(count, 1_000_000 + seed)
    made = generate(policy, asked, Sampling(ROOM, END, seed=seed), slots=count).samples
    return mean(truth(s.tokens, ROOM) for s in made.values())
