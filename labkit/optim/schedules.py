"""Learning-rate schedules as plain functions: step -> factor on the optimizer's rate.

The first update is step 0, and steps are counted from there in all of them, so factors multiply: `combined(warmup(100),
cosine(1000, begin=100))`. They fit `torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)` as they are.
"""

import math
from collections.abc import Callable, Sequence

from labkit.wire.errors import RefusedError

Schedule = Callable[[int], float]


def constant(step: int) -> float:
    """1 at every step."""
    return 1.0


def warmup(steps: int, start: float = 0.0) -> Schedule:
    """From `start` at step 0, linearly to 1 at step `steps`; 1 from there. `steps=0`: no warmup.

    The gradual warmup of Goyal et al. 2017 (section 2.2) goes from the small batch's rate to k times that rate: give
    the optimizer the large rate and `start=1 / k`. With the default the very first update has a rate of zero; use
    `start=1 / steps` if that is not wanted.
    """
    _check("steps", steps, 0)
    if not 0 <= start <= 1:
        raise RefusedError(f"start={start}: a warmup begins at a part of the full rate, from 0 to 1")

    def factor(step: int) -> float:
        return 1.0 if step >= steps else start + (1 - start) * step / steps

    return factor


def cosine(steps: int, begin: int = 0, end: float = 0.0) -> Schedule:
    """1 until step `begin`, then half a cosine down to `end` at step `steps`, kept (Loshchilov & Hutter 2017)."""
    _span(steps, begin)

    def factor(step: int) -> float:
        done = min(max(step - begin, 0) / (steps - begin), 1.0)
        return end + (1 - end) * (1 + math.cos(math.pi * done)) / 2

    return factor


def polynomial(steps: int, begin: int = 0, power: float = 2.0, end: float = 0.0) -> Schedule:
    """1 until step `begin`, then end + (1 - end) (1 - t)^power, t from 0 to 1 at step `steps`. LARS: power 2."""
    _span(steps, begin)

    def factor(step: int) -> float:
        done = min(max(step - begin, 0) / (steps - begin), 1.0)
        return end + (1 - end) * (1 - done) ** power

    return factor


def milestones(steps: Sequence[int], by: float = 0.1) -> Schedule:
    """Multiplied by `by` at each of `steps`, and kept there (Goyal et al. 2017: a tenth after epochs 30, 60 and 80)."""
    steps = tuple(steps)
    return lambda step: by ** sum(step >= at for at in steps)


def combined(*schedules: Schedule) -> Schedule:
    """The product of `schedules` at each step."""
    return lambda step: math.prod(schedule(step) for schedule in schedules)


def _check(name: str, value: int, least: int) -> None:
    if value < least:
        raise RefusedError(f"{name}={value}: it must be at least {least}")


def _span(steps: int, begin: int) -> None:
    _check("begin", begin, 0)
    if steps <= begin:
        raise RefusedError(
            f"steps={steps}, begin={begin}: the decay ends at step `steps`, which must come after `begin`"
        )
