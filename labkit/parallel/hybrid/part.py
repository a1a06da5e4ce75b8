"""This rank's layers as one module, and what their routers add to a loss that another rank computes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from labkit.models.moe import MoE, losses_of
from labkit.parallel.context.parallel import ContextParallel
from labkit.parallel.tensor.gpt import TensorParallelGPT


class Part(nn.Module):
    """A stage of the model: tokens (b, t) or activations (b, t, d) of this rank's positions -> activations, or logits.

    model: with its heads, columns and vocabulary cut among the ranks of tp. The last stage returns this rank's columns
    of the logits. share: how much the loss of the microbatch that comes next counts, set before its forward pass.
    added: what the routers have added to the loss in this step, weighted; loads: choices of each expert, by router.
    """

    def __init__(self, model: TensorParallelGPT, context: ContextParallel | None) -> None:
        super().__init__()
        self.model = model
        self._context = context
        self._layers = [layer for layer in model.modules() if isinstance(layer, MoE)]
        self.share = 1.0
        self.begin(0)

    def begin(self, length: int) -> None:
        """A step begins; length: this rank's positions of each sequence."""
        self.model.length = length
        self.added = torch.zeros((), dtype=torch.float64)
        self.loads: list[Tensor | None] = [None] * len(self._layers)

    def forward(self, x: Tensor) -> Tensor:
        at = self._context.positions if self._context is not None and self.model.first else None
        y = self.model.logits_part(x, at)
        if not self._layers or not torch.is_grad_enabled():
            return y
        loss = self.share * losses_of(self.model)
        self.added = self.added + loss.detach().double().cpu()
        for n, layer in enumerate(self._layers):
            assert layer.routing is not None
            load, before = layer.routing.load_e, self.loads[n]
            self.loads[n] = load if before is None else before + load
        return _AddToLoss.apply(y, loss)

    def rebalance(self) -> None:
        """After an update: the routers' biases move against the load of all microbatches."""
        for layer, load in zip(self._layers, self.loads, strict=True):
            if load is not None:
                layer.router.rebalance(load)


class _AddToLoss(torch.autograd.Function):
    """`y`; and `loss` is a term of whatever is computed from it, so its gradient is 1.

    A router in the middle of a pipeline knows its balancing loss, and the rank of the last stage the rest: nothing
    needs to be sent (Megatron-LM: `MoEAuxLossAutoScaler`).
    """

    @staticmethod
    def forward(ctx: Any, y: Tensor, loss: Tensor) -> Tensor:
        ctx.like = loss
        return y.view_as(y)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return gradient, torch.ones_like(ctx.like)
