"""Cutting a tensor into chunks without copying it.

Every algorithm talks about "chunk i" or "the part of rank r". Here is what that means: consecutive views of
one contiguous tensor, cut as `torch.tensor_split` cuts (what is left over makes the first chunks one longer).
When there are more chunks than elements the last ones are empty; an empty chunk is still sent, so all ranks
keep the same rhythm.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

import torch
from torch import Tensor


def even_sizes(length: int, parts: int) -> list[int]:
    """Sizes of `parts` nearly equal parts of `length`: `even_sizes(7, 3) == [3, 2, 2]`, as tensor_split."""
    size, longer = divmod(length, parts)
    return [size + 1] * longer + [size] * (parts - longer)


class Chunks:
    """Consecutive views of `whole` along its first dimension; writing to a chunk writes to `whole`.

    `chunks[i]` is chunk i. `chunks[i:j]` is one view over chunks i to j - 1, which an algorithm can send as a
    single message.
    """

    def __init__(self, whole: Tensor, sizes: Sequence[int]):
        self.whole = whole
        self.edges = [0, *accumulate(sizes)]

    def __len__(self) -> int:
        return len(self.edges) - 1

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, index: int | slice) -> Tensor:
        chosen = range(len(self))[index]
        first, end = (chosen, chosen + 1) if isinstance(chosen, int) else (chosen.start, chosen.stop)
        return self.whole[self.edges[first] : self.edges[end]]


def split_evenly(x: Tensor, n: int) -> Chunks:
    """The elements of `x` (contiguous, any shape) as `n` flat chunks whose lengths differ by at most one."""
    return Chunks(x.view(-1), even_sizes(x.numel(), n))


def split_rows(x: Tensor, n: int) -> Chunks:
    """The rows of `x` (its first dimension) as `n` parts; part r is `torch.tensor_split(x, n)[r]`."""
    return Chunks(x, even_sizes(len(x), n))


def room_for(like: Tensor, sizes: Sequence[int]) -> Chunks:
    """A new, unfilled tensor with `sizes[r]` rows like those of `like` for each rank r, as chunks."""
    return Chunks(like.new_empty((sum(sizes), *like.shape[1:])), sizes)


def wide(x: Tensor) -> Tensor:
    """A copy of `x` to accumulate in: float32 for 16-bit floats, else the dtype of `x`."""
    sixteen_bit = x.dtype in (torch.float16, torch.bfloat16)
    return x.to(torch.float32 if sixteen_bit else x.dtype, copy=True)
