"""Alignment as a fleet: several models on the ranks where a placement puts them, and steps of PPO, GRPO and DPO.

    fleet = Fleet(Placement.separate(policy=2, reference=1, reward=1, critic=1), group, make)
    told = ppo_step(fleet, prompts, Sampling(24, end, seed=step), PPO(beta=0.05))

fleet.py        `Fleet`: this rank's models, and how long their work takes on the virtual clock
chunks.py       what is dealt out: a few prompts with their responses
mail.py         what pools send each other
experience.py   the first half of a step: the policy writes, everybody reads
reading.py      log-probabilities, values and rewards of a chunk
learning.py     the second half: updates from minibatches, exact means over all ranks
learner.py      a model, its optimizer, and the sum of gradients in its pool
swapping.py     models that take turns on a device
ppo.py  grpo.py  dpo.py  report.py
asynchronous.py, worker.py   rollouts that nobody waits for, and workers that may be lost
"""

from labkit.align.fleet.asynchronous import Asynchronous, Learned, learn_asynchronously
from labkit.align.fleet.chunks import Chunk
from labkit.align.fleet.dpo import DPOConfig, DPOReport, dpo_step
from labkit.align.fleet.fleet import Fleet
from labkit.align.fleet.grpo import GRPO, grpo_step
from labkit.align.fleet.ppo import PPO, ppo_step
from labkit.align.fleet.report import Report
from labkit.cost import Placement, WorkSeconds

__all__ = [
    "GRPO",
    "PPO",
    "Asynchronous",
    "Chunk",
    "DPOConfig",
    "DPOReport",
    "Fleet",
    "Learned",
    "Placement",
    "Report",
    "WorkSeconds",
    "dpo_step",
    "grpo_step",
    "learn_asynchronously",
    "ppo_step",
]
