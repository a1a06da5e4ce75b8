"""The heart of FSDP as one autograd function: forward gathers a unit's parameters, backward reduces their gradients.

Autograd calls `backward` when the last parameter of the unit has its gradient, and that is right after the unit's own
backward pass: the latest forward runs backward first. So nobody has to count gradients.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labkit.parallel.fsdp.flat_parameter import FlatParameter
from labkit.parallel.fsdp.reducing import Reducer


class Gather(torch.autograd.Function):
    """From this rank's shard to the parameters of the unit, and from their gradients to that of the shard."""

    @staticmethod
    def forward(ctx: Any, shard: Tensor, flat_param: FlatParameter, reducer: Reducer) -> tuple[Tensor, ...]:
        """The parameters in their shapes. `shard` is an argument so that autograd knows what they came from."""
        ctx.flat_param, ctx.reducer = flat_param, reducer
        ctx.set_materialize_grads(False)  # a parameter without gradient is None here, not a tensor of zeros
        return tuple(flat_param.views())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[None, None, None]:
        """Hand the gradients over. That of the shard is None for autograd: it comes later, when it is reduced."""
        ctx.reducer.add(ctx.flat_param, gradients)
        return None, None, None
