"""Tokens to the ranks of their experts, and back (Lepikhin et al. 2020, "GShard", section 3.2).

How many rows go where is known only when the router has chosen, so every hop is an all-to-all of counts and one of
rows, whose parts differ. In one hop every rank sends to every other. By way of the node (hierarchical) a row first goes
to the rank of its own node that has the same place in it as the row's expert in the other node, and then across: every
rank has one partner in each other node in place of all its ranks, so the messages on the slow links are fewer and
longer (Rajbhandari et al. 2022, "DeepSpeed-MoE", section 5.3). Each row still crosses once; inside the node it is sent
once more.

With a `Wire` rows go to their experts in its codecs, which are FP8, and come back in BF16, because results are added up
(DeepSeek-V3 2024, section 3.3.3). Backward the same holds for gradients: those of results go to the experts in FP8, and
those of inputs come back in BF16. A row that is sent once more is encoded once more, to the same codes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from labkit.collectives import all_to_all
from labkit.models.moe import Run
from labkit.optim.precision.codec import Codec, Wire
from labkit.parallel.expert.segments import back, in_order
from labkit.wire.group import Group

Hop = tuple[Group, int]  # a group, and the axis of the segments that names the rank in it
Codecs = tuple[Codec | None, Codec | None]  # of rows, and of the gradients that go the other way; None: as they are
COMBINE = Codec("BF16")


def dispatch(
    rows_md: Tensor, sizes: Tensor, hops: Sequence[Hop], experts: Run, meanwhile: Callable[[], Any], overlap: bool,
    wire: Wire | None = None,
) -> tuple[Tensor, Any]:  # fmt: skip
    """Run rows through experts on other ranks: (results in the order of `rows_md`, what `meanwhile()` gave).

    sizes: how many rows go where; its axes are those of the ranks (node and place in it, say), and last the expert of
    that rank. hops: each moves the rows along one of these axes. overlap: `meanwhile` is called while the last hop,
    the one across the nodes, is under way. wire: see above; None sends rows as they are. Bytes:
    `cost.dispatch_bytes_by_rank`, and `cost.coded_dispatch_bytes_by_rank` with a wire.
    """
    there: Codecs = (None, None) if wire is None else (wire.activations, COMBINE)
    home: Codecs = (None, None) if wire is None else (COMBINE, wire.gradients)
    undo: list[Callable[[Tensor], Tensor]] = []
    beside: Any = None
    for n, (group, axis) in enumerate(hops):
        axes = [axis, *(a for a in range(sizes.dim()) if a != axis)]
        index = in_order(sizes, axes)
        ordered = sizes.permute(*axes).contiguous()
        came = all_to_all(ordered, group, algorithm="pairwise")  # now the first axis is where the rows come from
        out, into = (x.flatten(1).sum(1).tolist() for x in (ordered, came))
        rows_md = rows_md[index]
        if overlap and n == len(hops) - 1:
            handle = all_to_all(_coded(rows_md.detach(), there[0]), group, out, into, async_op=True)
            beside = meanwhile()
            rows_md = _Came.apply(rows_md, handle.wait(), group, out, into, there)
        else:
            rows_md = swap(rows_md, group, out, into, there)
        undo.append(partial(_return, group=group, out=into, into=out, codecs=home, index=back(index)))
        places = [axes.index(a) for a in range(sizes.dim())]
        index = in_order(came, places)
        sizes, rows_md = came.permute(*places), rows_md[index]
        undo.append(partial(_put, index=back(index)))
    last = sizes.dim() - 1
    index = in_order(sizes, [last, *range(last)])
    y_md = experts(rows_md[index], sizes.flatten(0, -2).sum(0).tolist())[back(index)]
    for step in reversed(undo):
        y_md = step(y_md)
    return y_md, beside if overlap else meanwhile()


def _return(
    rows_md: Tensor, group: Group, out: Sequence[int], into: Sequence[int], codecs: Codecs, index: Tensor
) -> Tensor:
    return swap(rows_md, group, out, into, codecs)[index]


def _put(rows_md: Tensor, index: Tensor) -> Tensor:
    return rows_md[index]


def swap(rows_md: Tensor, group: Group, out: Sequence[int], into: Sequence[int], codecs: Codecs) -> Tensor:
    """`out[r]` rows to rank r, `into[r]` from it; its backward sends the gradients back."""
    came = all_to_all(_coded(rows_md.detach(), codecs[0]), group, out, into)
    return _Came.apply(rows_md, came, group, out, into, codecs)


def _coded(rows_md: Tensor, codec: Codec | None) -> Tensor:
    return rows_md.contiguous() if codec is None else codec.encode(rows_md)


def _decoded(came: Tensor, codec: Codec | None, like_md: Tensor) -> Tensor:
    return came if codec is None else codec.decode(came, like_md.shape[1]).to(like_md.dtype)


class _Came(torch.autograd.Function):
    """What came in exchange for `rows`; backward its gradients go back the same way."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, came: Tensor, group: Group, out: Sequence[int], into: Sequence[int], codecs: Codecs
    ) -> Tensor:
        ctx.about = group, out, into, codecs[1]
        arrived = _decoded(came, codecs[0], rows)
        return arrived.view_as(arrived)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        group, out, into, codec = ctx.about
        came = all_to_all(_coded(gradient, codec), group, into, out)
        return _decoded(came, codec, gradient), None, None, None, None, None
