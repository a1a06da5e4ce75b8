"""The three signals that a job needs more than one machine (textbook chapter "Distributed Training", section 1).

It does not fit ("memory exhaustion"): parameters, gradients, optimizer state and activations exceed one
device. It takes too long ("unacceptable training duration"): it fits, and would take weeks or months. It has too much
data ("dataset scale"): they outgrow what one machine stores and reads.
"""

from __future__ import annotations

from dataclasses import dataclass

from labkit.cost.refuse import not_negative, positive
from labkit.cost.training.fleet import training_seconds
from labkit.cost.training.memory import GPU_MEMORY, state_bytes
from labkit.cost.units import DAY, TB

__all__ = ["Machine", "SIGNALS", "Training", "distribution_signals"]

MEMORY, DURATION, DATASET = "does not fit", "takes too long", "has too much data"
SIGNALS = (MEMORY, DURATION, DATASET)


@dataclass(frozen=True)
class Machine:
    """One machine with one device. memory, storage: bytes. flops_per_second: useful ones, not the data sheet's peak."""

    memory: float = GPU_MEMORY
    flops_per_second: float = 0.4 * 989e12  # an H100's 16-bit peak, at 40 percent of it
    storage: float = 4 * TB  # a local disk

    def __post_init__(self) -> None:
        positive(memory=self.memory, flops_per_second=self.flops_per_second, storage=self.storage)


@dataclass(frozen=True)
class Training:
    """A job as the signals see it. tokens: how many it trains on. dataset, activations: bytes."""

    params: float
    tokens: float
    dataset: float
    activations: float = 0.0

    def __post_init__(self) -> None:
        not_negative(params=self.params, tokens=self.tokens, dataset=self.dataset, activations=self.activations)


def distribution_signals(job: Training, machine: Machine | None = None, patience: float = 30 * DAY) -> tuple[str, ...]:
    """Which of `SIGNALS` a job gives on one `machine`; none means that one machine will do.

    patience: the longest acceptable training, in seconds. Where "weeks or months" begin is the reader's choice,
    as the textbook gives no limit.
    """
    machine = machine or Machine()
    positive(patience=patience)
    given = {
        MEMORY: state_bytes(job.params) + job.activations > machine.memory,
        DURATION: training_seconds(job.params, job.tokens, machine.flops_per_second) > patience,
        DATASET: job.dataset > machine.storage,
    }
    return tuple(name for name in SIGNALS if given[name])
