"""Plain torch.distributed calls on the status page.

A reader may call `torch.distributed.all_reduce` inside a rank, with no Group in sight. Each such call is written down
like any other, so that a deadlock or a mismatch among them is named too, and the timeline shows them. What a call
does is not changed. An asynchronous collective is recorded when it is issued, a message until it is waited for.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch import Tensor

from labkit.wire.recording import record as rec

from .context import Context
from .dtypes import CODES
from .native import SocketLog

LANE = 2  # beside the two lanes of a Group
COLLECTIVES = {  # name -> which positional argument is its input tensor
    "all_reduce": 0, "broadcast": 0, "reduce": 0, "all_gather": 1, "all_gather_into_tensor": 1, "reduce_scatter": 0,
    "reduce_scatter_tensor": 1, "all_to_all_single": 1, "gather": 0, "barrier": -1,
}  # fmt: skip


def record_plain_calls(context: Context) -> None:
    """From now on write down every torch.distributed call of this process that goes through its public names."""
    seen: dict[Any, int] = {}
    for name, place in COLLECTIVES.items():
        setattr(dist, name, _collective(context, name, getattr(dist, name), place, seen))
    for name in ("send", "recv"):
        setattr(dist, name, _message(context, name, getattr(dist, name), seen))
    for name in ("isend", "irecv"):  # batch_isend_irecv compares its operations with those of the module
        recorded = _message(context, name, getattr(dist, name), seen)
        setattr(dist, name, recorded)
        setattr(dist.distributed_c10d, name, recorded)


def _collective(context: Context, name: str, call: Callable[..., Any], place: int, seen: dict[Any, int]) -> Any:
    @functools.wraps(call)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        if getattr(context.local, "native", False):  # labkit's own native algorithm, recorded by the Group
            return call(*args, **kwargs)
        recorder, clock, slot = context.recorder, context.clock_here(), context.slot_here()
        key = _group(context, kwargs.get("group"))
        tensor = args[place] if 0 <= place < len(args) and isinstance(args[place], Tensor) else None
        seq = seen[key] = seen.get(key, 0) + 1
        asynchronous = bool(kwargs.get("async_op"))
        number = recorder.begin(
            rec.COLLECTIVE, clock.now(), group=key, lane=LANE, seq=seq, name=recorder.intern(name),
            detail=recorder.intern(f"torch.distributed {_operator(kwargs, args)}"), parent=context.enclosing(),
            nbytes=tensor.nbytes if tensor is not None else 0, shape=tuple(tensor.shape) if tensor is not None else (),
            dtype=CODES.get(tensor.dtype, 0) if tensor is not None else 0,
            flags=rec.NATIVE | (rec.ASYNC if asynchronous else 0),
        )  # fmt: skip
        meter = context.socket_log = context.socket_log or SocketLog(recorder)
        if not asynchronous:
            recorder.slot(slot, number)
            meter.skip()
        try:
            result = call(*args, **kwargs)
            if not asynchronous:
                meter.measure()
            return result
        except BaseException:
            recorder.flag(number, rec.ERROR)
            raise
        finally:
            if not asynchronous:
                recorder.slot(slot, context.enclosing())
            recorder.end(number, clock.now())

    return recorded


def _message(context: Context, name: str, call: Callable[..., Any], seen: dict[Any, int]) -> Any:
    kind = rec.SEND if name.endswith("send") else rec.RECV
    asynchronous = name.startswith("i")
    how = rec.OPENING if asynchronous else rec.BLOCKED

    @functools.wraps(call)
    def recorded(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        peer = _peer(args, kwargs, "dst" if kind == rec.SEND else "src")
        if peer is None:  # from anybody: there is no channel to count on
            return call(tensor, *args, **kwargs)
        recorder, clock, slot = context.recorder, context.clock_here(), context.slot_here()
        key = _group(context, kwargs.get("group"))
        place = (key, kind, peer)
        seq = seen[place] = seen.get(place, 0) + 1
        number = recorder.begin(
            kind, clock.now(), peer=peer, group=key, lane=LANE, seq=seq, parent=context.enclosing(),
            nbytes=tensor.nbytes, dtype=CODES.get(tensor.dtype, 0), shape=tuple(tensor.shape),
            flags=rec.ASYNC if asynchronous else 0,
        )  # fmt: skip
        if kind == rec.SEND:
            recorder.count(peer, tensor.nbytes)
        recorder.slot(slot, context.enclosing(), *((number, 0) if kind == rec.SEND else (0, number)), used=how)
        work = None
        try:
            work = call(tensor, *args, **kwargs)
        finally:
            recorder.slot(slot, context.enclosing())
            if not asynchronous or work is None:
                recorder.end(number, clock.now())
        return _Work(context, work, kind, number) if asynchronous and work is not None else work

    return recorded


def _peer(args: tuple[Any, ...], kwargs: dict[str, Any], word: str) -> int | None:
    """The world rank of the other side, however the call names it; None for anybody."""
    if args:
        return args[0]
    if kwargs.get(f"group_{word}") is not None:
        group: Any = kwargs.get("group") or dist.group.WORLD
        return dist.get_global_rank(group, kwargs[f"group_{word}"])
    return kwargs.get(word)


class _Work:
    """PyTorch's handle of an asynchronous message, whose `wait` is on the status page."""

    def __init__(self, context: Context, work: Any, kind: int, number: int):
        self._context, self._work, self._kind, self._number = context, work, kind, number

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        context, number = self._context, self._number
        recorder, slot = context.recorder, context.slot_here()
        recorder.slot(slot, context.enclosing(), *((number, 0) if self._kind == rec.SEND else (0, number)))
        try:
            return self._work.wait(*args, **kwargs)
        finally:
            recorder.slot(slot, context.enclosing())
            recorder.end(number, context.clock_here().now())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


def _group(context: Context, pg: Any) -> int:
    """A number for a process group, the same on every member, and its members on the page."""
    members = tuple(dist.get_process_group_ranks(pg if pg is not None else dist.group.WORLD))
    key = zlib.crc32(repr(("torch.distributed", members)).encode()) | 1
    context.recorder.intern(f"group {key} {' '.join(map(str, members))}")
    return key


def _operator(kwargs: dict[str, Any], args: tuple[Any, ...]) -> str:
    op = kwargs.get("op") or next((a for a in args if isinstance(a, dist.ReduceOp.RedOpType)), None)
    return str(op).rpartition(".")[2].lower() if op is not None else "sum"
