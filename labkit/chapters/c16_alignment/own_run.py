"""The run that the explanation of chapter 16's exercises is about: a step of PPO with its models on several placements.

All numbers are of the virtual clock, so they are the same on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import labkit
from labkit import Link, Network
from labkit.align.fleet import PPO, Fleet, Placement, WorkSeconds, ppo_step
from labkit.align.rollout import Sampling
from labkit.models import GPT, GPTConfig, ScalarGPT
from labkit.models.threads import one_thread

CONFIG = GPTConfig(vocab=32, context=40, layers=1, heads=2, width=32)
PROMPTS = {i: tuple((3 * i + j) % 32 for j in range(8)) for i in range(16)}
WAYS = {
    "all four on each of 4 ranks": Placement.colocated(4),
    "a rank for each model": Placement.separate(1, 1, 1, 1),
    "2 for the policy, 1 reference, 1 reward and critic": Placement((0, 1), (2,), (3,), (3,)),
}
HOW, STEP = Sampling(24, end=5), PPO(chunk=2)


@dataclass(frozen=True)
class Told:
    """milliseconds: of the step. busy: the part of it in which each rank works. kilobytes: sent between the pools."""

    milliseconds: float
    busy: list[float]
    kilobytes: float

    @property
    def utilization(self) -> float:
        """The mean over all ranks."""
        return sum(self.busy) / len(self.busy)


def step_of(placement: Placement, decode_ms: float) -> Told:
    """One step of PPO with 16 prompts. decode_ms: of a decoding step of two sequences."""
    seconds = WorkSeconds(decode=decode_ms * 1e-3, read=5e-5, train=2e-4)
    network = Network(placement.size, 1, inter=Link(1e9, 20e-6))
    run = labkit.launch(_step, placement.size, placement, seconds, clock="virtual", transport="local", network=network)
    trace = run.trace
    busy = [sum(s.end - s.start for s in trace.spans("compute") if s.rank == r) for r in range(placement.size)]
    sent = sum(m.nbytes for m in trace.sends if m.collective < 0)
    return Told(1e3 * trace.duration, [each / trace.duration for each in busy], sent / 1e3)


def _step(group: labkit.Group, placement: Placement, seconds: WorkSeconds) -> None:
    with one_thread():
        ppo_step(Fleet(placement, group, _make, seconds=seconds), PROMPTS, replace(HOW, seed=1), STEP)


def _make(role: str) -> GPT:
    return ScalarGPT(CONFIG, 1) if role in ("reward", "critic") else GPT(CONFIG, 2)
