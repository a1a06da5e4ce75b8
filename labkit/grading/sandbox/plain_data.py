"""Data that may cross the wall of the sandbox, and how it is written: nothing that could run.

Data is None, bool, int, float, str, bytes, list, tuple, dict with str keys, and dense torch tensors of plain dtypes.
A message is `LKD1`, the length of a JSON header (4 bytes), the length of the body (8 bytes), the header, the body. The
header is the tree; the body holds the bytes of tensors and byte strings one after the other. A reader builds these
types and no others: there is no name of a class in a message, nothing is unpickled or evaluated.

In the tree None, bool, int, str and list are themselves; the rest is an object with one key: `f` a float in
hexadecimal, `b` the length of a byte string, `t` a tuple, `d` a dict as pairs, `x` a tensor as [dtype, shape].
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from labkit.wire.dtypes import CODES

MAGIC = b"LKD1"
PREFIX = struct.Struct("<4sIQ")
MAX_HEADER = 8 << 20  # bytes
MAX_BODY = 1 << 32
MAX_DEPTH = 40
MAX_NODES = 200_000
MAX_INT = 1 << 256
DTYPES = {str(d).removeprefix("torch."): d for d in CODES}


class NotData(TypeError):
    """A value that cannot cross: the message says where it is and what to return instead."""


class BadData(ValueError):
    """Bytes that are no such message, or too long a one."""


def encode(value: Any) -> bytes:
    """`value` as one message. Raises NotData."""
    return b"".join(bytes(part) for part in parts(value))


def parts(value: Any) -> list[Any]:
    """`encode` in pieces: the beginning, then a buffer a tensor, not copied where it lies on the host in one piece."""
    writer = _Writer()
    tree = writer.node(value, "the value", 0)
    header = json.dumps(tree, separators=(",", ":"), allow_nan=False).encode("ascii")
    if len(header) > MAX_HEADER:
        raise NotData(f"the value has too much structure: {len(header)} bytes without its tensors, {MAX_HEADER} fit")
    if writer.nbytes > MAX_BODY:
        raise NotData(f"the tensors of the value take {writer.nbytes} bytes; {MAX_BODY} fit")
    return [PREFIX.pack(MAGIC, len(header), writer.nbytes) + header, *writer.body]


def decode(message: bytes | bytearray | memoryview, limit: int = MAX_BODY) -> Any:
    """The value in a whole message. Raises BadData for everything that `encode` did not write."""
    view = memoryview(message)
    at = 0

    def take(n: int) -> bytearray:
        nonlocal at
        if n > len(view) - at:
            raise BadData("the message ends too early")
        at += n
        return bytearray(view[at - n : at])

    value = read(take, limit)
    if at != len(view):
        raise BadData(f"{len(view) - at} bytes too many after the message")
    return value


def lengths(prefix: bytes | bytearray, limit: int = MAX_BODY) -> tuple[int, int]:
    """(header, body) in bytes, from the first PREFIX.size bytes of a message. Raises BadData."""
    if len(prefix) != PREFIX.size:
        raise BadData("the message ends too early")
    magic, header, body = PREFIX.unpack(prefix)
    if magic != MAGIC:
        raise BadData("this is not a message of plain data")
    if header > MAX_HEADER or header + body > limit + MAX_HEADER or body > MAX_BODY:
        raise BadData(f"a message of {header + body} bytes is too long: {limit} are allowed")
    return header, body


def read(take: Callable[[int], bytearray], limit: int = MAX_BODY) -> Any:
    """The value that `take(n)` yields, n bytes at a time; what it yields for a tensor becomes its memory."""
    header, body = lengths(take(PREFIX.size), limit)
    try:
        tree = json.loads(take(header).decode("ascii"), parse_constant=_no_constant, parse_float=_no_constant)
    except (ValueError, RecursionError) as why:
        raise BadData(f"the header cannot be read: {str(why)[:200]}") from None
    reader = _Reader(take, body)
    value = reader.node(tree, 0)
    if reader.left:
        raise BadData(f"{reader.left} bytes of the body belong to nothing")
    return value


def _no_constant(text: str) -> None:
    raise ValueError(f"{text[:20]!r} is not written that way")


class _Writer:
    def __init__(self) -> None:
        self.body: list[Any] = []
        self.nbytes = self.nodes = 0

    def node(self, value: Any, where: str, depth: int) -> Any:
        self.nodes += 1
        if depth > MAX_DEPTH:
            raise NotData(f"{where[:60]}...: nested more than {MAX_DEPTH} deep (or a list that contains itself)")
        if self.nodes > MAX_NODES:
            raise NotData(f"more than {MAX_NODES} values: put numbers in a tensor")
        kind = type(value)
        if value is None or kind is bool or kind is str:
            return value
        if kind is int:
            if abs(value) > MAX_INT:
                raise NotData(f"{where}: an int of {value.bit_length()} bits is too long")
            return value
        if kind is float:
            return {"f": value.hex()}
        if kind in (bytes, bytearray):
            return {"b": self._put(bytes(value))}
        if kind in (list, tuple):
            items = [self.node(v, f"{where}[{i}]", depth + 1) for i, v in enumerate(value)]
            return items if kind is list else {"t": items}
        if kind is dict:
            for key in value:
                if type(key) is not str:
                    raise NotData(f"{where}: a dict needs str keys, and {_short(key)} is of type {type(key).__name__}")
            return {"d": [[k, self.node(v, f"{where}[{k[:40]!r}]", depth + 1)] for k, v in value.items()]}
        if isinstance(value, Tensor):
            return {"x": self._tensor(value, where)}
        raise NotData(
            f"{where} is of type {kind.__name__}, which cannot leave the sandbox. Return None, bool, int, float, str, "
            "bytes, lists, tuples, dicts with str keys, and tensors" + _remedy(kind)
        )

    def _put(self, raw: Any) -> int:
        n = memoryview(raw).nbytes
        self.body.append(raw)
        self.nbytes += n
        return n

    def _tensor(self, x: Tensor, where: str) -> list[Any]:
        if x.layout != torch.strided or x.is_meta or x.is_quantized or x.dtype not in CODES:
            raise NotData(f"{where}: only dense tensors of plain dtypes with values, not {x.dtype} on {x.device}")
        if x.dim() > 16:
            raise NotData(f"{where}: a tensor of {x.dim()} dimensions; 16 are allowed")
        shape = [int(n) for n in x.shape]
        x = x.detach().resolve_conj().resolve_neg().to("cpu").contiguous()
        if x.numel():
            self._put(memoryview(x.as_strided((x.numel(),), (1,)).view(torch.uint8).numpy()))  # type: ignore[arg-type]
        return [str(x.dtype).removeprefix("torch."), shape]


class _Reader:
    def __init__(self, take: Callable[[int], bytearray], body: int):
        self.take, self.left, self.nodes = take, body, 0

    def node(self, tree: Any, depth: int) -> Any:
        self.nodes += 1
        if depth > MAX_DEPTH or self.nodes > MAX_NODES:
            raise BadData("too deep or too many values")
        if tree is None or isinstance(tree, bool | str):
            return tree
        if isinstance(tree, int):
            if abs(tree) > MAX_INT:
                raise BadData("an int that is too long")
            return tree
        if isinstance(tree, list):
            return [self.node(v, depth + 1) for v in tree]
        if not isinstance(tree, dict) or len(tree) != 1:
            raise BadData("an object with other than one key")
        ((tag, inner),) = tree.items()
        if tag == "f" and isinstance(inner, str) and len(inner) < 40:
            try:
                return float.fromhex(inner)
            except (ValueError, OverflowError):
                raise BadData("a float that is none") from None
        if tag == "b" and _count(inner):
            return bytes(self._bytes(inner))
        if tag == "t" and isinstance(inner, list):
            return tuple(self.node(v, depth + 1) for v in inner)
        if tag == "d" and isinstance(inner, list):
            made = {}
            for pair in inner:
                if not isinstance(pair, list) or len(pair) != 2 or not isinstance(pair[0], str) or pair[0] in made:
                    raise BadData("a dict with an item that is none, or the same key twice")
                made[pair[0]] = self.node(pair[1], depth + 1)
            return made
        if tag == "x":
            return self._tensor(inner)
        raise BadData(f"an object called {tag[:20]!r} does not exist")

    def _bytes(self, n: int) -> bytearray:
        if n > self.left:
            raise BadData("the body is too short")
        self.left -= n
        return self.take(n)

    def _tensor(self, inner: Any) -> Tensor:
        if not isinstance(inner, list) or len(inner) != 2:
            raise BadData("a tensor is [dtype, shape]")
        name, shape = inner
        if not isinstance(name, str) or name not in DTYPES:
            raise BadData("a tensor of an unknown dtype")
        if not isinstance(shape, list) or len(shape) > 16 or not all(_count(n) for n in shape):
            raise BadData("a tensor of an impossible shape")
        dtype, numel = DTYPES[name], math.prod(shape)
        if not numel:
            if math.prod(max(1, n) for n in shape) * dtype.itemsize >= 1 << 63:
                raise BadData("a tensor of an impossible shape")
            return torch.empty(shape, dtype=dtype)
        raw = self._bytes(numel * dtype.itemsize)
        if dtype == torch.bool and raw.strip(b"\0\1"):  # other bytes mean different things to different operations
            raise BadData("a bool that is neither true nor false")
        return torch.frombuffer(raw, dtype=torch.uint8).view(dtype).view(shape)


def _count(n: Any) -> bool:
    return type(n) is int and 0 <= n <= MAX_BODY


def _short(value: object) -> str:
    try:
        text = repr(value)
    except Exception:
        return "one of them"
    return text if len(text) <= 40 else text[:37] + "..."


def _remedy(kind: type) -> str:
    if kind.__module__ == "numpy":
        return "; here float(...), int(...) or torch.from_numpy(...) helps"
    if issubclass(kind, set | frozenset):
        return "; here sorted(...) helps"
    return ""
