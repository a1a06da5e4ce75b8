"""What is refused before anything is sent, and in which words.

A wrong argument on one rank would otherwise show on another one, as a wait that never ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from labkit.collectives.frame import IN_PLACE
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group
from labkit.wire.ops import ReduceOp


def check_group(collective: str, group: Any) -> None:
    """`group` is one of labkit's groups."""
    if not callable(getattr(group, "run_collective", None)):
        raise TypeError(
            f"{collective} needs a labkit group as its second argument, not {type(group).__name__}: "
            "pass the `group` that your function was called with, or a subgroup of it"
        )


def check_call(collective: str, x: Any, group: Any, op: ReduceOp | None, options: dict[str, Any]) -> None:
    """All that must hold for this call on this rank. Raises TypeError or RefusedError (a ValueError)."""
    check_group(collective, group)
    if "root" in options:
        _check_root(options["root"], group)
    if options.get("chunks") is not None:
        _check_count("chunks", options["chunks"], least=1)
    if collective == "barrier":
        return
    if collective == "scatter":
        _check_scatter(x, group, options)
        if group.rank != options["root"]:
            return
    check_tensor(collective, x)
    if op is not None:
        op.check(x.dtype)
    if collective in IN_PLACE:
        _check_writable(collective, x)
    if collective in ("reduce_scatter", "scatter", "all_to_all") and x.dim() == 0:
        raise RefusedError(f"{collective} cuts the first dimension in parts, and x is a scalar: use x.view(1)")
    if options.get("sizes") is not None:
        rows = len(x) if x.dim() else 1
        check_rows("sizes", options["sizes"], group.size)
        if options["sizes"][group.rank] != rows:
            raise RefusedError(
                f"sizes[{group.rank}] is {options['sizes'][group.rank]}, but x of this rank has {rows} rows"
            )
    if "send_counts" in options:
        _check_send_and_receive(x, group, options["send_counts"], options["recv_counts"])


def check_tensor(collective: str, x: Any) -> None:
    """`x` is a dense tensor."""
    if x is None:
        raise TypeError(
            f"{collective} moves tensors, and x is NoneType. A gradient is None if its weight had no part in the loss"
        )
    if not isinstance(x, Tensor):
        raise TypeError(f"{collective} moves tensors, and x is {type(x).__name__}: use torch.as_tensor(x)")
    if x.layout != torch.strided:
        raise TypeError(f"{collective} moves dense tensors, and x is {x.layout}: use x.to_dense()")


def check_rows(name: str, counts: Any, size: int) -> Sequence[int]:
    """`counts` is a list of row numbers, one for each of `size` ranks. Returns it."""
    if isinstance(counts, (str, bytes)) or not isinstance(counts, Sequence) or len(counts) != size:
        raise RefusedError(f"{name} needs a list with one number of rows for each of the {size} ranks, not {counts!r}")
    for count in counts:
        _check_count(name, count, least=0)
    return counts


def whole_nodes(group: Group, x: Tensor, op: ReduceOp | None) -> None:
    """The ranks of `group` fill whole nodes, all with the same number of ranks."""
    k = group.ranks_per_node
    if group.size % k:
        raise RefusedError(
            f"hierarchical needs the same number of ranks on every node: {group.size} ranks do not divide "
            f"into nodes of {k}. Use algorithm='ring', or a world size that is a multiple of {k}"
        )


def native_library(group: Group, x: Tensor | None, op: ReduceOp | None) -> None:
    """The transport of `group` has collectives of its own, which can do this reduction."""
    if group.native is None:
        raise RefusedError(
            f"transport={group.transport!r} has no native collectives. Use another algorithm ('auto' chooses "
            "one), or launch with transport='gloo'"
        )
    if x is None or op is None:
        return
    if x.dtype == torch.int16 or (x.dtype.is_complex and op.name == "prod"):
        raise TypeError(
            f"the native library cannot reduce {x.dtype} with op={op.name!r}: use another algorithm, such as 'ring'"
        )


def _check_writable(what: str, x: Tensor) -> None:
    if x.requires_grad and torch.is_grad_enabled():
        raise RefusedError(
            f"{what} writes into its tensor, which requires grad: call it under `with torch.no_grad():`, "
            "or pass x.detach(). (To reduce a gradient, pass p.grad.)"
        )
    if any(stride == 0 and length > 1 for stride, length in zip(x.stride(), x.shape, strict=True)):
        raise RefusedError(
            f"{what} writes into its tensor, and elements of this one share memory (expand): pass x.clone()"
        )


def _check_scatter(x: Any, group: Any, options: dict[str, Any]) -> None:
    like = options["like"]
    if like is not None:
        check_tensor("scatter", like)
        _check_writable("scatter", like)
    if group.rank != options["root"]:
        if like is None:
            raise RefusedError(
                f"rank {group.rank} is not the root, so scatter needs like=, a tensor of the shape and "
                "dtype of the part that it will get; the part is written into it"
            )
    elif like is not None and isinstance(x, Tensor) and x.dim():
        part = torch.tensor_split(x, group.size)[group.rank]
        if part.shape != like.shape or part.dtype != like.dtype:
            raise RefusedError(
                f"scatter: the root's part is {part.dtype} of shape {list(part.shape)}, but like is "
                f"{like.dtype} of shape {list(like.shape)}"
            )


def _check_send_and_receive(x: Tensor, group: Any, send: Sequence[int] | None, recv: Sequence[int] | None) -> None:
    if (send is None) != (recv is None):
        given, missing = ("recv_counts", "send_counts") if send is None else ("send_counts", "recv_counts")
        raise RefusedError(
            f"all_to_all got {given} but not {missing}: give both, or neither for equal parts. "
            "(To learn what the others send you, all_to_all the counts first.)"
        )
    if send is None or recv is None:
        return
    check_rows("send_counts", send, group.size)
    check_rows("recv_counts", recv, group.size)
    if sum(send) != len(x):
        raise RefusedError(f"send_counts add up to {sum(send)} rows, but x has {len(x)}")
    if send[group.rank] != recv[group.rank]:
        raise RefusedError(
            f"rank {group.rank} sends itself {send[group.rank]} rows (send_counts) and expects "
            f"{recv[group.rank]} (recv_counts)"
        )


def _check_count(name: str, count: Any, least: int) -> None:
    if isinstance(count, bool) or not isinstance(count, int):
        raise TypeError(f"{name} needs whole numbers, not {count!r}")
    if count < least:
        raise RefusedError(f"{name} must be at least {least}, not {count}")


def _check_root(root: Any, group: Any) -> None:
    if isinstance(root, bool) or not isinstance(root, int):
        raise TypeError(f"root must be a rank, a whole number, not {root!r}")
    if not 0 <= root < group.size:
        raise RefusedError(
            f"root={root} is not a rank of this group of {group.size}: ranks go from 0 to {group.size - 1}"
        )
