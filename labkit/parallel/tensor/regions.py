"""Where a tensor-parallel region begins and ends: pairs of functions, each the other's backward.

Outside of a region every rank holds the same tensor, and its gradient is the same on every rank. Inside, each rank
holds something else. Under sequence parallelism the outside is cut too: each rank holds a part of the positions.

    forward                          backward
    copy_to_region     nothing       all-reduce        outside -> inside, whole
    reduce_from_region all-reduce    nothing           inside, to be summed -> outside
    scatter_to_region  own part      all-gather        outside -> inside, cut along a dimension
    gather_from_region all-gather    own part          inside, cut -> outside
    gather_sequence    all-gather    reduce-scatter    sequence parallel -> inside, whole
    reduce_scatter_sequence  reduce-scatter  all-gather  inside, to be summed -> sequence parallel

The first two are `f` and `g` of Shoeybi et al. 2019 ("Megatron-LM", section 3), the last two those of Korthikanti et
al. 2022 ("Reducing Activation Recomputation in Large Transformer Models", section 4.2). A part is
`torch.tensor_split(x, N, dim)[rank]`; where parts are joined and N does not divide, `length` is that of the whole.
Bytes: those of one collective on the whole tensor, in its dtype, by `algorithm` (a name that `labkit.collectives`
knows). None of them can be differentiated twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from labkit.parallel.tensor.moves import async_all_gather, async_all_reduce, async_reduce_scatter, own_part
from labkit.wire.group import Group


def copy_to_region(x: Tensor, group: Group, *, algorithm: str = "auto") -> Tensor:
    """`x`, the same on every rank; its gradient is the sum of what the ranks give."""
    return copy_all_to_region([x], group, algorithm=algorithm)[0]


def copy_all_to_region(tensors: Sequence[Tensor], group: Group, *, algorithm: str = "auto") -> tuple[Tensor, ...]:
    """`copy_to_region` of several tensors of one dtype, with one all-reduce of all their gradients side by side.

    A tensor that a rank has not used counts as zeros. Used for parameters that all ranks hold and use on different
    positions: norms and biases under sequence parallelism.
    """
    return tuple(_Copy.apply(group, algorithm, *tensors))


def reduce_from_region(x: Tensor, group: Group, *, algorithm: str = "auto") -> Tensor:
    """The sum of all ranks' `x`, a new tensor; each rank's gradient is that of the sum."""
    return _Reduce.apply(x, group, algorithm)


def scatter_to_region(x: Tensor, group: Group, dim: int = -1, *, algorithm: str = "auto") -> Tensor:
    """This rank's part of `x` along `dim`; the gradients of all parts are joined."""
    return _Scatter.apply(x, group, dim, algorithm)


def gather_from_region(
    x: Tensor, group: Group, dim: int = -1, *, length: int | None = None, algorithm: str = "auto"
) -> Tensor:
    """All ranks' parts joined along `dim`; each rank takes its own part of the gradient, which is alike on all."""
    return _Gather.apply(x, group, dim, length, algorithm, False)


def gather_sequence(
    x: Tensor, group: Group, dim: int = 1, *, length: int | None = None, algorithm: str = "auto"
) -> Tensor:
    """All ranks' parts joined along `dim`; the ranks' gradients, which differ, are summed, and each takes its part."""
    return _Gather.apply(x, group, dim, length, algorithm, True)


def reduce_scatter_sequence(x: Tensor, group: Group, dim: int = 1, *, algorithm: str = "auto") -> Tensor:
    """This rank's part along `dim` of the sum of all ranks' `x`; the gradients of all parts are joined."""
    return _ReduceScatter.apply(x, group, dim, algorithm)


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, group: Group, algorithm: str, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.group, ctx.algorithm = group, algorithm
        return tuple(x.view_as(x) for x in tensors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        flat = torch.cat([g.reshape(-1) for g in gradients])
        async_all_reduce(flat, ctx.group, ctx.algorithm)()
        parts = flat.split([g.numel() for g in gradients])
        return None, None, *(part.view(g.shape) for part, g in zip(parts, gradients, strict=True))


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group, algorithm: str) -> Tensor:
        return async_all_reduce(x.clone(memory_format=torch.contiguous_format), group, algorithm)()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient, None, None


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group, dim: int, algorithm: str) -> Tensor:
        ctx.group, ctx.dim, ctx.length, ctx.algorithm = group, dim, x.shape[dim], algorithm
        return own_part(x, group, dim).clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return async_all_gather(gradient, ctx.group, ctx.dim, ctx.length, ctx.algorithm)(), None, None, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, group: Group, dim: int, length: int | None, algorithm: str, summed: bool
    ) -> Tensor:
        ctx.group, ctx.dim, ctx.algorithm, ctx.summed = group, dim, algorithm, summed
        return async_all_gather(x, group, dim, length, algorithm)()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        if ctx.summed:
            mine = async_reduce_scatter(gradient, ctx.group, ctx.dim, ctx.algorithm)()
        else:
            mine = own_part(gradient, ctx.group, ctx.dim)
        return mine, None, None, None, None, None


class _ReduceScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group, dim: int, algorithm: str) -> Tensor:
        ctx.group, ctx.dim, ctx.length, ctx.algorithm = group, dim, x.shape[dim], algorithm
        return async_reduce_scatter(x, group, dim, algorithm)()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return async_all_gather(gradient, ctx.group, ctx.dim, ctx.length, ctx.algorithm)(), None, None, None
