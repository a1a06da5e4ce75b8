"""The fault-tolerant ring all-reduce (FTAR): every wait has a limit, and an error ends the group, not the process."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from labkit.collectives.checks import check_call
from labkit.collectives.frame import framed
from labkit.resilience.errors import as_class
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group
from labkit.wire.ops import SUM, ReduceOp
from labkit.wire.relay import relay

from .plan import make_plan

# S x C = 32 MiB may be on their way. The paper has S = 8 MB and names no C; this is four of its chunks in two messages:
# where the processors are short, each one costs them about 0.1 ms, because its code is out of their caches by then.
CHUNK_BYTES, CHUNKS = 16 << 20, 2
MOST_CHUNKS = 64


def ft_all_reduce(
    x: Tensor, group: Group, *, chunk_bytes: int = CHUNK_BYTES, chunks: int = CHUNKS, deadline: float | None = None,
    quiet: float | None = None,
) -> Tensor:  # fmt: skip
    """Add up `x` over all ranks of `group`, in place, and return it: the same bits on every rank, and as the ring.

    x: any shape, the same on every rank. chunk_bytes, chunks: S and C of `plan.py`; never more than S x C bytes are on
    their way to a neighbour. deadline: seconds for the whole exchange; quiet: seconds without a byte from or to a
    neighbour. Both are `timeout=` of the run unless given.

    Bytes sent: `cost.ring_all_reduce_bytes_by_rank`, as the ring's. Not over NCCL; nothing else may use the
    collectives of `group` meanwhile. Over gloo `quiet` is counted for each chunk, of which nothing is seen on its way.

    Raises Recoverable (a neighbour is gone, or a wait ran out) or Fatal (anything else). Either way `x` holds half
    sums, and this rank has left the group, so that all others learn of it at once: `group.rebuild` makes a new one.
    """
    check_call("all_reduce", x, group, SUM, {})
    limit = check_limits(group, chunk_bytes, chunks, deadline, quiet)
    options = {"chunk_bytes": chunk_bytes, "chunks": chunks, "deadline": limit, "quiet": min(quiet or limit, limit)}
    run = framed("all_reduce", _body, SUM)
    try:
        group.run_collective("all_reduce", "ftar", run, x, (), options, op="sum")
    except Exception as error:
        group.leave()
        raise as_class(error) from error
    except BaseException:
        group.leave()
        raise
    return x


def _body(
    x: Tensor, group: Group, op: ReduceOp, chunk_bytes: int, chunks: int, deadline: float, quiet: float
) -> Tensor:
    n, me = group.size, group.rank
    if n > 1:
        plan = make_plan(x.numel(), x.itemsize, n, me, chunk_bytes, chunks)
        right, left = (me + 1) % n, (me - 1) % n
        relay(group, x.view(-1), plan.outs, right, plan.intos, left, window=chunks, quiet=quiet, limit=deadline)
    return x


def check_limits(group: Any, chunk_bytes: int, chunks: int, deadline: float | None, quiet: float | None) -> float:
    """Refuse what cannot work before anything is sent; the deadline in seconds."""
    group.context.transport.must_be_rebuildable("FTAR")
    for name, value, most in (("chunk_bytes", chunk_bytes, 1 << 40), ("chunks", chunks, MOST_CHUNKS)):
        if type(value) is not int or not 1 <= value <= most:
            raise RefusedError(f"{name}={value!r}: needs a whole number from 1 to {most}")
    for name, seconds in (("deadline", deadline), ("quiet", quiet)):
        if seconds is None:
            continue
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
            raise RefusedError(f"{name}={seconds!r}: needs a number of seconds above 0")
    return min(group.context.timeout, deadline or group.context.timeout)
