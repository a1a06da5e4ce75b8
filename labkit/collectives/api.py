"""The collectives by name: `all_reduce(x, group, op="sum", algorithm="auto")` and the others.

Each looks up its algorithm and calls it. The arguments mean the same for every algorithm of a collective;
what each of them promises and costs stands in its own docstring (`ring_all_reduce`, `tree_broadcast`, ...).

- `all_reduce`, `reduce` and `broadcast` work in place, on tensors of any shape, and return `x`.
- `reduce_scatter`, `scatter` and `all_to_all` cut the first dimension as `torch.tensor_split` does, so it
  need not divide by the number of ranks. `all_gather`, `gather` and `all_to_all` join along the first
  dimension.
- `op`: "sum", "avg", "min", "max" or "prod"; see labkit/wire/ops.py for the dtypes of each.
- `algorithm`: a name from `ALGORITHMS[collective]`, or "auto" (choose.py).
- `async_op=True` returns a handle at once. Its `wait()` returns what the call would have returned; `x` must
  not be touched before. Asynchronous collectives of a group run one after the other, in the order they were
  called.
- `of`: what `x` is a part of, by name ("blocks.3"). Nothing of it is sent; but a run in which ranks name different
  things in the same call is refused as a mismatch, where equal shapes would let it pass for a result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from labkit.collectives.checks import check_group, check_rows, check_tensor
from labkit.collectives.choose import choose
from labkit.collectives.frame import JOINING
from labkit.collectives.registry import find
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group
from labkit.wire.ops import ReduceOp


def all_reduce(
    x: Tensor,
    group: Group,
    op: str | ReduceOp = "sum",
    algorithm: str = "auto",
    async_op: bool = False,
    of: str = "",
) -> Any:
    """Reduce `x` over all ranks, in place on every rank, and return it. `x`: the same shape on every rank."""
    return _pick("all_reduce", algorithm, x, group)(x, group, op, async_op=async_op, of=of)


def reduce(
    x: Tensor,
    group: Group,
    op: str | ReduceOp = "sum",
    root: int = 0,
    algorithm: str = "auto",
    async_op: bool = False,
) -> Any:
    """Reduce `x` over all ranks into `x` of `root`, and return `x`.

    On other ranks `x` may be left holding partial sums.
    """
    return _pick("reduce", algorithm, x, group)(x, group, op, root, async_op=async_op)


def broadcast(x: Tensor, group: Group, root: int = 0, algorithm: str = "auto", async_op: bool = False) -> Any:
    """Copy `x` of `root` into `x` of every rank, and return it. `x`: same shape and dtype on every rank."""
    return _pick("broadcast", algorithm, x, group)(x, group, root, async_op=async_op)


def reduce_scatter(
    x: Tensor,
    group: Group,
    op: str | ReduceOp = "sum",
    algorithm: str = "auto",
    async_op: bool = False,
    of: str = "",
) -> Any:
    """Return rows `torch.tensor_split(x, N)[rank]` of the reduction of `x` over all ranks, a new tensor."""
    return _pick("reduce_scatter", algorithm, x, group)(x, group, op, async_op=async_op, of=of)


def all_gather(
    x: Tensor,
    group: Group,
    sizes: Sequence[int] | None = None,
    algorithm: str = "auto",
    async_op: bool = False,
    of: str = "",
) -> Any:
    """Return the `x` of all ranks, joined along the first dimension in rank order, a new tensor.

    `sizes`: rows of each rank's `x`, the same list on every rank; needed only if they differ.
    """
    return _pick("all_gather", algorithm, x, group, sizes)(x, group, sizes, async_op=async_op, of=of)


def scatter(
    x: Tensor | None,
    group: Group,
    root: int = 0,
    like: Tensor | None = None,
    algorithm: str = "auto",
    async_op: bool = False,
) -> Any:
    """Give rank r rows `torch.tensor_split(x, N)[r]` of the `x` of `root`; elsewhere `x` is None.

    `like`: a tensor of the shape and dtype of this rank's part. The part is written into it, and it is
    returned. Only the root may leave it out; it then returns a new tensor.
    """
    return _pick("scatter", algorithm, x, group)(x, group, root, like, async_op=async_op)


def gather(
    x: Tensor,
    group: Group,
    root: int = 0,
    sizes: Sequence[int] | None = None,
    algorithm: str = "auto",
    async_op: bool = False,
) -> Any:
    """Return, on `root`, the `x` of all ranks joined along the first dimension; on other ranks None.

    `sizes`: rows of each rank's `x`, the same list on every rank; needed only if they differ.
    """
    return _pick("gather", algorithm, x, group, sizes)(x, group, root, sizes, async_op=async_op)


def all_to_all(
    x: Tensor,
    group: Group,
    send_counts: Sequence[int] | None = None,
    recv_counts: Sequence[int] | None = None,
    algorithm: str = "auto",
    async_op: bool = False,
) -> Any:
    """Send part r of `x` to rank r, and return the parts received, joined along the first dimension.

    Parts are those of `torch.tensor_split`, and `x` has the same shape everywhere; or part r is the next
    `send_counts[r]` rows, and `recv_counts[r]` rows come from rank r (pairwise only; on all ranks or on
    none).
    """
    if send_counts is None and recv_counts is None:
        return _pick("all_to_all", algorithm, x, group)(x, group, async_op=async_op)
    if algorithm not in ("auto", "pairwise"):
        find("all_to_all", algorithm)
        raise RefusedError(f"all_to_all with counts works with algorithm='pairwise', not {algorithm!r}")
    return find("all_to_all", "pairwise")(x, group, send_counts, recv_counts, async_op=async_op)


def barrier(group: Group, algorithm: str = "auto", async_op: bool = False) -> Any:
    """Return when every rank of the group has called it."""
    return _pick("barrier", algorithm, None, group)(group, async_op=async_op)


def _pick(
    collective: str, algorithm: str, x: Any, group: Group, sizes: Sequence[int] | None = None
) -> Callable[..., Any]:
    """The function of that algorithm; for "auto" the one that the cost model chooses, alike on every rank."""
    if algorithm != "auto":
        return find(collective, algorithm)
    check_group(collective, group)
    nbytes = 0
    if isinstance(x, Tensor):
        check_tensor(collective, x)
        nbytes = x.nbytes
        if collective in JOINING:  # count the joined result, which is the same on all ranks
            rows = sum(check_rows("sizes", sizes, group.size)) if sizes else group.size * (len(x) if x.dim() else 1)
            nbytes = rows * math.prod(x.shape[1:]) * x.itemsize
    dtype = x.dtype if isinstance(x, Tensor) else None
    choice = choose(collective, nbytes, group.size, group.link_model, dtype, group.ranks_per_node)
    return find(collective, choice.algorithm)
