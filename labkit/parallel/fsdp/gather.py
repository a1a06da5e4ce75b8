"""The heart of FSDP as one autograd function: forward gathers a unit's parameters, backward reduces their gradients.

Autograd calls `backward` when the last parameter of the unit has its gradient, and that is right after the unit's own
backward pass: the latest forward runs backward first. So nobody has to count gradients.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labkit.parallel.fsdp.reducing import Reducer
from labkit.parallel.fsdp.shard import Shard


class Gather(torch.autograd.Function):
    """From this rank's stretch to the parameters of the unit, and from their gradients to that of the stretch."""

    @staticmethod
    def forward(ctx: Any, stretch: Tensor, shard: Shard, reducer: Reducer) -> tuple[Tensor, ...]:
        """The parameters in their shapes. `stretch` is an argument so that autograd knows what they came from."""
        ctx.shard, ctx.reducer = shard, reducer
        ctx.set_materialize_grads(False)  # a parameter without gradient is None here, not a tensor of zeros
        return tuple(shard.views())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[None, None, None]:
        """Hand the gradients over. That of the stretch is None for autograd: it comes later, when it is reduced."""
        ctx.reducer.add(ctx.shard, gradients)
        return None, None, None
