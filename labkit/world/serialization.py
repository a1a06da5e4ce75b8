"""How functions travel to the ranks and results come home: cloudpickle, with three cares about tensors.

A CUDA tensor arrives on the host, because the other process may not have that device. A view brings only its own
elements: pickled as it is, a slice of one element would bring the whole storage that it looks into. And dtypes that
pickle cannot name (8-bit floats, unsigned integers of more than a byte) go as bytes.
"""

from __future__ import annotations

from typing import Any

import cloudpickle
import torch
from torch import Tensor

from labkit.wire.dtypes import CODES, NAMES


class Pickler(cloudpickle.Pickler):
    """A cloudpickle Pickler that packs tensors for the journey."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, Tensor):
            packed = _packed(obj)
            if packed.dtype in _UNNAMED:
                raw = packed.detach().contiguous().view(-1).view(torch.uint8) if packed.numel() else None
                return _from_bytes, (raw, packed.dtype, tuple(packed.shape))
            if packed is not obj:
                return _same, (packed,)
        return super().reducer_override(obj)


def _packed(x: Tensor) -> Tensor:
    """`x` itself if it can travel as it is."""
    if type(x) not in (Tensor, torch.nn.Parameter) or x.layout != torch.strided or x.device.type == "meta":
        return x
    home = x.device.type == "cpu"
    whole = x.untyped_storage().nbytes() <= x.nbytes
    graph = x.requires_grad and not x.is_leaf
    if home and whole and not graph:
        return x
    y = x.detach().cpu() if not home else x.detach()
    if not whole:
        y = y.clone()
    return torch.nn.Parameter(y, x.requires_grad) if isinstance(x, torch.nn.Parameter) else y


def _same(x: Any) -> Any:
    return x


def _from_bytes(raw: Tensor | None, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    return torch.empty(shape, dtype=dtype) if raw is None else raw.view(dtype).view(shape)


_NAMED = set("float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 bool complex64 complex128".split())
_UNNAMED = {dtype for dtype, code in CODES.items() if NAMES[code] not in _NAMED}
