"""What a fault-tolerant run is asked to be, checked before anything starts."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from labkit.resilience.deadlines import Deadlines
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group

from .learning_rate import INTERVENTIONS

# (group of the replica's ranks, seed), and the keyword `replica` if it is taken -> (model, optimizer, loss)
Build = Callable[..., tuple[Any, Any, Any]]


@dataclass(frozen=True)
class FtConfig:
    """Options of `train`, the same on every rank.

    replicas, ranks: the world has replicas * ranks processes, and `spares` times `ranks` more that wait for a place.
    batch: samples that a replica trains in a step, from a stream of its own. seed: of the model and of dropout.
    deadlines: how long each wait may take. join_wait: seconds that the others wait at most for a replica that is still
    fetching the state when their step is over; after that they go on without it. min_replicas: fewer do not train.
    learning_rate: step -> rate, None for the optimizer's own. intervention: how the rate follows the number of
    healthy replicas: "none", "linear" or "sqrt". offload_optimizer: its state lies in host memory between steps.
    chunk_bytes, chunks: of the fault-tolerant all-reduce. bucket_bytes: gradients that travel together, while backward
    goes on. transfer_bytes: of a state, asked for at a time. beat: seconds between two signs of life of a replica.
    warm_up: train one batch for nothing before checking in, so that the first step is as fast as the others.
    checkpoint: writes and reads persistent states (`persistence.Checkpoints`), every `checkpoint_every` steps.
    sum_every: steps between two checksums of the tensors; in between a checksum tells only where a state comes from.
    keep_weights: the result holds this rank's part of the final weights. max_attempts: failed tries of one step
    after which a rank gives up: with nobody committing, something is wrong that no retry heals. evict: failed tries
    in a row after which the replica that comes last to most of them is started anew, for it is slower than the
    deadlines; 0: never.
    """

    replicas: int
    ranks: int = 1
    deadlines: Deadlines = Deadlines.for_step(1.0)
    batch: int = 1
    seed: int = 0
    join_wait: float = 1.0
    min_replicas: int = 1
    learning_rate: Callable[[int], float] | None = None
    intervention: str = "none"
    offload_optimizer: bool = False
    chunk_bytes: int = 1 << 20
    chunks: int = 4
    bucket_bytes: int = 25 << 20
    transfer_bytes: int = 4 << 20
    beat: float = 0.2
    warm_up: bool = True
    spares: int = 0
    checkpoint: Any = None
    checkpoint_every: int = 100
    sum_every: int = 1
    keep_weights: bool = False
    max_attempts: int = 20
    evict: int = 6

    def __post_init__(self) -> None:
        least = {"spares": 0, "seed": 0, "evict": 0}
        for f in fields(self):
            value = getattr(self, f.name)
            if f.type == "int" and (type(value) is not int or value < least.get(f.name, 1)):
                raise RefusedError(
                    f"FtConfig({f.name}={value!r}): needs a whole number of at least {least.get(f.name, 1)}"
                )
            if f.type == "float" and (isinstance(value, bool) or not isinstance(value, int | float)
                                      or not 0 <= value < math.inf):  # fmt: skip
                raise RefusedError(f"FtConfig({f.name}={value!r}): needs a number of seconds, 0 or more")
        if self.intervention not in INTERVENTIONS:
            raise RefusedError(
                f"FtConfig(intervention={self.intervention!r}): choose {', '.join(map(repr, INTERVENTIONS))}"
            )
        if not isinstance(self.deadlines, Deadlines):
            raise RefusedError(
                f"FtConfig(deadlines={self.deadlines!r}): needs Deadlines, as Deadlines.for_step(seconds)"
            )
        if self.min_replicas > self.replicas:
            raise RefusedError(f"FtConfig(min_replicas={self.min_replicas}): there are only {self.replicas} replicas")
        if not 0 < self.beat < self.deadlines.message:
            raise RefusedError(
                f"FtConfig(beat={self.beat}): signs of life must come more often than a message may take "
                f"({self.deadlines.message:g} s), and less than all the time"
            )
        if self.join_wait > self.deadlines.step:
            raise RefusedError(
                f"FtConfig(join_wait={self.join_wait:g}): at most a step's deadline, "
                f"{self.deadlines.step:g} s; the others would have given this replica up"
            )

    @property
    def world_size(self) -> int:
        return (self.replicas + self.spares) * self.ranks


def built(build: Build, inner: Group, config: FtConfig, replica: int | None) -> tuple[Any, Any, Any]:
    """What `build` makes; told the replica if it has a parameter of that name."""
    parameters = inspect.signature(build).parameters.values()
    told = any(p.name == "replica" or p.kind is p.VAR_KEYWORD for p in parameters)
    return build(inner, config.seed, **({"replica": replica} if told else {}))
