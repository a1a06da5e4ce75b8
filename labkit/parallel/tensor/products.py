"""The two matrix products of tensor parallelism, with what they send, as autograd functions.

Column-parallel: the input is whole and the weight's rows are cut, so each rank makes some columns of the output. Its
backward has a sum over the ranks, of the input's gradient. That sum is begun before the weight's gradient is computed
and waited for after it, so that the one hides behind the other (Narayanan et al. 2021, section 4.2 and Megatron-LM's
`LinearWithGradAccumulationAndAsyncCommunication`).
Row-parallel: the input's columns and the weight's columns are cut, so each rank makes a term of every output. Its
forward has the sum.

Under sequence parallelism the sums are reduce-scatters, and the other direction has an all-gather. What is kept for
backward is the local part of the input, which is gathered again then (Korthikanti et al. 2022, section 4.2.2), while
the input's gradient is computed; or the gathered input, if memory is cheaper than a second all-gather.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from labkit.parallel.tensor.moves import async_all_gather, async_all_reduce, async_reduce_scatter
from labkit.wire.group import Group


class Product:
    """The products of a linear layer; `labkit.parallel.kernels` puts one in its place that takes time as well."""

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """x (..., i), weight (o, i), bias (o) -> (..., o)."""
        return F.linear(x, weight, bias)

    def input_gradient(self, gradient: Tensor, weight: Tensor) -> Tensor:
        """(..., o) and (o, i) -> (..., i)."""
        return gradient @ weight

    def weight_gradient(self, gradient: Tensor, x: Tensor) -> Tensor:
        """(..., o) and (..., i) -> (o, i): summed over all positions."""
        return gradient.reshape(-1, gradient.shape[-1]).mT @ x.reshape(-1, x.shape[-1])


@dataclass(frozen=True)
class CommOptions:
    """How a product communicates. sequence: parts of dimension 1 outside; length: of the whole one (None: equal parts).

    gather_again: what `sequence` gathers is gathered again in backward, in place of being kept.
    """

    group: Group
    sequence: bool = False
    overlap: bool = True
    algorithm: str = "auto"
    length: int | None = None
    product: Product = field(default_factory=Product)
    gather_again: bool = True


def column_product(x: Tensor, weight: Tensor, bias: Tensor | None, comm: CommOptions) -> Tensor:
    """x (..., i), or this rank's part of its dimension 1; weight (o / N, i), bias (o / N) -> (..., o / N)."""
    return _Column.apply(x, weight, bias, comm)


def row_product(x: Tensor, weight: Tensor, comm: CommOptions) -> Tensor:
    """x (..., i / N), weight (o, i / N) -> (..., o), summed over the ranks, or this rank's part of its dimension 1."""
    return _Row.apply(x, weight, comm)


class _Column(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, comm: CommOptions) -> Tensor:
        whole = async_all_gather(x, comm.group, 1, comm.length, comm.algorithm)() if comm.sequence else x
        y = comm.product.forward(whole, weight, bias)
        ctx.comm, ctx.again = comm, comm.sequence and comm.gather_again
        ctx.save_for_backward(x if ctx.again else whole, weight)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (x, weight), comm = ctx.saved_tensors, ctx.comm
        need_x, need_weight, need_bias = _asked(ctx)
        of_x = of_weight = summed = None
        if ctx.again and need_weight:
            gathered = async_all_gather(x, comm.group, 1, comm.length, comm.algorithm, later=comm.overlap)
        if need_x:
            term = comm.product.input_gradient(gradient, weight)
            if comm.sequence:
                summed = async_reduce_scatter(term, comm.group, 1, comm.algorithm, later=comm.overlap)
            else:
                summed = async_all_reduce(term, comm.group, comm.algorithm, later=comm.overlap)
        if need_weight:
            of_weight = comm.product.weight_gradient(gradient, gathered() if ctx.again else x)
        of_bias = gradient.reshape(-1, gradient.shape[-1]).sum(0) if need_bias else None
        if summed is not None:
            of_x = summed()
        return of_x, of_weight, of_bias, None


class _Row(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, comm: CommOptions) -> Tensor:
        term = comm.product.forward(x, weight)
        ctx.comm, ctx.length = comm, term.shape[1] if comm.sequence else None
        ctx.save_for_backward(x, weight)
        if comm.sequence:
            return async_reduce_scatter(term, comm.group, 1, comm.algorithm)()
        return async_all_reduce(term, comm.group, comm.algorithm)()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (x, weight), comm = ctx.saved_tensors, ctx.comm
        of_x = of_weight = None
        need_x, need_weight, _ = _asked(ctx)
        if comm.sequence:
            gradient = async_all_gather(gradient, comm.group, 1, ctx.length, comm.algorithm)()
        if need_x:
            of_x = comm.product.input_gradient(gradient, weight)
        if need_weight:
            of_weight = comm.product.weight_gradient(gradient, x)
        return of_x, of_weight, None


def _asked(ctx: Any) -> tuple[bool, bool, bool]:
    """Whether the backward under way asks for the gradients of x, the weight, and the bias: of one in two parts the
    first wants the input's alone.

    PyTorch tells its own products. A Function's `needs_input_grad` says what was so when it ran forward.
    """
    needs = zip(ctx.needs_input_grad, ctx.next_functions, strict=False)  # only tensors have a next function
    x, weight, *rest = (need and _executes(node) for need, (node, _) in needs)
    return x, weight, bool(rest and rest[0])


def _executes(node: Any) -> bool:
    try:
        return bool(torch._C._will_engine_execute_node(node))
    except RuntimeError:  # a leaf of which torch.autograd.grad is to return the gradient
        return True
