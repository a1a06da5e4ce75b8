"""The backend's own collectives, on the ranks of a group: what the library itself would do.

They run inside torch.distributed, so labkit sees only their beginning and end; what they sent is read from the
kernel's counters of the sockets they used.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from labkit.wire.recording.record import Recorder

from . import accelerator
from .errors import PeerLost, RefusedError, WaitTimeout, WireError
from .sockets import TcpMeter

if TYPE_CHECKING:
    from .group import Group

_OPS = {
    "sum": dist.ReduceOp.SUM,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "prod": dist.ReduceOp.PRODUCT,
}


def native_of(group: Group) -> NativeCollectives | None:
    """The native collectives of this group, made on first use; None where there is no process group."""
    if not dist.is_initialized():
        return None
    if group.context.clock.virtual:
        raise RefusedError("a native collective takes no virtual time: use clock='real', or another algorithm")
    made = group.context.natives
    key = group.global_ranks
    if key not in made:
        made[key] = NativeCollectives(group)
    return made[key]


class NativeCollectives:
    """all_reduce and the others of torch.distributed over one group. Sums are in the order the backend chooses."""

    def __init__(self, group: Group):
        self._group = group
        whole = len(group.global_ranks) == dist.get_world_size()
        self._pg: Any = (
            dist.group.WORLD
            if whole
            else dist.new_group(list(group.global_ranks), use_local_synchronization=True,
                                timeout=timedelta(seconds=group.context.timeout + 3600))
        )  # fmt: skip

    def all_reduce(self, x: Tensor, op: Any) -> Tensor:
        self._run(dist.all_reduce, x, op=self._op(op), group=self._pg)
        return x

    def broadcast(self, x: Tensor, root: int) -> Tensor:
        self._run(dist.broadcast, x, src=self._group.global_ranks[root], group=self._pg)
        return x

    def reduce(self, x: Tensor, root: int, op: Any) -> Tensor:
        self._run(dist.reduce, x, dst=self._group.global_ranks[root], op=self._op(op), group=self._pg)
        return x

    def all_gather(self, out: Tensor, x: Tensor) -> Tensor:
        self._run(dist.all_gather, list(out.chunk(self._group.size)), x, group=self._pg)
        return out

    def reduce_scatter(self, out: Tensor, x: Tensor, op: Any) -> Tensor:
        self._run(
            dist.reduce_scatter,
            out,
            [p.contiguous() for p in x.chunk(self._group.size)],
            op=self._op(op),
            group=self._pg,
        )
        return out

    def all_to_all(self, out: Tensor, x: Tensor) -> Tensor:
        self._run(dist.all_to_all_single, out, x, group=self._pg)
        return out

    def barrier(self) -> None:
        self._run(dist.barrier, group=self._pg)

    def _op(self, op: Any) -> Any:
        return _OPS["sum" if op.name == "avg" else op.name]

    def _run(self, call: Any, *args: Any, **kwargs: Any) -> None:
        context = self._group.context
        meter = context.socket_log = context.socket_log or SocketLog(context.recorder)
        meter.skip()
        try:
            context.local.native = True  # so that the call is not written down twice
            with torch.no_grad():
                call(*args, **kwargs)
            self._settle()
        except WireError:
            raise
        except RuntimeError as why:
            text = str(why).splitlines()[0]
            if "imed out" in text:
                raise WaitTimeout(f"rank {context.rank}: {text}") from why
            if "onnect" in text or "closed" in text or "peer" in text:
                raise PeerLost(f"rank {context.rank} lost a rank of its group in a native collective: {text}") from why
            raise
        finally:
            context.local.native = False
        meter.measure()

    def _settle(self) -> None:
        """On a GPU the call has only queued its work: wait for that, by the deadline that NCCL does not have."""
        context, device = self._group.context, accelerator.of(self._group.device)
        if device is None:
            return
        event, backend = device.event(), device.backend(self._pg)

        def look() -> None:
            why = device.failure(backend)
            if why is not None:
                backend.abort()
                raise why

        if not accelerator.poll(event.query, time.monotonic() + context.timeout, look):
            words = (
                f"rank {context.rank} waited {context.timeout:g} s for a native collective. {device.explain(backend)}"
            )
            backend.abort()
            raise WaitTimeout(words)


class SocketLog:
    """Adds what the sockets of native collectives sent to the rank's page, a line a connection."""

    def __init__(self, recorder: Recorder):
        self._recorder, self._meter = recorder, TcpMeter()
        self._totals: dict[tuple[int, int], int] = {}

    def skip(self) -> None:
        """Forget what was sent until now: it was not a native collective's."""
        self._meter.read()

    def measure(self) -> int:
        """Read the counters; returns the bytes sent since the last reading."""
        grown = self._meter.read()
        for ports, nbytes in grown.items():
            self._totals[ports] = self._totals.get(ports, 0) + nbytes
        return sum(grown.values())

    def write(self) -> None:
        """Leave the totals on the page, where the trace matches the two ends of each connection."""
        for (mine, theirs), nbytes in self._totals.items():
            self._recorder.intern(f"tcp {mine} {theirs} {nbytes}")
