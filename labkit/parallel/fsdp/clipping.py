"""The norm of all gradients of a sharded model. A norm of one shard says nothing: ranks would scale differently."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from labkit.collectives import all_reduce
from labkit.parallel.fsdp.flat_parameter import FlatParameter
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group


@torch.no_grad()
def clip_by_norm(flat_params: Sequence[FlatParameter], group: Group, max_norm: float, norm_type: float = 2.0) -> Tensor:
    """Scale the gradients of `flat_params` in place so that their norm is at most `max_norm`; returns it, float64, 0-d.

    The shards of all ranks hold every element once, so the p-norm of the model is (sum over ranks of sum |g|^p)
    to the power 1/p; for p = inf the largest |g|. Sent: one number, all-reduced. As `torch.nn.utils.clip_grad_norm_`
    on the plain model: scaled by max_norm / (norm + 1e-6) if that is below 1.
    """
    if not max_norm > 0 or not norm_type > 0:
        raise RefusedError(
            f"clip_grad_norm_({max_norm!r}, {norm_type!r}): needs a largest norm and a kind of norm above 0"
        )
    gradients = [s.shard.grad for s in flat_params if s.shard.grad is not None]
    norms = [float(torch.linalg.vector_norm(g, norm_type, dtype=_wide(g))) for g in gradients if g.numel()]
    if math.isinf(norm_type):
        total = torch.tensor([max(norms, default=0.0)], dtype=torch.float64, device=group.device)
        norm = all_reduce(total, group, "max")[0]
    else:
        mine = sum(n**norm_type for n in norms)
        norm = all_reduce(torch.tensor([mine], dtype=torch.float64, device=group.device), group)[0] ** (1 / norm_type)
    scale = max_norm / (float(norm) + 1e-6)
    if scale < 1:
        for g in gradients:
            g.mul_(scale)
    return norm


def _wide(g: Tensor) -> torch.dtype:
    return torch.float64 if g.dtype == torch.float64 else torch.float32
