"""`FlatParameter`: the parameters of a unit side by side, cut among the ranks, of which this rank keeps one shard.

The shard is an ordinary 1-D `nn.Parameter`: an optimizer trains it without knowing what it is a part of. `unshard`
starts to gather the whole, `wait` waits for it, `reshard` lets it go again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from labkit.collectives import all_gather
from labkit.optim.precision.wire import CodedGather
from labkit.parallel.flat import Flat
from labkit.parallel.fsdp.strategies import Sharding
from labkit.parallel.fsdp.units import Owned
from labkit.parallel.refusals.changed_model import refuse_replaced
from labkit.wire.errors import RefusedError


class FlatParameter:
    """The parameters `owned` of unit `unit`, all of one dtype and parameter group, and all trained or all frozen.

    flat: their layout, and who owns what. shard: what this rank owns, in the parameters' own dtype. whole: all of
    them while they are gathered, in `dtype` (that of computing and of the wire), else None. Nothing is padded: the
    shards of two ranks may differ by one element. lent: see `saved.py`.
    """

    def __init__(
        self, unit: str, owned: list[Owned], sharding: Sharding, dtype: torch.dtype | None,
        lent: dict[int, FlatParameter], group: int = 0,
    ):  # fmt: skip
        first = owned[0].tensor
        self.unit, self.owned, self.sharding, self.group = unit, owned, sharding, group
        self.flat = Flat(((o.name, o.tensor) for o in owned), sharding.shard_group.size)
        self.rank, self.count = sharding.shard_group.rank, self.flat.counts[sharding.shard_group.rank]
        device = sharding.shard_group.device
        self.shard = nn.Parameter(torch.empty(self.count, dtype=first.dtype, device=device), first.requires_grad)
        self.dtype = dtype if dtype is not None and first.is_floating_point() else first.dtype
        self.pieces = self.flat.pieces(self.rank)
        self.whole: Tensor | None = None
        self.unreduced: Tensor | None = None  # gradients summed over microbatches that were not reduced yet
        self._coming: Any = None
        self._lent = lent
        self._shown = False

    @property
    def world_rank(self) -> int:
        """Of this process, for messages."""
        return self.sharding.shard_group.context.rank

    def __repr__(self) -> str:
        mine = f"{self.count} of {self.flat.numel} elements"
        return f"FlatParameter(unit {self.unit!r}, {mine}, {len(self.owned)} parameters)"

    # -- whole for a while -------------------------------------------------------------------------------------

    def unshard(self) -> None:
        """Start to gather the whole, unless it is here or under way. Sends what a ring all-gather sends.

        With a `param_wire` each rank encodes its shard, and the scales travel with the codes, so no amax is agreed on
        first. Its blocks begin where the shard begins and know nothing of parameters: in a block of 128 numbers, a few
        gains of 1 beside weights of 0.01 are well within the range of E4M3. A shard that nobody else cuts is not sent,
        and keeps all its bits.
        """
        if self.whole is not None or self._coming is not None:
            return
        if self.shard.shape != (self.count,):
            raise RefusedError(
                f"rank {self.rank}: the shard of unit {self.unit or 'root'!r} was resized from "
                f"{self.count} elements to {list(self.shard.shape)} after wrapping: the other ranks know "
                "nothing of it. Change the model first, then wrap it"
            )
        mine = self.shard.detach().to(self.dtype)
        if self.flat.size == 1:
            self.whole = mine
            return
        group, ways, of = self.sharding.shard_group, self.sharding.algorithm, self.unit or "root"
        codec = self.sharding.param_wire if mine.is_floating_point() else None
        if codec is not None:
            sent = codec.encode(self.shard[None])[0]
            self._coming = CodedGather(sent, self.flat.counts, group, codec, ways, of)
            return
        uneven = self.flat.counts if self.flat.counts[0] != self.flat.counts[-1] else None
        self._coming = all_gather(mine, group, uneven, ways, async_op=True, of=of)

    def wait(self) -> Tensor:
        """The whole (1-D): waits for it; gathers it now if nobody has begun to."""
        self.unshard()
        if self.whole is None:
            self.whole, self._coming = self._coming.wait().to(self.dtype), None
            self._lent[self.whole.untyped_storage()._cdata] = self
        return self.whole

    def reshard(self) -> None:
        """Let the whole go. The memory is free as soon as nobody computes with it."""
        if self._shown:
            self.hide()
        if self._coming is not None:
            self.wait()
        if self.whole is not None:
            self._lent.pop(self.whole.untyped_storage()._cdata, None)
            self.whole = None

    def views(self) -> list[Tensor]:
        """The parameters, in their shapes, as views of the whole."""
        return self.flat.views(self.wait())

    def show(self, views: Sequence[Tensor]) -> None:
        """Put the gathered parameters where the modules look for them."""
        self._shown = True
        for owned, view in zip(self.owned, views, strict=True):
            for module, attribute in owned.places:
                refuse_replaced(self, module, attribute, owned.name)
                module.__dict__[attribute] = view

    def hide(self) -> None:
        """Leave shapes without values in their place: what reads them while they are gone is told so by PyTorch."""
        self._shown = False
        for owned in self.owned:
            for module, attribute in owned.places:
                module.__dict__[attribute] = torch.empty(owned.tensor.shape, dtype=self.dtype, device="meta")

    # -- values from elsewhere ---------------------------------------------------------------------------------

    @torch.no_grad()
    def take(self, name: str, start: int, values: Tensor, into: Tensor | None = None) -> int:
        """Copy what this rank owns of `values`, elements `start` ... of parameter `name`; returns how many.

        into: the shard, if not given; or a tensor like it, such as the optimizer's momentum.
        """
        into, taken = self.shard if into is None else into, 0
        for piece in self.pieces:
            if piece.name == name:
                begin, end = max(piece.start, start), min(piece.stop, start + len(values))
                if begin < end:
                    at = piece.offset + begin - piece.start
                    into[at : at + end - begin].copy_(values[begin - start : end - start])
                    taken += end - begin
        return taken
