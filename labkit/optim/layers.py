"""Which parameters LARS and LAMB treat layer by layer, and the norms they ask for.

A "layer" is one parameter tensor, as in both papers' code. Biases and the gains of norms are left out: they are few,
they begin at zero or one, and their norm says nothing about how far they may go. They take the plain step
(`adapt=False`) and no weight decay (Goyal et al. 2017, section 5.3, leaves them out of the decay for the same reason).

A layer whose weights are all zero could never leave zero by a step of length |w|, and a step of length zero has no
direction to be stretched. Both optimizers then take the plain step: the factor is 1.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.linalg import vector_norm

from labkit.wire.errors import RefusedError


def layer_groups(model: nn.Module, weight_decay: float = 0.0) -> list[dict[str, Any]]:
    """Parameter groups for `LARS` and `LAMB`: matrices and filters, then biases and norms (empty groups left out).

    A parameter with fewer than two dimensions counts as bias or norm. Frozen parameters are left out.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    layers, others = [p for p in trained if p.ndim >= 2], [p for p in trained if p.ndim < 2]
    groups = [
        {"params": layers, "adapt": True, "weight_decay": weight_decay},
        {"params": others, "adapt": False, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def norm(x: Tensor) -> Tensor:
    """|x|, the Euclidean norm over all elements, in fp32 at least: a norm is easily beyond fp16's 65504."""
    return vector_norm(x, dtype=torch.float32 if x.itemsize < 4 else None)


def dense(p: Tensor) -> Tensor:
    """The gradient of `p`, refused if it is sparse: a norm over the rows of this batch is not the layer's."""
    assert p.grad is not None
    if p.grad.is_sparse:
        raise RefusedError(
            "a sparse gradient: LARS and LAMB need the whole layer's norm. Build the embedding with sparse=False"
        )
    return p.grad


def check_settings(**values: float) -> None:
    """Refuse a negative (or NaN) setting by name."""
    for name, value in values.items():
        if not value >= 0:
            raise RefusedError(f"{name}={value}: it must not be negative")
