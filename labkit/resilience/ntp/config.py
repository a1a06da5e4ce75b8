"""What a job of replicas of different width is asked to be, checked before anything starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from labkit.models.gpt import GPTConfig
from labkit.parallel.tensor.gpt import TensorParallelGPT
from labkit.parallel.tensor.placement import Shards
from labkit.resilience.deadlines import Deadlines
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group

from .replicas import Replicas

Build = Callable[[Group, Callable[[int], Shards]], nn.Module]


@dataclass(frozen=True)
class NtpConfig:
    """Options of `train`, the same on every rank.

    model: a GPT, or a function (group, shards) -> your own module for the ranks of one replica, `group`, made of layers
    that are cut by shards: `ColumnParallelLinear.of(nn.Linear(8, 60), group, shards=shards(60))`. `shards(count)` tells
    which of `count` equal parts each rank holds; what the shards of one layer make, those of the next must read. It is
    called anew whenever the replicas change, with the same random numbers (`seed`) on every rank, and draws whole
    layers, of which each rank keeps its parts; it has no buffers that change. The module is called with a batch and
    returns its mean loss, 0-d.
    widths: ranks of each replica when all are there. batch: examples of a step, over all replicas.
    examples: numbers of examples (n,) int64 -> their tokens (n, positions + 1) int64, or for a module of your own the
    tensor, or the tuple of tensors, that it is called with; step s trains the numbers s * batch to (s + 1) * batch - 1,
    whoever is there to train them.
    optimizer: a list of parameters -> an optimizer, whose state is tensors of a parameter's shape, and numbers. Its
    step() may not mix parameters or communicate.
    seed: of the weights. dtype: of weights and optimizer state. bucket_bytes: gradients that travel together.
    repair_steps: steps that a rank is away after it was lost; None: for good. deadlines: how long each wait may take.
    beat: seconds between two signs of life of a rank. max_attempts: failed tries of one step before a rank gives up.
    overlap: gradients travel behind the backward. stronger: narrow replicas train as many examples as whole ones, as if
    their GPUs had so much more power (NTP-PW); else examples go by width (NTP).
    """

    model: GPTConfig | Build
    examples: Callable[[Tensor], Any]
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
        if isinstance(self.model, GPTConfig):
            home.check(self.model)
        elif not callable(self.model) or isinstance(self.model, nn.Module):
            raise RefusedError(
                f"NtpConfig(model={type(self.model).__name__}): a GPTConfig, or a function (group, shards) "
                "that makes a module: it is made anew whenever a replica changes its width"
            )
        self.shares(home)
        for name, least in (("seed", 0), ("bucket_bytes", 1), ("max_attempts", 1)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise RefusedError(f"NtpConfig({name}={value!r}): needs a whole number of at least {least}")
        if self.repair_steps is not None and (type(self.repair_steps) is not int or self.repair_steps < 1):
            raise RefusedError(f"NtpConfig(repair_steps={self.repair_steps!r}): steps, 1 or more, or None for ever")
        if not 0 < self.beat < self.deadlines.message:
            raise RefusedError(
                f"NtpConfig(beat={self.beat}): signs of life must come more often than a message may take "
                f"({self.deadlines.message:g} s), and less than all the time"
            )

    @property
    def home(self) -> Replicas:
        """The replicas when all ranks are there."""
        return Replicas.of(*self.widths)

    def build(self, replicas: Replicas, replica: int, group: Group) -> nn.Module:
        """The model as the ranks of a replica, `group`, hold it: this rank's parts, with the values of `seed`."""
        if isinstance(self.model, GPTConfig):
            placement = replicas.computes(self.model, replica)
            return TensorParallelGPT(self.model, group, seed=self.seed, placement=placement).to(self.dtype)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            made = self.model(group, lambda count: replicas.map_of(replica, count).compute)
        known = dict(made.named_parameters(remove_duplicate=False))
        if stray := [name for name in made.state_dict() if name not in known]:
            raise RefusedError(
                f"the buffer {stray[0]} would not follow when a rank is lost: only parameters and the "
                "optimizer's state do. One that never changes is registered with "
                "persistent=False"
            )
        return made.to(group.device, self.dtype)

    def loss(self, model: nn.Module, numbers: Tensor, device: torch.device) -> Tensor:
        """The mean loss of these examples."""
        batch = self.examples(numbers)
        if isinstance(self.model, GPTConfig):
            batch = batch[:, :-1], batch[:, 1:]
        found: Tensor = model(*(x.to(device) for x in (batch if isinstance(batch, tuple) else (batch,))))
        return found

    def shares(self, replicas: Replicas) -> list[int]:
        """How many examples of a step each of these replicas trains."""
        return replicas.shares(self.batch, stronger=self.stronger)
