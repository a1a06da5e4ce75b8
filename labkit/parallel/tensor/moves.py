"""Collectives along any dimension, at once or begun now and finished later.

`labkit.collectives` cuts and joins the first dimension. Here another one is brought to the front first: one copy each
way, unless all dimensions before it have length 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from labkit.collectives import all_gather, all_reduce, reduce_scatter
from labkit.collectives.chunks import even_sizes
from labkit.wire.group import Group

Finish = Callable[[], Tensor]


def own_part(x: Tensor, group: Group, dim: int) -> Tensor:
    """`torch.tensor_split(x, N, dim)[rank]`, a view. Nothing is sent."""
    return x.tensor_split(group.size, dim)[group.rank]


def async_all_reduce(x: Tensor, group: Group, algorithm: str = "auto", *, later: bool = False) -> Finish:
    """All-reduce `x`, contiguous, in place. later: in the background, until the function returned is called."""
    return _finish(all_reduce(x, group, algorithm=algorithm, async_op=later), later)


def async_all_gather(
    x: Tensor, group: Group, dim: int, length: int | None = None, algorithm: str = "auto", *, later: bool = False
) -> Finish:
    """Join the parts of all ranks along `dim`. length: of the whole; without it all parts must be equally long."""
    sizes = None if length is None or length % group.size == 0 else even_sizes(length, group.size)
    rows = x.movedim(dim, 0).contiguous()
    return _finish(all_gather(rows, group, sizes, algorithm=algorithm, async_op=later), later, dim)


def async_reduce_scatter(x: Tensor, group: Group, dim: int, algorithm: str = "auto", *, later: bool = False) -> Finish:
    """Own part along `dim` of the sum of all ranks' `x`."""
    rows = x.movedim(dim, 0).contiguous()
    return _finish(reduce_scatter(rows, group, algorithm=algorithm, async_op=later), later, dim)


def _finish(begun: Any, later: bool, dim: int = 0) -> Finish:
    return lambda: (begun.wait() if later else begun).movedim(0, dim)
