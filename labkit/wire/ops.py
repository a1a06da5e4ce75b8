"""Reduction operators: what a rank does when two partial results meet.

A reducing collective never adds more than two tensors at a time: the one a rank holds and the one that
arrives. `ReduceOp.combine_` is that step, in place and element by element, so a transport may apply it to
each piece of a message as it comes in.

An average is a sum with a division at the end. AVG therefore combines exactly as SUM does, and `finish_`
divides once, when all contributions are in. (Dividing first, or at every step, would round more often.)

    op     combines with          dtypes
    sum    into + incoming        floats, integers, complex
    avg    into + incoming        floats, complex; then divided by the number of ranks
    prod   into * incoming        floats, integers, complex
    min    minimum, NaN wins      floats, integers, bool (logical and)
    max    maximum, NaN wins      floats, integers, bool (logical or)

Combining happens in the dtype of `into`: int8 wraps around at 127 and bfloat16 rounds after every addition.
The 8-bit floats can be moved but not reduced: torch cannot add them, and two E4M3 gradients near the top of
the range (448) would have no sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches

import torch
from torch import Tensor

_FLOATS = {torch.float64, torch.float32, torch.float16, torch.bfloat16}
_INTEGERS = {torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8}
_COMPLEX = {torch.complex128, torch.complex64}
_ALLOWED = {
    "sum": _FLOATS | _INTEGERS | _COMPLEX,
    "avg": _FLOATS | _COMPLEX,
    "prod": _FLOATS | _INTEGERS | _COMPLEX,
    "min": _FLOATS | _INTEGERS | {torch.bool},
    "max": _FLOATS | _INTEGERS | {torch.bool},
}


@dataclass(frozen=True)
class ReduceOp:
    """One of SUM, AVG, MIN, MAX, PROD. Use those, or `resolve("sum")`; there are no others."""

    name: str

    def combine_(self, into: Tensor, incoming: Tensor) -> Tensor:
        """into = op(into, incoming), in place, in the dtype of `into`, which is returned."""
        if self.name == "prod":
            return into.mul_(incoming)
        if self.name == "min":
            return torch.minimum(into, incoming, out=into)
        if self.name == "max":
            return torch.maximum(into, incoming, out=into)
        return into.add_(incoming)

    def finish_(self, x: Tensor, size: int) -> Tensor:
        """Divide the sum of `size` contributions by `size`, in place, for AVG; nothing for the others."""
        return x.div_(size) if self.name == "avg" else x

    @property
    def combining(self) -> ReduceOp:
        """The operator with nothing left for the end: SUM for AVG, itself for the others."""
        return SUM if self.name == "avg" else self

    def check(self, dtype: torch.dtype) -> None:
        """Raise TypeError, with a remedy, if tensors of this dtype cannot be reduced with this operator."""
        if dtype not in _ALLOWED[self.name]:
            raise TypeError(f"op={self.name!r} is not defined for {_short(dtype)}: {self._remedy(dtype)}")

    def _remedy(self, dtype: torch.dtype) -> str:
        if dtype == torch.bool:
            return "use op='max' for a logical or, op='min' for a logical and, or count with x.int()."
        if self.name == "avg" and dtype in _INTEGERS:
            return "an average of integers has no integer result; use op='sum' and divide, or reduce x.float()."
        if dtype.is_complex and self.name in ("min", "max"):
            return "complex numbers have no order; reduce x.abs(), or the real and imaginary parts."
        if dtype.is_complex:
            return "reduce x.to(torch.complex64)."
        if dtype.is_floating_point and dtype.itemsize == 1:
            return "8-bit floats can be moved but not added; reduce x.to(torch.bfloat16) or x.float() instead."
        return "torch cannot add this dtype; convert it first, for example with x.to(torch.int64)."

    def __reduce__(self) -> tuple:
        return resolve, (self.name,)  # a pickled operator comes back as the same object, so `op is SUM` keeps working

    def __str__(self) -> str:
        return self.name


SUM, AVG, MIN, MAX, PROD = (ReduceOp(name) for name in ("sum", "avg", "min", "max", "prod"))

_BY_NAME = {op.name: op for op in (SUM, AVG, MIN, MAX, PROD)} | {"average": AVG, "mean": AVG, "product": PROD}


def resolve(op: object) -> ReduceOp:
    """The ReduceOp called `op`: "sum", "avg" (or "average", "mean"), "min", "max", "prod" (or "product").

    A ReduceOp is returned as it is, and torch.distributed.ReduceOp.SUM and its like are understood.
    Raises ValueError for anything else and names the known operators.
    """
    if isinstance(op, ReduceOp):
        return op
    name = str(op).rpartition(".")[2].lower()
    if name not in _BY_NAME:
        guess = get_close_matches(name, _BY_NAME, n=1)
        hint = f" Did you mean {guess[0]!r}?" if guess else ""
        raise ValueError(f"op={op!r} is not a reduction. Known: sum, avg, min, max, prod.{hint}")
    return _BY_NAME[name]


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
