"""The norm of all gradients of a model of which every rank holds a part, and some parameters are on all ranks.

A parameter that is held whole by every rank has the same gradient on each: under tensor parallelism because its inputs
are the same, under sequence parallelism because the layers sum it. It counts once, else the norm would change with the
number of ranks.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from labkit.collectives import all_reduce
from labkit.parallel.tensor.shard_spec import shard_specs_of
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group


@torch.no_grad()
def grad_norm(model: nn.Module, group: Group, norm_type: float = 2.0) -> Tensor:
    """The p-norm of all gradients of the whole model: float64, 0-d, the same on every rank. Sent: one number.

    Each rank adds its own parts, and rank 0 what all ranks hold; for p = inf the largest |g|.
    """
    if not norm_type > 0:
        raise RefusedError(f"grad_norm(norm_type={norm_type!r}): needs a kind of norm above 0")
    counted = [
        p.grad for _, p, cut in shard_specs_of(model) if p.grad is not None and (cut is not None or group.rank == 0)
    ]
    norms = [float(torch.linalg.vector_norm(g, norm_type, dtype=_wide(g))) for g in counted if g.numel()]
    if math.isinf(norm_type):
        total = torch.tensor([max(norms, default=0.0)], dtype=torch.float64, device=group.device)
        return all_reduce(total, group, "max")[0]
    mine = sum(n**norm_type for n in norms)
    return all_reduce(torch.tensor([mine], dtype=torch.float64, device=group.device), group)[0] ** (1 / norm_type)


@torch.no_grad()
def clip_grad_norm_(model: nn.Module, group: Group, max_norm: float, norm_type: float = 2.0) -> Tensor:
    """Scale all gradients in place so that their norm is at most `max_norm`; returns the norm before that.

    As `torch.nn.utils.clip_grad_norm_` on the whole model: by max_norm / (norm + 1e-6), if that is below 1.
    """
    if not max_norm > 0:
        raise RefusedError(f"clip_grad_norm_({max_norm!r}): needs a largest norm above 0")
    norm = grad_norm(model, group, norm_type)
    scale = max_norm / (float(norm) + 1e-6)
    if scale < 1:
        for p in model.parameters():
            if p.grad is not None:
                p.grad.mul_(scale)
    return norm


def _wide(g: Tensor) -> torch.dtype:
    return torch.float64 if g.dtype == torch.float64 else torch.float32
