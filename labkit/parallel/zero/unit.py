"""A unit: parameters that are sent, cut and updated together, and this rank's shard of them.

All stages of ZeRO are written with units. For stages 1 and 2 a unit is a bucket of neighbouring parameters, for stage 3
a block of the model. A unit knows how to do each thing; the stages differ in what they keep and when they let it go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from labkit import collectives
from labkit.parallel.flat import Flat
from labkit.parallel.refusals.gradients import refuse_nan
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group

from .state import Run, State

Named = Sequence[tuple[str, nn.Parameter]]


class ZeroUnit:
    """Some parameters of a model as one flat tensor, of which rank r owns `torch.tensor_split(whole, N)[r]`.

    whole: all elements, in the dtype that the model computes in; the parameters are views of it.
    shard: this rank's part: a view of `whole`, or with `cut` a tensor of its own, and then `whole` has memory only
        between `gather` and `free`.
    state: master, momentum and variance of the shard; None where nothing is trained.
    whole_gradient: this rank's own gradient of all elements, or None.
    gradient: the shard of the mean gradient over ranks, or None.
    groups: the number of the parameter group of each of them.
    of: the block that it belongs to, which all ranks must name alike when they gather it.
    op: "avg", the mean of the ranks' gradients; "sum".
    """

    def __init__(
        self, named: Named, group: Group, dtype: torch.dtype, make_state: Callable[[Tensor, Tensor], State], cut: bool,
        groups: Sequence[int], of: str = "", op: str = "avg",
    ) -> None:  # fmt: skip
        self.group, self.flat, self.cut, self.of, self.op = group, Flat(named, group.size), cut, of, op
        self.names, self.parameters, self.groups = [name for name, _ in named], [p for _, p in named], groups
        self.trained = self.parameters[0].requires_grad
        first = self.parameters[0].data
        values = self.flat.pack((p.data for p in self.parameters), first.new_empty(self.flat.numel))
        collectives.broadcast(values, group)  # all start from rank 0's
        self.whole = values.to(dtype, copy=True)  # never sent itself: memory that a wire has seen cannot be resized
        self.shard = self.flat.part(self.whole, group.rank)
        if cut:
            self.shard = self.shard.clone()
        self.state = make_state(self.flat.part(values, group.rank), self.shard) if self.trained else None
        self.steps = [0] * len(named)  # updates of each parameter so far: one that lacked a gradient has fewer
        index = {name: i for i, name in enumerate(self.names)}
        self.owned = [(index[p.name], p.start, p.offset, p.stop - p.start) for p in self.flat.pieces(group.rank)]
        self.forget()
        self._show()
        self.free()

    # -- parameters --------------------------------------------------------------------------------------------

    def gather(self) -> None:
        """All-gather the parameters from the shards of all ranks, if they are cut; whole until `free`."""
        if self.cut and not self.whole.untyped_storage().nbytes():
            values = self.all_gather()
            self.whole.untyped_storage().resize_(self.whole.nbytes)
            self.publish(values)
            self._show()

    def free(self) -> None:
        """Give the memory of `whole` back, if parameters are cut; they are empty until they are gathered again.

        What autograd saved of them refers to the same memory, so gathering fills it again, in place.
        """
        if self.cut:
            self.whole.untyped_storage().resize_(0)
            for p in self.parameters:
                p.data = self.shard[:0]

    def all_gather(self, async_op: bool = False) -> Any:
        """All-gather the shards of all ranks; a handle with `async_op`."""
        return collectives.all_gather(
            self.shard, self.group, self.flat.counts, algorithm="ring", async_op=async_op, of=self.of
        )

    @torch.no_grad()
    def publish(self, values: Tensor) -> None:
        """Put these values in the place of the parameters'."""
        self.whole.copy_(values)

    def _show(self) -> None:
        for p, view in zip(self.parameters, self.flat.views(self.whole), strict=True):
            p.data = view

    # -- gradients ---------------------------------------------------------------------------------------------

    @property
    def complete(self) -> bool:
        """Whether every parameter has its gradient in `whole_gradient`."""
        return len(self.arrived) == len(self.parameters)

    @torch.no_grad()
    def take(self, index: int) -> None:
        """Move the gradient of parameter `index` into `whole_gradient`, or add it to what is there already."""
        p, view = self.parameters[index], self._room()[index]
        if p.grad is None or p.grad.shape != view.shape:
            raise RefusedError(
                f"rank {self.group.rank}: the gradient of {self.names[index]!r} has not the shape that the "
                f"parameter had when it was wrapped, {list(view.shape)}: change a model first, then wrap it"
            )
        if index in self.arrived:
            view.add_(p.grad)
        else:
            view.copy_(p.grad)
        p.grad = None
        self.arrived.add(index)

    @torch.no_grad()
    def own_gradient(self, index: int) -> Tensor:
        """This rank's own gradient of parameter `index`, to be changed in place before `reduce`; zeros at first."""
        view = self._room()[index]
        if index not in self.arrived:
            view.zero_()
            self.arrived.add(index)
        return view

    @torch.no_grad()
    def reduce(self) -> Any:
        """Start to reduce-scatter the mean (or sum) of `whole_gradient` over ranks; the handle's result is this shard.

        A parameter that got no gradient on this rank counts as zero here. 16-bit gradients are added in 32 bits and
        rounded once: that is what the algorithm "pairwise" does, at the bytes of the ring.
        """
        self.used |= self.arrived
        return collectives.reduce_scatter(self._fill(), self.group, self.op, algorithm="pairwise", async_op=True)

    @torch.no_grad()
    def check_finite(self) -> None:
        """Raise RefusedError, with rank and parameter, if this rank's gradient has NaN or infinity. Costs one sum."""
        refuse_nan(self.group.rank, self._fill(), self.names, self._views)

    def _fill(self) -> Tensor:
        """`whole_gradient`, with zeros for parameters that got none."""
        for index, view in enumerate(self._room()):
            if index not in self.arrived:
                view.zero_()
        assert self.whole_gradient is not None
        return self.whole_gradient

    def drop_whole_gradient(self) -> None:
        """Free this rank's own gradient; the reduced shard stays."""
        self.whole_gradient: Tensor | None = None
        self._views: list[Tensor] = []
        self.arrived: set[int] = set()  # parameters whose gradient is in it

    def forget(self) -> None:
        """Forget all gradients."""
        self.drop_whole_gradient()
        self.gradient: Tensor | None = None
        self.used: set[int] = set()  # parameters that got a gradient since

    def _room(self) -> list[Tensor]:
        """`whole_gradient` as tensors in the shape of the parameters; it is made when the first is wanted."""
        if self.whole_gradient is None:
            self.whole_gradient = torch.empty_like(self.whole)
            self._views = self.flat.views(self.whole_gradient)
        return self._views

    # -- the step ----------------------------------------------------------------------------------------------

    def update(self, optimizer: Any) -> None:
        """Update this rank's shard. A parameter without gradient stays as it is, as in torch's optimizers.

        optimizer: AdamW's settings for each parameter group, or a torch optimizer over this rank's pieces.
        """
        if self.state is None or self.gradient is None:
            return
        for index in self.used:
            self.steps[index] += 1
        runs: list[Run] = []
        for index, _, start, length in self.owned:
            if index in self.used:
                alike = self.steps[index], self.groups[index]
                joins = bool(runs) and runs[-1][1:] == (start, *alike)  # neighbours that are alike: one run
                runs.append((runs.pop()[0] if joins else start, start + length, *alike))
        self.state.update(optimizer, self.gradient, self.shard, runs)

    def nbytes(self) -> tuple[int, int, int]:
        """Bytes held on the device now: parameters, gradients, optimizer's state."""
        parameters = self.whole.untyped_storage().nbytes() + (self.shard.nbytes if self.cut else 0)
        own = self.whole_gradient is None and self.gradient is not None  # else the shard is a view, or for a moment
        gradients = [g.nbytes for g in (self.whole_gradient, self.gradient if own else None) if g is not None]
        return parameters, sum(gradients), 0 if self.state is None else self.state.device_bytes(self.shard)
