"""On the tiny task the known truth rises, over seeds of everything; without a KL penalty the reward does."""

from __future__ import annotations

import pytest

from labkit.bench.align_rewards import measured
from labkit.cost import Estimate

pytestmark = [pytest.mark.ranks, pytest.mark.long]
SEEDS = range(5)


@pytest.mark.parametrize("way", ["PPO, beta 0.05", "PPO, beta 0.2", "GRPO, beta 0.2", "DPO, beta 0.1"])
def test_the_truth_rises(way):
    found = [measured(way, seed, 30) for seed in SEEDS]
    rise = Estimate.of(numbers["after"] - numbers["before"] for numbers in found)
    assert rise.mean > 0.02 and rise.mean > 2.8 * rise.error  # Student's 95 percent for five seeds


def test_without_a_penalty_the_reward_ends_higher_and_the_truth_lower():
    """The reward model has never seen what the policy writes in the end. (2.1: Student's 95 percent on one side.)"""
    free, held = ([measured(way, seed, 30) for seed in SEEDS] for way in ("PPO, no KL", "PPO, beta 0.05"))
    reward, lost = (
        Estimate.of(sign * (a[name] - b[name]) for a, b in zip(free, held, strict=True))
        for name, sign in (("reward after", 1), ("after", -1))
    )
    assert reward.mean > 2.1 * reward.error and lost.mean > 2.1 * lost.error
