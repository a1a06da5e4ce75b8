"""What the instructions of a schedule cost, in seconds: for the simulator, and for stand-in kernels of a real run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from labkit.parallel.pipeline.instructions import (
    Backward,
    Forward,
    InputGradient,
    Instruction,
    Message,
    Update,
    WeightGradient,
)
from labkit.wire.errors import RefusedError

Seconds = float | Sequence[float]


@dataclass(frozen=True)
class Costs:
    """Seconds of one microbatch: each a number for all stages of the model, or one per stage.

    forward: F. input_gradient: B. weight_gradient: W. A whole `Backward` takes both, B + W. update: the optimizer's.
    A stage of the model is one chunk of a rank: with two chunks of half the layers, give half the seconds.
    """

    forward: Seconds
    input_gradient: Seconds
    weight_gradient: Seconds
    update: Seconds = 0.0

    def __post_init__(self) -> None:
        for name in ("forward", "input_gradient", "weight_gradient", "update"):
            value = getattr(self, name)
            each = [value] if isinstance(value, (int, float)) else list(value)
            if isinstance(value, str) or not all(isinstance(s, (int, float)) and 0 <= s < math.inf for s in each):
                raise RefusedError(f"Costs({name}={value!r}): seconds, 0 or more, for all stages or one per stage")
            if not isinstance(value, (int, float)):
                object.__setattr__(self, name, tuple(each))

    def check(self, stages: int) -> None:
        """Refuse lists that are not of one number per stage."""
        for name in ("forward", "input_gradient", "weight_gradient", "update"):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) and len(value) != stages:
                raise RefusedError(
                    f"Costs({name}=...): {len(value)} numbers for a model of {stages} stages (ranks times "
                    f"chunks): give one per stage, or one for all"
                )

    def seconds(self, instruction: Instruction | type[Instruction], stage: int) -> float:
        """Seconds of an instruction (or of a kind of them) at `stage` of the model; a message takes none of its own."""
        kind = instruction if isinstance(instruction, type) else type(instruction)
        if kind is Backward:
            return _at(self.input_gradient, stage) + _at(self.weight_gradient, stage)
        if issubclass(kind, Message):
            return 0.0
        return _at(getattr(self, _FIELD[kind]), stage)


_FIELD: dict[type[Instruction], str] = {
    Forward: "forward", InputGradient: "input_gradient", WeightGradient: "weight_gradient", Update: "update",
}  # fmt: skip


def _at(seconds: Seconds, stage: int) -> float:
    return float(seconds) if isinstance(seconds, (int, float)) else float(seconds[stage])
