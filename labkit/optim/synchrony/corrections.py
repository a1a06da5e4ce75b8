"""What is done about gradients that come late: a smaller rate, another gradient, less momentum.

`by_root` and `by_inverse` are what the server multiplies its learning rate by, for an update of staleness tau.
Clipping needs the whole gradient, so the worker does it before it pushes (`Client.step`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from labkit.wire.errors import RefusedError


def by_root(tau: int) -> float:
    """1 / sqrt(1 + tau)."""
    return 1 / math.sqrt(1 + tau)


def by_inverse(tau: int) -> float:
    """1 / tau, and 1 for a gradient that is not stale (Zhang, Gupta, Lian & Liu 2016, "Staleness-aware Async-SGD")."""
    return 1 / max(1, tau)


@dataclass(frozen=True)
class DelayCompensation:
    """DC-ASGD (Zheng et al. 2017): the gradient as it would be at the weights of now, to first order.

    g + strength * g * g * (now - then), where g * g stands for the diagonal of the Hessian (the Fisher information of a
    likelihood), and `then` are the weights that g was computed on. The server keeps those of each worker: its shard
    once more for each of them.
    """

    strength: float

    def __post_init__(self) -> None:
        if not 0 <= self.strength < math.inf:
            raise RefusedError(f"DelayCompensation({self.strength!r}): needs a finite strength of at least 0")

    def __call__(self, gradient: Tensor, then: Tensor, now: Tensor) -> Tensor:
        return gradient + self.strength * gradient * gradient * (now - then)


def explicit_momentum(target: float, workers: int) -> float:
    """What to give the optimizer, so that `workers` asynchronous ones make as much momentum as `target` in all.

    Mitliagkas et al. 2016 ("Asynchrony begets momentum"): N workers that finish in random order have staleness tau with
    probability (1 - m) m^tau, m = 1 - 1/N. On average the gradient of now is then G_t = m G_(t-1) + (1 - m) grad_t, a
    momentum of m that nobody asked for. With momentum u of the optimizer on top, a step follows u + m of the step
    before it (and -u m of the one before that), so u = target - m. It is negative where there are too many workers.
    """
    if not 0 <= target < 1 or type(workers) is not int or workers < 1:
        raise RefusedError(
            f"explicit_momentum({target!r}, {workers!r}): needs a momentum from 0 up to 1, and 1 worker or more"
        )
    return target - (1 - 1 / workers)
