"""From a unit's gradients to the gradient of this rank's shard, while backward goes on.

Gradients of a unit are packed into one flat tensor and reduce-scattered in the background. While that travels, the
next unit runs backward; when it is through, the one before is collected. So at most one flat gradient (two across
replicas) is on its way at any time. Everything starts at the same places of the program on every rank, and so in the
same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor

from labkit.collectives import all_reduce, reduce_scatter
from labkit.parallel.fsdp.flat_parameter import FlatParameter
from labkit.parallel.fsdp.strategies import Sharding
from labkit.parallel.refusals.gradients import refuse_nan, unreduced

SIXTEEN_BIT = (torch.float16, torch.bfloat16)


class Reducer:
    """dtype: of gradients on the wire, None for that in which they were computed.

    sync: False while gradients are only summed up, for a later microbatch to reduce. share: how much of this rank's
    gradient counts, on top of the plain average over ranks. check_nan: see `unfit.refuse_nan`. begin: called before
    anything is added; it sees to it that `finish` is called when backward ends. op: "avg" or "sum" over the ranks.
    """

    def __init__(
        self, sharding: Sharding, dtype: torch.dtype | None, check_nan: bool, begin: Callable[[], None], op: str = "avg"
    ):  # fmt: skip
        self.sharding, self.dtype, self.check_nan, self._begin, self.op = sharding, dtype, check_nan, begin, op
        self.sync, self.share = True, 1.0
        self._under_way: list[Iterator[None]] = []

    def add(self, flat_param: FlatParameter, gradients: Sequence[Tensor | None]) -> None:
        """Backward of a unit is through: let its weights go, and reduce its gradients (or only sum them up)."""
        self._begin()
        flat_param.reshard()
        with self.sharding.shard_group.span(f"reduce {flat_param.unit or 'root'}", kind="fsdp"):
            self._advance()  # before a new flat gradient takes memory, the one before gives its own back
            flat = self._pack(flat_param, gradients)
            flat_param.unreduced = flat
            del flat
            if self.sync:
                self._send(flat_param)

    def _send(self, flat_param: FlatParameter) -> None:
        """Start to reduce what was summed up."""
        flat, flat_param.unreduced = flat_param.unreduced, None
        assert flat is not None
        if self.check_nan:
            refuse_nan(self.sharding.shard_group.context.rank, flat, flat_param.flat.names, flat_param.flat.views(flat))
        self._under_way.append(self._reduction(flat_param, flat))
        del flat
        next(self._under_way[-1])

    def finish(self, flat_params: Iterable[FlatParameter]) -> None:
        """Reduce what earlier microbatches left in units that this one did not use; wait for all reductions, in order.

        flat_params: all of them. Every rank used the same units in each microbatch, and so has the same ones left.
        """
        for flat_param in unreduced(flat_params) if self.sync else ():
            self._advance()
            self._send(flat_param)
        while self._under_way:
            self._advance()

    def abandon(self) -> None:
        """Forget what a backward that was broken off has left."""
        self._under_way.clear()

    def _advance(self) -> None:
        """Take every reduction one stage further; drop those that are through."""
        still, self._under_way = self._under_way, []
        for reduction in still:
            if next(reduction, self) is not self:
                self._under_way.append(reduction)

    def _pack(self, flat_param: FlatParameter, gradients: Sequence[Tensor | None]) -> Tensor:
        """The gradients side by side, added to those of earlier microbatches; zeros for a parameter without."""
        flat, first = flat_param.unreduced, flat_param.unreduced is None
        if flat is None:
            flat = torch.empty(
                flat_param.flat.numel, dtype=self.dtype or flat_param.dtype, device=flat_param.shard.device
            )
        for view, gradient in zip(flat_param.flat.views(flat), gradients, strict=True):
            if gradient is None or not self.share:  # a share of 0 is zeros, whatever an empty batch gave
                view.zero_() if first else None
            elif first:
                view.copy_(gradient)
                view.mul_(self.share) if self.share != 1 else None
            else:
                view.add_(gradient, alpha=self.share)
        return flat

    def _reduction(self, flat_param: FlatParameter, flat: Tensor) -> Iterator[None]:
        """Reduce-scatter where the unit is cut, all-reduce of the shard across its copies; a yield where it waits."""
        sharding, op = flat_param.sharding, self.op
        within, across, algorithm = sharding.shard_group, sharding.replicate_group, sharding.algorithm
        of = flat_param.unit or "root"
        if within.size > 1:
            if flat.dtype in SIXTEEN_BIT and algorithm == "ring":
                algorithm = "pairwise"  # the bytes of the ring, but added up in 32 bits
            handle = reduce_scatter(flat, within, op, algorithm, async_op=True, of=of)
            del flat
            yield
            flat = handle.wait()
            del handle
        if across.size > 1:
            handle = all_reduce(flat, across, op, sharding.algorithm, async_op=True, of=of)
            yield
            flat = handle.wait()
        if within.size == across.size == 1:
            yield
        gradient = flat.to(flat_param.shard.dtype)
        if flat_param.shard.grad is None:
            flat_param.shard.grad = gradient
        else:
            flat_param.shard.grad += gradient
