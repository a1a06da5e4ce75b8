"""Activation checkpointing (Chen et al. 2016): keep the input of a block, and compute the rest again in backward.

    y = checkpoint(block, x)       # in place of block(x); x must require a gradient

Backward needs what the layers inside a block have computed, and by default autograd keeps all of it from the forward
pass. Here it keeps x alone. When the gradient of y arrives, the block runs a second time, now with autograd watching,
and its own backward follows at once. So memory falls to one activation a block, and the work grows by one forward pass.

What the full one (`labkit.parallel.checkpoint`) does more: random numbers and autocast as in the first run, several
inputs and outputs, blocks inside blocks, inputs without a gradient, and hooks that see each gradient once, in order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Block = Callable[[Tensor], Tensor]


class Checkpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, block: Block, x: Tensor) -> Tensor:
        ctx.block = block
        ctx.save_for_backward(x)
        return block(x)  # inside a Function autograd watches nothing, so nothing of the block is kept

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor | None]:
        (x,) = ctx.saved_tensors
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.block(x)
        torch.autograd.backward(y, gradient)  # adds to .grad of the block's parameters
        return None, x.grad


def checkpoint(block: Block, x: Tensor) -> Tensor:
    """block(x), of which only x is kept for backward."""
    y: Tensor = Checkpoint.apply(block, x)
    return y
