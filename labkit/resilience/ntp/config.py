"""What a job of replicas of different width is asked to be, checked before anything starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from labkit.models.gpt import GPTConfig
from labkit.resilience.deadlines import Deadlines
from labkit.wire.errors import Refused

from .replicas import Replicas


@dataclass(frozen=True)
class NtpConfig:
    """Options of `train`, the same on every rank.

    model: the GPT. widths: ranks of each replica when all are there. batch: examples of a step, over all replicas.
    examples: numbers of examples (n,) int64 -> their tokens (n, positions + 1) int64; step s trains the numbers s *
    batch to (s + 1) * batch - 1, whoever is there to train them.
    optimizer: a list of parameters -> an optimizer, whose state is tensors of a parameter's shape, and numbers. Its
    step() may not mix parameters or communicate.
    seed: of the weights. dtype: of weights and optimizer state. bucket_bytes: gradients that travel together.
    repair_steps: steps that a rank is away after it was lost; None: for good. deadlines: how long each wait may take.
    beat: seconds between two signs of life of a rank. max_attempts: failed tries of one step before a rank gives up.
    overlap: gradients travel behind the backward. stronger: narrow replicas train as many examples as whole ones, as if
    their GPUs had so much more power (NTP-PW); else examples go by width (NTP).
    """

    model: GPTConfig
    examples: Callable[[Tensor], Tensor]
    optimizer: Callable[[list[Any]], torch.optim.Optimizer]
    widths: tuple[int, ...] = (4, 4)
    batch: int = 8
    seed: int = 0
    dtype: torch.dtype = torch.float32
    bucket_bytes: int = 1 << 20
    repair_steps: int | None = None
    deadlines: Deadlines = Deadlines.for_step(1.0)
    beat: float = 0.2
    max_attempts: int = 20
    overlap: bool = True
    stronger: bool = False

    def __post_init__(self) -> None:
        home = Replicas.of(*self.widths)
        home.check(self.model)
        self.shares(home)
        for name, least in (("seed", 0), ("bucket_bytes", 1), ("max_attempts", 1)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise Refused(f"NtpConfig({name}={value!r}): needs a whole number of at least {least}")
        if self.repair_steps is not None and (type(self.repair_steps) is not int or self.repair_steps < 1):
            raise Refused(f"NtpConfig(repair_steps={self.repair_steps!r}): steps, 1 or more, or None for ever")
        if not 0 < self.beat < self.deadlines.message:
            raise Refused(f"NtpConfig(beat={self.beat}): signs of life must come more often than a message may take "
                          f"({self.deadlines.message:g} s), and less than all the time")  # fmt: skip

    @property
    def home(self) -> Replicas:
        """The replicas when all ranks are there."""
        return Replicas.of(*self.widths)

    def shares(self, replicas: Replicas) -> list[int]:
        """How many examples of a step each of these replicas trains."""
        return replicas.shares(self.batch, stronger=self.stronger)
