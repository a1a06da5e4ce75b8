"""Linear layers whose three matrix products run in few bits.

    forward     y = x W^T       x and W in the forward format
    backward    dx = dy W       dy in the backward format, W as it was cast forward
                dW = dy^T x     dy in the backward format, x as it was cast forward

So x is kept for backward in 8 bits, and W is cast once a step. Bias, y, dx and dW are float32, the optimizer sees W
in float32 (the *master weights*), and everything between the layers stays as it was: normalisation, softmax, the
residual stream. Embeddings and the last layer are left out as in every published recipe, because a score for each
symbol is where small differences count, and both are a small part of the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from labkit.optim.precision.formats import Format
from labkit.optim.precision.products import multiply
from labkit.optim.precision.recipes import Recipe, Scales, TensorScale
from labkit.optim.precision.scaling import Scaled
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group


class LowPrecisionLinear(nn.Module):
    """Takes over weight and bias of an `nn.Linear`: (..., inputs) -> (..., outputs), float32."""

    def __init__(self, linear: nn.Linear, name: str, recipe: Recipe, scales: Scales) -> None:
        super().__init__()
        self.weight, self.bias, self.recipe = linear.weight, linear.bias, recipe
        forward, backward = cast(Format, recipe.forward), cast(Format, recipe.backward)
        self.scales = (
            scales.add(f"{name}.input", recipe, forward),
            scales.add(f"{name}.weight", recipe, forward),
            scales.add(f"{name}.gradient", recipe, backward),
        )

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = _Product.apply(x.flatten(0, -2), self.weight, self.recipe, self.scales, torch.is_grad_enabled())
        y = y.view(*x.shape[:-1], -1)
        return y if self.bias is None else y + self.bias


class _Product(torch.autograd.Function):
    """x (n, inputs) and W (outputs, inputs) -> x W^T (n, outputs)."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, recipe: Recipe, scales: tuple[TensorScale, ...], training: bool
    ) -> Tensor:
        of_x, of_weight, ctx.of_gradient = scales
        ctx.recipe, ctx.x, ctx.weight = recipe, of_x.cast(x, training), of_weight.cast(weight, training)
        return _multiply(ctx.x, _wide(ctx.weight).T, recipe)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        dy = _wide(ctx.of_gradient.cast(gradient))
        return _multiply(dy, _wide(ctx.weight), ctx.recipe), _multiply(dy.T, _wide(ctx.x), ctx.recipe), None, None, None


def _wide(x: Scaled | Tensor) -> Tensor:
    return x.wide() if isinstance(x, Scaled) else x


def _multiply(a: Scaled | Tensor, b: Tensor, recipe: Recipe) -> Tensor:
    return multiply(a, b, cast(Format, recipe.accumulator), recipe.promote)


def low_precision(
    model: nn.Module, recipe: Recipe, keep: Sequence[str] = ("lm_head",), group: Group | None = None
) -> Scales:
    """Replace every `nn.Linear` of the model by one in few bits, but for those whose name ends in one of `keep`.

    Call it before the model is wrapped (`DataParallel(model, group)`), and `spoilt()` of what it returns after every
    backward pass. The parameters stay what they are, and keep their names. Raises RefusedError if nothing is left.
    """
    scales = Scales(group)
    for path, module in list(model.named_modules()):
        for name, child in list(module.named_children()):
            full = f"{path}.{name}" if path else name
            if type(child) is nn.Linear and not full.endswith(tuple(keep)):
                if child.weight.dtype != torch.float32:
                    raise RefusedError(
                        f"{full} is {child.weight.dtype}: master weights are float32; call model.float()"
                    )
                setattr(module, name, LowPrecisionLinear(child, full, recipe, scales))
    if not scales.of:
        raise RefusedError(f"no nn.Linear is left to run in few bits: keep={tuple(keep)!r} leaves all of them out")
    return scales
