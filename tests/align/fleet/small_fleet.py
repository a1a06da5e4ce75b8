"""What the tests of fleets share: four small models with random weights, prompts, and steps on a placement."""

from __future__ import annotations

from dataclasses import replace

import torch

from labkit.align.fleet import PPO, Fleet, ppo_step
from labkit.align.rollout import Sampling
from labkit.models import GPT, GPTConfig, ScalarGPT, state
from labkit.models.threads import one_thread

CONFIG = GPTConfig(vocab=17, context=24, layers=1, heads=2, width=16)
PROMPTS = {7 * i: tuple((3 * i + j) % 17 for j in range(1 + i % 5)) for i in range(10)}
HOW = Sampling(12, end=5, seed=4)
STEP = PPO(chunk=3, budget=64)  # four chunks, of which the last has one prompt
WEIGHTS = {
    "policy": 4 * CONFIG.num_parameters, "reference": 4 * CONFIG.num_parameters,
    **dict.fromkeys(("reward", "critic"), 4 * (CONFIG.num_parameters + 17)),
}  # fmt: skip


def make(role):
    """The policy begins as the reference does; reward model and critic say something, since their heads are drawn."""
    if role in ("policy", "reference"):
        return GPT(CONFIG, 1)
    model = ScalarGPT(CONFIG, 2 if role == "reward" else 3)
    with torch.no_grad():
        model.lm_head.weight.copy_(torch.linspace(-1, 1, 16)[None])
    return model


def steps(group, placement, count=2, seconds=None, ppo=STEP, step=ppo_step, make=make):
    """Reports of some steps, and this rank's models and fleet after them."""
    with one_thread():
        fleet = Fleet(placement, group, make, rates={"policy": 1e-2, "critic": 1e-2}, seconds=seconds)
        told = []
        for n in range(count):
            group.step(n)
            told.append(step(fleet, PROMPTS, replace(HOW, seed=n), ppo))
        if fleet.swap is not None:
            fleet.swap.use(*fleet.models)
        return told, {role: state(model) for role, model in fleet.models.items()}, fleet.swap and fleet.swap.copies


def loads(results, count=4, size=3):
    """The chunks of a step, from the samples that all ranks tell: `ChunkLoad` by number."""
    from labkit.cost import ChunkLoad

    samples = {s.sequence: s for told in results for s in told.samples}
    ids = [*PROMPTS]
    found = []
    for c in range(count):
        mine = [samples[i] for i in ids[c * size : (c + 1) * size]]
        responses = sum(len(s.tokens) for s in mine)
        found.append(ChunkLoad(len(mine), responses + sum(len(s.prompt) for s in mine), responses,
                               max(len(s.tokens) for s in mine)))  # fmt: skip
    return found
