"""What may travel between a check and a student's work: plain data, and nothing that has behaviour of its own."""

from __future__ import annotations

import torch

PLAIN = (
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64, torch.complex64, torch.complex128,
)  # fmt: skip
DEEPEST, MOST = 20, 100_000


class NotData(ValueError):
    """A value that is no plain data; the text says what it is and what to return instead."""


def as_data(value: object) -> object:
    """`value` if it is plain data: None, bool, int, float, str, bytes, list, tuple, dict with str keys, tensors.

    Tensors come back detached, on the CPU. Raises NotData.
    """
    return _copy(value, 0, [0])


def _copy(value: object, depth: int, count: list[int]) -> object:
    count[0] += 1
    if depth > DEEPEST or count[0] > MOST:
        raise NotData("it returned lists inside lists without end: return tensors, numbers or short lists")
    if value is None or type(value) in (bool, int, float, str, bytes):
        return value
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        items = [_copy(item, depth + 1, count) for item in value]
        return items if type(value) is list else tuple(items)
    if isinstance(value, dict) and type(value) is dict:
        if any(type(key) is not str for key in value):
            raise NotData("it returned a dict whose keys are not all text: use text keys")
        return {key: _copy(item, depth + 1, count) for key, item in value.items()}
    if type(value) in (torch.Tensor, torch.nn.Parameter):
        assert isinstance(value, torch.Tensor)
        if value.dtype not in PLAIN or value.layout != torch.strided:
            raise NotData(f"it returned a tensor of {value.dtype}, {value.layout}: return a plain dense tensor")
        return value.detach().cpu()
    raise NotData(f"it returned a {type(value).__name__}: return tensors, numbers, text, or lists of them")
