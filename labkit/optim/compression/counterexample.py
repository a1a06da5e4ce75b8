"""Where signs alone do not converge (Karimireddy, Rebjock, Stich & Jaggi 2019, counterexample 3).

    f(x) = <a, x>^2 + <b, x>^2        a = (1, -1) + epsilon (1, 1),  b = -(1, -1) + epsilon (1, 1)

f is smooth and convex, and 0 at the origin alone. But whichever of the two terms a gradient is of, and wherever x is,
its signs are (1, -1) or (-1, 1): a step by signs never changes x_1 + x_2, and f cannot fall below what that leaves,
2 epsilon^2 (x_1 + x_2)^2. With error feedback what the signs left out comes along later.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from labkit.wire.group import Group


class Hook(Protocol):
    """Any hook of this folder."""

    def bucket(self, flat: Tensor, gradients: Mapping[str, Tensor], group: Group, /) -> Any: ...


def terms(epsilon: float = 0.5) -> Tensor:
    """a and b, (2, 2) in float64: f(x) is the sum of the squares of `terms() @ x`."""
    return torch.tensor([[1 + epsilon, epsilon - 1], [epsilon - 1, 1 + epsilon]], dtype=torch.float64)


def gradient(x: Tensor, which: int, epsilon: float = 0.5) -> Tensor:
    """Of term 0 or 1 at x (2)."""
    term = terms(epsilon)[which].to(x.dtype)
    return 2 * (term @ x) * term


def descend(
    hook: Hook, group: Group, steps: int = 200, lr: float = 0.05, epsilon: float = 0.5, start: float = 1.0
) -> list[float]:
    """f before each step of SGD from (start, start), with the ranks' gradients averaged by `hook`; alike on all ranks.

    In step t rank r has the gradient of term (r + t) mod 2. The step size falls as lr / (1 + t / 50).
    """
    x = torch.full((2,), start, dtype=torch.float64)
    losses = []
    for t in range(steps):
        losses.append(float((terms(epsilon) @ x).square().sum()))
        g = gradient(x, (group.rank + t) % 2, epsilon) / group.size
        hook.bucket(g, {"x": g}, group).wait()
        x -= lr / (1 + t / 50) * g
    return losses
