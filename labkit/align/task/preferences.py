"""Preferences with a known truth: which of two responses people prefer; they are right more often where it is clear."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from labkit.align.rollout import Sampling, generate
from labkit.align.task.language import END, ROOM, prompts
from labkit.align.task.truth import truth
from labkit.models.gpt import GPT

NOISE = 0.02  # a difference of the truth that people see with the probability sigmoid(1) = 73 percent


@dataclass(frozen=True)
class Pair:
    """Two responses to a prompt, of which somebody has chosen one."""

    prompt: tuple[int, ...]
    chosen: tuple[int, ...]
    rejected: tuple[int, ...]


def preferences(policy: GPT, count: int, seed: int = 0, noise: float = NOISE) -> list[Pair]:
    """Pairs that `policy` has written, judged by Bradley-Terry: P(a over b) = sigmoid((truth a - truth b) / noise)."""
    asked = prompts(count, seed)
    twice = {2 * i + n: prompt for i, prompt in asked.items() for n in range(2)}
    samples = generate(policy, twice, Sampling(ROOM, END, seed=seed), slots=128).samples
    drawn, pairs = random.Random(f"preferences {seed}"), []
    for i, prompt in asked.items():
        a, b = samples[2 * i].tokens, samples[2 * i + 1].tokens
        first = drawn.random() < 1 / (1 + math.exp((truth(b, ROOM) - truth(a, ROOM)) / noise))
        pairs.append(Pair(prompt, *((a, b) if first else (b, a))))
    return pairs
