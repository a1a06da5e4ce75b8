"""Plain data as JSON and back, to the bit: settings of optimizers, states of schedulers and loaders.

JSON knows no tuples, no keys but words and no tensors; these are marked. Anything else is refused, by its place: what
is written as code or pickled might not be readable by another version.
"""

from __future__ import annotations

import base64
from typing import Any

import torch
from torch import Tensor

from labkit.wire.errors import RefusedError

from .pieces import DTYPES, bytes_of, dtype_name

MARK = "$"


def encode(x: Any, where: str) -> Any:
    """`x` in what JSON can write. Raises RefusedError, naming `where` it stands, for what is not plain data."""
    if x is None or type(x) in (bool, int, float, str):
        return x
    if type(x) is list:
        return [encode(y, f"{where}[{i}]") for i, y in enumerate(x)]
    if isinstance(x, tuple):
        return {MARK: "tuple", "of": [encode(y, f"{where}[{i}]") for i, y in enumerate(x)]}
    if isinstance(x, dict):
        if all(type(k) is str for k in x) and MARK not in x:
            return {k: encode(y, f"{where}[{k!r}]") for k, y in x.items()}
        pairs = [[encode(k, f"a key of {where}"), encode(y, f"{where}[{k!r}]")] for k, y in x.items()]
        return {MARK: "dict", "of": pairs}
    if isinstance(x, Tensor):
        flat = x.detach().to("cpu").contiguous().reshape(-1)
        return {MARK: "tensor", "of": base64.b64encode(bytes_of(flat)).decode(), "dtype": dtype_name(x),
                "shape": list(x.shape)}  # fmt: skip
    if isinstance(x, bool | int | float | str):  # subclasses, such as numpy's float64
        return encode(next(kind(x) for kind in (bool, int, float, str) if isinstance(x, kind)), where)
    raise RefusedError(f"{where} is a {type(x).__name__}: a checkpoint keeps numbers, words, lists, dicts and tensors")


def decode(x: Any) -> Any:
    """The inverse of `encode`."""
    if isinstance(x, list):
        return [decode(y) for y in x]
    if not isinstance(x, dict):
        return x
    kind = x.get(MARK)
    if kind is None:
        return {k: decode(y) for k, y in x.items()}
    if kind == "tuple":
        return tuple(decode(y) for y in x["of"])
    if kind == "dict":
        return {decode(k): decode(y) for k, y in x["of"]}
    data = bytearray(base64.b64decode(x["of"]))
    flat = torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    return flat.view(DTYPES[x["dtype"]]).reshape(x["shape"]).clone()
