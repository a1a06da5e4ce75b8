"""`Piece`: what a rank holds of one tensor of the training state, whatever strategy cut it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .slices import StridedSlice, common, everything, numel

DTYPES = {str(d).removeprefix("torch."): d for d in (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2,
)}  # fmt: skip


@dataclass(frozen=True)
class Piece:
    """A part of one tensor.

    name: of the whole tensor: "model/blocks.0.norm1.weight", "optimizer/exp_avg/blocks.0.norm1.weight". The part after
        the first slash (the second one for an optimizer) is the name in the plain model, on every rank alike.
    shape: of the whole tensor. slices: what is held of it. tensor: these elements, 1-D, in the order of slices.
    each: every rank has its own (batch statistics, say), though names and slices are the same.
    """

    name: str
    shape: tuple[int, ...]
    slices: tuple[StridedSlice, ...]
    tensor: Tensor
    each: bool = False

    @property
    def key(self) -> tuple[Any, ...]:
        """Two pieces with the same key are copies of one another."""
        return (self.name, tuple((s.start, s.length, s.count, s.stride) for s in self.slices))

    @property
    def nbytes(self) -> int:
        """Bytes of what is held."""
        return self.tensor.numel() * self.tensor.element_size()

    @classmethod
    def whole(cls, name: str, x: Tensor) -> Piece:
        """All of a contiguous tensor."""
        return cls(name, tuple(x.shape), everything(x.numel()), x.detach().reshape(-1))

    def take(self, other: Piece) -> int:
        """Copy what another piece of the same tensor has of this one; returns how many elements."""
        return copy_common(other.tensor, other.slices, self.tensor, self.slices)

    def words(self) -> list[Any]:
        """What can be told of it without its values, as plain data: name, shape, dtype, slices."""
        return [self.name, list(self.shape), dtype_name(self.tensor), packed(self.slices)]


def dtype_name(x: Tensor) -> str:
    """ "float32", ..."""
    return str(x.dtype).removeprefix("torch.")


def packed(slices: Sequence[StridedSlice]) -> list[list[int]]:
    """Slices as plain numbers."""
    return [[s.start, s.length, s.count, s.stride, s.at, s.step] for s in slices]


def unpacked(rows: Sequence[Sequence[int]]) -> tuple[StridedSlice, ...]:
    """The inverse of `packed`."""
    return tuple(StridedSlice(*row) for row in rows)


def bytes_of(x: Tensor) -> memoryview:
    """The bytes of a contiguous 1-D tensor in host memory, without a copy."""
    data: Any = x.view(torch.uint8).numpy()
    return memoryview(data) if x.numel() else memoryview(b"")


@torch.no_grad()
def copy_common(source: Tensor, held: Sequence[StridedSlice], target: Tensor, wanted: Sequence[StridedSlice]) -> int:
    """Copy what a part `source` has of a part `target` of the same tensor; returns how many elements.

    Both are 1-D and contiguous. held, wanted: what each is of the whole.
    """
    copied = 0
    for c in common(held, wanted):
        size = (c.count, c.length)
        there = target.as_strided(size, (c.step_b or c.length, 1), target.storage_offset() + c.b)
        there.copy_(source.as_strided(size, (c.step_a or c.length, 1), source.storage_offset() + c.a))
        copied += c.count * c.length
    return copied


def covered(shape: Sequence[int], parts: Sequence[Sequence[StridedSlice]]) -> str | None:
    """Why these parts are not the whole of a tensor, each element once; None if they are."""
    total = int(torch.Size(shape).numel())
    found = sum(numel(part) for part in parts)
    if found < total:
        return f"{found:,} of its {total:,} elements are there"
    runs = [(s.start, s.length) for part in parts for s in part if s.count == 1]
    if len(runs) == sum(len(part) for part in parts):
        runs.sort()
        twice = any(a + n > b for (a, n), (b, _) in zip(runs, runs[1:], strict=False))
    else:
        twice = any(common(a, b) for i, a in enumerate(parts) for b in parts[:i])
    if twice or found > total:
        return "some of its elements are there twice, in parts that are cut differently"
    return None
