"""The norm of all gradients of the model, over every axis, and scaling by it."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from labkit.collectives import all_reduce
from labkit.parallel.hybrid.replicas import Held
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group


@torch.no_grad()
def grad_norm(held: Iterable[Held], group: Group, norm_type: float = 2.0, algorithm: str = "auto") -> Tensor:
    """The p-norm of the whole model's gradient: float64, 0-d, the same on every rank. Sent: one number over all ranks.

    Every rank adds what it counts: what several ranks hold (norms along tp, a tied matrix, copies along dp) once.
    """
    if not norm_type > 0:
        raise RefusedError(f"grad_norm(norm_type={norm_type!r}): needs a kind of norm above 0")
    mine = [float(torch.linalg.vector_norm(h.gradient.double(), norm_type)) for h in held
            if h.counted and h.gradient is not None and h.gradient.numel()]  # fmt: skip
    if math.isinf(norm_type):
        largest = torch.tensor([max(mine, default=0.0)], dtype=torch.float64, device=group.device)
        return all_reduce(largest, group, "max", algorithm)[0]
    total = torch.tensor([sum(n**norm_type for n in mine)], dtype=torch.float64, device=group.device)
    return all_reduce(total, group, "sum", algorithm)[0] ** (1 / norm_type)


@torch.no_grad()
def scale(held: Iterable[Held], norm: Tensor, max_norm: float) -> None:
    """Scale all gradients in place by max_norm / (norm + 1e-6), if that is below 1, as `torch.nn.utils` does."""
    if not max_norm > 0:
        raise RefusedError(f"clip_grad_norm_({max_norm!r}): needs a largest norm above 0")
    factor = max_norm / (float(norm) + 1e-6)
    for h in held if factor < 1 else ():
        if h.gradient is not None:
            h.gradient.mul_(factor)
