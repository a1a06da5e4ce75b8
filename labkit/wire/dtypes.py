"""Numbers for torch dtypes, so that records and headers can name them in one byte."""

from __future__ import annotations

import torch
from torch import Tensor

_NAMES = (
    "float32 float64 float16 bfloat16 uint8 int8 int16 int32 int64 bool complex64 complex128 "
    "uint16 uint32 uint64 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu"
).split()
DTYPES = tuple(getattr(torch, n) for n in _NAMES if hasattr(torch, n))
CODES = {dtype: code for code, dtype in enumerate(DTYPES, 1)}
NAMES = {code: str(dtype).removeprefix("torch.") for dtype, code in CODES.items()}


def describe(code: int, shape: tuple[int | str, ...]) -> str:
    """`float32[8, 3]`, as errors write a tensor."""
    return f"{NAMES.get(code, '?')}[{', '.join(map(str, shape))}]"


def as_bytes(x: Tensor) -> Tensor:
    """`x` (contiguous) as a flat uint8 tensor over the same memory.

    A single entry is contiguous whatever its stride, and `view` minds: so the stride is said to be 1.
    """
    return x.detach().as_strided((x.numel(),), (1,)).view(torch.uint8) if x.numel() else _EMPTY


_EMPTY = torch.empty(0, dtype=torch.uint8)
