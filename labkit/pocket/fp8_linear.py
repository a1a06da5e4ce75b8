"""A linear layer whose three matrix products have factors of 8 bits (Micikevicius et al. 2022), with delayed scaling.

    layer = Fp8Linear(linear)              # an nn.Linear: its weights stay in 32 bits, and the optimizer sees those
    criterion(layer(x), y).backward()
    layer.agree(group)                     # after every backward pass: one all-reduce of 12 bytes

Inputs and weights are E4M3, which has finer steps, and the gradients that come back are E5M2, which reaches further.
Before a cast a tensor is multiplied by a scale that brings the largest number of the last steps, its amax, to the
largest of the format. A product of two numbers of 8 bits is exact in 32, and so are the sums here; only the factors
are rounded. On a CPU this is no faster: it shows the numbers.

What the full one (`labkit.optim.precision.low_precision`) does more: all layers of a model, and one message for all of
their amaxes; current and fixed scaling; narrow accumulators; other formats; what was lost; and steps to be skipped.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from labkit.collectives import all_reduce
from labkit.wire import Group

LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}
HISTORY = 16


class Scaled:
    """The scale of one tensor, from step to step."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype, self.amaxes, self.now = dtype, [], torch.zeros(())  # type: tuple[torch.dtype, list[float], Tensor]

    def cast(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Codes, and the scale that they were multiplied by."""
        self.now = x.abs().max()
        amax = max(self.amaxes) if self.amaxes else float(self.now)
        scale = torch.tensor(LARGEST[self.dtype] / amax if amax else 1.0)
        return (x * scale).clamp(-LARGEST[self.dtype], LARGEST[self.dtype]).to(self.dtype), scale


class Product(torch.autograd.Function):
    """x (n, inputs) and W (outputs, inputs) -> x W^T (n, outputs)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, of_x: Scaled, of_weight: Scaled, of_gradient: Scaled) -> Tensor:
        ctx.x, ctx.weight, ctx.of_gradient = of_x.cast(x), of_weight.cast(weight), of_gradient
        return wide(ctx.x) @ wide(ctx.weight).T

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        dy = wide(ctx.of_gradient.cast(gradient))
        return dy @ wide(ctx.weight), dy.T @ wide(ctx.x), None, None, None


def wide(cast: tuple[Tensor, Tensor]) -> Tensor:
    codes, scale = cast
    return codes.float() / scale


class Fp8Linear(nn.Module):
    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self.scaled = [Scaled(torch.float8_e4m3fn), Scaled(torch.float8_e4m3fn), Scaled(torch.float8_e5m2)]

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = Product.apply(x.flatten(0, -2), self.weight, *self.scaled)
        return y.view(*x.shape[:-1], -1) + self.bias

    def agree(self, group: Group) -> None:
        """The largest amax of all ranks goes into every rank's history."""
        amaxes = all_reduce(torch.stack([one.now for one in self.scaled]), group, op="max")
        for one, amax in zip(self.scaled, amaxes.tolist(), strict=True):
            one.amaxes = [*one.amaxes, amax][-HISTORY:]
