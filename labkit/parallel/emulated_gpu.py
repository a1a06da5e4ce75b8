"""An emulated GPU: on the virtual clock every operation takes what a GPU of given speeds would take for it.

`kernels` times the layers that it knows. Here nothing is known beforehand: whatever PyTorch computes while the GPU is
on (forward, backward, what is added up, the optimizer) is seen operation by operation, and takes

    a matrix product                   the longer of its operations at `products` and its bytes at `memory`
    attention in one kernel            the operations of the pairs that its mask leaves, at `attention`
    any other on floating numbers      the bytes that it reads and writes, at `memory`

What is inside of a `group.compute` or a collective takes their time; views, integers and masks take none. So the time
of a step follows from what the program really did, and not from a formula of what it ought to do.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.wire.group import Group

ATTENTION_BACKWARD = 2.5  # five products for two (Dao 2023, "FlashAttention-2", section 3.1)
_LOOKS_UP = {"embedding", "index_select", "gather", "index"}  # they read no more than they return
_WRITES_ONLY = {"copy_", "zero_", "fill_"}
_ROOM = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided"}


@dataclass(frozen=True)
class Speeds:
    """What the GPU reaches. products, attention: floating-point operations a second. memory: bytes a second; with
    math.inf nothing but products and attention takes time."""

    products: float
    attention: float
    memory: float


class EmulatedGpu(TorchDispatchMode):
    """`with EmulatedGpu(group, Speeds(...)):` operations of the calling thread take time on `group`'s clock.

    Products and attention are spans named "compute" on the timeline; the rest lies between them. Threads of streams
    are not seen: what they do belongs to collectives. Meant for clock="virtual"; on the wall clock it would sleep.
    """

    def __init__(self, group: Group, speeds: Speeds) -> None:
        super().__init__()
        self.group, self.speeds = group, speeds

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """PyTorch would wrap each operation against its compiler, which takes as long as the operation."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = _name(func)
        if name not in _OPERATIONS and self.speeds.memory == math.inf:
            return result
        context = self.group.context
        if context.charged:
            return result
        nbytes = 0 if self.speeds.memory == math.inf else moved(func, name, args, kwargs, result)
        if name in _OPERATIONS:
            self.group.compute(self._kernel(name, args, kwargs, nbytes))
        elif nbytes:
            context.clock_here().advance(nbytes / self.speeds.memory)
        return result

    def _kernel(self, name: str, args: Sequence[Any], kwargs: dict[str, Any], nbytes: int) -> float:
        operations = _OPERATIONS[name](args, kwargs)
        if name.startswith("_scaled_dot_product"):
            return operations / self.speeds.attention
        return max(operations / self.speeds.products, nbytes / self.speeds.memory)


@functools.cache
def _name(func: Any) -> str:
    name: str = func.overloadpacket.__name__
    return name


def _tensors(values: Any) -> Iterator[Tensor]:
    """Of arguments or a result: operators take and return tensors, and lists of them."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, (tuple, list)):
        for value in values:
            yield from _tensors(value)


def moved(func: Any, name: str, args: Any, kwargs: Any, result: Any) -> int:
    """Bytes of floating numbers that an operation reads and writes: each input once, each output once."""
    if name in _ROOM:
        return 0
    inputs = [*_tensors(args), *_tensors([*kwargs.values()])]
    outputs = [*_tensors(result)]
    if not any(x.is_floating_point() for x in outputs):
        return 0
    there = {x.untyped_storage()._cdata for x in inputs}
    if func._schema.is_mutable:
        written = args[0] if args else outputs[0]
        read = [x for x in inputs if not (name in _WRITES_ONLY and x is written)]
        return sum(map(_nbytes, read)) + _nbytes(written)
    new = [x for x in outputs if x.untyped_storage()._cdata not in there]
    if not new:
        return 0  # a view
    wrote = sum(map(_nbytes, new))
    return wrote + sum(min(_nbytes(x), wrote) if name in _LOOKS_UP else _nbytes(x) for x in inputs)


def _nbytes(x: Any) -> int:
    """Of floating numbers, an expanded one counted as it lies in memory."""
    if not isinstance(x, Tensor) or not x.is_floating_point():
        return 0
    return min(x.nbytes, x.untyped_storage().nbytes())


def _product(a: Tensor, b: Tensor) -> int:
    """Of (..., m, k) and (..., k, n): 2 m k n each."""
    return 2 * a.numel() * b.shape[-1]


def _attention(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> float:
    """Two products, of the pairs that a causal mask leaves."""
    rows, columns = q.shape[-2], k.shape[-2]
    pairs = rows * (rows + 1) / 2 if causal else rows * columns
    return 2 * q.shape[:-2].numel() * pairs * (q.shape[-1] + v.shape[-1])


def _attention_forward(args: Sequence[Any], kwargs: dict[str, Any]) -> float:
    return _attention(args[0], args[1], args[2], args[4] if len(args) > 4 else kwargs.get("is_causal", False))


def _attention_backward(args: Sequence[Any], kwargs: dict[str, Any]) -> float:
    return ATTENTION_BACKWARD * _attention(args[1], args[2], args[3], args[7])


_OPERATIONS: dict[str, Callable[[Sequence[Any], dict[str, Any]], float]] = {
    "mm": lambda args, _: _product(args[0], args[1]),
    "bmm": lambda args, _: _product(args[0], args[1]),
    "addmm": lambda args, _: _product(args[1], args[2]),
    "baddbmm": lambda args, _: _product(args[1], args[2]),
    "_scaled_dot_product_flash_attention_for_cpu": _attention_forward,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
}
