"""What a compressor sends, as bytes: parts of several types side by side, and integers of a few bits each."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Parts = Sequence[tuple[torch.dtype, int]]  # the type of each part, and how many numbers it has


def joined(parts: Sequence[Tensor]) -> Tensor:
    """All parts (1-D) in one uint8 tensor, byte by byte."""
    return torch.cat([part.contiguous().view(torch.uint8) for part in parts])


def parted(whole: Tensor, parts: Parts) -> list[Tensor]:
    """`joined`, taken apart again."""
    cuts = whole.split([dtype.itemsize * count for dtype, count in parts])
    return [cut.clone().view(dtype) for cut, (dtype, _) in zip(cuts, parts, strict=True)]  # a clone lies aligned


def nbytes(parts: Parts) -> int:
    """How many bytes they are."""
    return sum(dtype.itemsize * count for dtype, count in parts)


def pack(numbers: Tensor, bits: int) -> Tensor:
    """Integers of 0 .. 2^bits - 1 (n) -> uint8 (ceil(n bits / 8)); the last byte is filled with zeros."""
    each_nb = numbers.to(torch.int32)[:, None] >> torch.arange(bits, dtype=torch.int32) & 1
    padded = torch.nn.functional.pad(each_nb.flatten(), (0, -each_nb.numel() % 8))
    return (padded.view(-1, 8) << torch.arange(8, dtype=torch.int32)).sum(1).to(torch.uint8)


def unpack(packed: Tensor, bits: int, count: int) -> Tensor:
    """The `count` integers again, as int32."""
    flat = (packed.to(torch.int32)[:, None] >> torch.arange(8, dtype=torch.int32) & 1).flatten()
    return (flat[: count * bits].view(count, bits) << torch.arange(bits, dtype=torch.int32)).sum(1, dtype=torch.int32)
