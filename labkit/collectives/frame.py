"""What stands around every algorithm, so that its body need not know of it.

- Memory: a body gets contiguous tensors. One that is not is copied, and the result copied back.
- Autograd: collectives work on numbers. Nothing they do is recorded in a graph, and results do not require
  grad.
- Average: the body combines with a sum; the division comes once, at the end.
- Scalars: where blocks are joined along the first dimension, a 0-d tensor is one row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from labkit.wire.ops import ReduceOp

IN_PLACE = {"all_reduce", "reduce", "broadcast"}
JOINING = {"all_gather", "gather"}


def framed(collective: str, body: Callable[..., Any], op: ReduceOp | None) -> Callable[..., Any]:
    """`body`, to be called as `run(x, group, **options)`, with all that the module says around it."""

    def run(x: Tensor | None, group: Any, **options: Any) -> Any:
        with torch.no_grad():  # here and not around the call: the body may run on another thread
            if collective == "barrier":
                return body(group, **options)
            target = x if collective in IN_PLACE else options.get("like")
            if options.get("like") is not None:
                options["like"] = dense(options["like"])
            if op is not None:
                options["op"] = op.combining
            compact = dense(x)
            if compact is not None and x is not None and compact.data_ptr() != x.data_ptr():
                group.stands_for(compact, x)
            result = body(as_rows(compact) if collective in JOINING else compact, group, **options)
            if op is not None and (collective != "reduce" or group.rank == options["root"]):
                op.finish_(result, group.size)
            if target is not None:
                return target if result.data_ptr() == target.data_ptr() else target.copy_(result)
            return result.to(x.dtype) if collective == "reduce_scatter" and x is not None else result

    return run


def first_row(collective: str, x: Tensor | None, group: Any, options: dict[str, Any]) -> int:
    """The row of the collective's tensor at which the rows of `x` begin: not 0 where blocks are joined."""
    if collective not in JOINING or x is None:
        return 0
    sizes = options.get("sizes")
    return sum(sizes[: group.rank]) if sizes else group.rank * (len(x) if x.dim() else 1)


def dense(x: Tensor | None) -> Tensor | None:
    """The values of `x`, contiguous and outside of any graph: in its own memory if possible, else in a copy."""
    return None if x is None else x.detach().resolve_conj().resolve_neg().contiguous()


def as_rows(x: Tensor | None) -> Tensor | None:
    """`x`, or a view of shape [1] if it is a scalar."""
    return x.view(1) if x is not None and x.dim() == 0 else x
