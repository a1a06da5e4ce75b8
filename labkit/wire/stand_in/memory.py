"""Which memory is the device's and which the host's, and who may touch it when.

The stand-in device has no memory of its own: its tensors are tensors of the CPU. As under `torch.set_default_device`,
what a rank makes is on the device (`DEVICE`) unless it asks for the host, by `device="cpu"`, `.cpu()`, page-locked
memory or NumPy; a storage of the host is marked. `DeviceMemory`, a mode around all functions of torch in one thread,
keeps the marks, refuses what a GPU refuses, and sees data that is used before the stream that makes it was waited for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from .contract import ContractBroken
from .streams import HOST, Stream, current_stream

DEVICE = torch.device("cpu", 0)  # the CPU to PyTorch, and told apart from torch.device("cpu") by its index
_HOST = torch.device("cpu")
_SHAPES = frozenset(
    "view view_as detach reshape as_strided size stride dim numel data_ptr untyped_storage storage_offset "
    "element_size is_contiguous narrow chunk split tensor_split unbind squeeze unsqueeze expand expand_as t transpose "
    "permute flatten unflatten select is_floating_point is_complex requires_grad_ register_hook __len__ __hash__ "
    "is_conj is_neg register_post_accumulate_grad_hook empty_like zeros_like ones_like new_empty new_zeros".split()
)  # these look at no value
_FREE = ("copy_", "to", "cpu", "__get__", "__set__", "set_data", "untyped_storage")  # may see both kinds of memory


class Use(NamedTuple):
    """Queued work that reads or writes the bytes from `first` to `last` of a storage."""

    stream: Stream
    place: int
    first: int
    last: int
    writes: bool
    what: str


def on_host(x: Tensor) -> bool:
    """Whether `x` lies in host memory."""
    return x.layout == torch.strided and getattr(x.untyped_storage(), "on_host", False)


def to_host(x: Tensor) -> Tensor:
    """Say that the memory of `x`, just made, is the host's."""
    x.untyped_storage().on_host = True  # type: ignore[attr-defined]
    return x


def queued(x: Tensor, stream: Stream, place: int, writes: bool, what: str) -> None:
    """Note that the work of `stream` at `place` will read or write `x`."""
    storage: Any = x.untyped_storage()
    before = [u for u in getattr(storage, "uses", ()) if HOST.get(u.stream, 0) < u.place]
    storage.uses = [*before, Use(stream, place, *_bytes(x), writes, what)]


def touch(x: Tensor, writes: bool, by: str, stream: Stream | None = None) -> None:
    """The calling thread is about to read or write `x`, or to queue work on `stream` that does.

    Raises ContractBroken for data that queued work is still to write, or a buffer that it is still to read, unless
    `stream` (or the host) has waited for that work. If the host itself is to run after it, that is waited for here,
    as the device would.
    """
    uses: list[Use] = getattr(x.untyped_storage(), "uses", [])
    if not uses:
        return
    here, (first, last) = stream or current_stream(), _bytes(x)
    for use in uses:
        if use.last <= first or last <= use.first or not (writes or use.writes):
            continue
        if not here.comes_after(use.stream, use.place):
            does = "is still to be written by" if use.writes else "is still being read by"
            raise ContractBroken("stream", f"{by} uses a tensor that {does} {use.what}, which nobody has waited for")
        if stream is None:
            use.stream.wait_until(use.place)


def _bytes(x: Tensor) -> tuple[int, int]:
    """Which bytes of its storage `x` lies in, from and to."""
    first = int(x.storage_offset()) * x.itemsize
    if not x.numel():
        return first, first
    return first, first + (1 + sum((int(n) - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))) * x.itemsize


class DeviceMemory(TorchFunctionMode):
    """Everything that the thread does to tensors, watched. Enter it once, at the beginning of a rank."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        tensors = list(_tensors(args)) + list(_tensors(kwargs.values()))
        if name == "__get__":
            return self._attribute(func, args)
        kinds = {on_host(x) for x in tensors if x.dim() and not x.is_meta}
        if name in ("numpy", "__array__") and False in kinds:
            raise TypeError("can't convert stand-in device type tensor to numpy. Use Tensor.cpu() first")
        if len(kinds) == 2 and name not in _FREE and not name.startswith("__setitem__"):
            raise ContractBroken(
                "device memory", f"{name} is given a tensor of the CPU and one of the device: move one of them"
            )
        written = name.endswith("_") and not name.startswith("__") or name in ("__setitem__", "__set__")
        for i, x in enumerate([] if name in _SHAPES or _is_view(name, args) else tensors):
            touch(x, (written and i == 0) or x is kwargs.get("out"), name)
        if name in ("cpu", "to", "cuda"):
            return self._moved(func, name, args, kwargs)
        made = func(*args, **kwargs)
        if self._for_host(name, kwargs, kinds):
            for x in _tensors([made]):
                to_host(x)
        return made

    def _attribute(self, func: Any, args: Any) -> Any:
        value = func(*args)
        return DEVICE if value == _HOST and isinstance(value, torch.device) and not on_host(args[0]) else value

    def _moved(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """A copy, where the tensor goes to the other kind of memory."""
        x = args[0]
        goal = _HOST if name == "cpu" else DEVICE if name == "cuda" else _goal(args[1:], kwargs)
        if goal is None or goal.type != "cpu" or on_host(x) == (goal.index is None):
            return func(*args, **kwargs)
        moved = func(*args, **kwargs)
        moved = moved.clone() if moved.untyped_storage() is x.untyped_storage() else moved
        return to_host(moved) if goal.index is None else moved

    def _for_host(self, name: str, kwargs: Any, kinds: set[bool]) -> bool:
        if kwargs.get("pin_memory") or name in ("from_numpy", "frombuffer", "pin_memory"):
            return True
        device = kwargs.get("device")
        if device is not None:
            device = torch.device(device)
            return device.type == "cpu" and device.index is None
        return kinds == {True}


def _is_view(name: str, args: Any) -> bool:
    """Whether an index asks for a part of the same memory: then no value is looked at."""
    index = args[1] if name == "__getitem__" else None
    parts = index if isinstance(index, tuple) else (index,)
    return index is not None and not any(isinstance(part, Tensor | list) for part in parts)


def _goal(args: Any, kwargs: Any) -> torch.device | None:
    """The device that the arguments of `Tensor.to` name, None for none."""
    for value in (*args, kwargs.get("device"), kwargs.get("other")):
        if isinstance(value, Tensor):
            return _HOST if on_host(value) else DEVICE
        if isinstance(value, str | torch.device):
            return torch.device(value)
    return None


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            if value.layout == torch.strided and not value.is_meta:
                yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)
