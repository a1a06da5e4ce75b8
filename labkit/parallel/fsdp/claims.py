"""What the autograd graph keeps in place of a gathered weight: a claim on it.

A linear layer saves its weight for backward. If the graph held the gathered weight itself, letting the unit go would
free nothing. So whatever lies in a gathered unit is saved as a claim: which unit, from where, in which shape. When
backward comes to it, the claim is good for the same weight, gathered again. (PyTorch's FSDP takes the memory from
under the saved tensors instead, and puts it back before backward.)
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from labkit.parallel.fsdp.shard import Shard
from labkit.wire.errors import Refused


class Claim(NamedTuple):
    """A tensor that lay in the whole of `shard`, when its stretch was of `version`."""

    shard: Shard
    version: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


class Claims:
    """Saves claims while `instead_of_weights` is entered.

    lent: the shards whose whole is here, by the identity of its memory; shards keep it up to date.
    """

    def __init__(self) -> None:
        self.lent: dict[int, Shard] = {}

    def instead_of_weights(self) -> torch.autograd.graph.saved_tensors_hooks:
        """A context for forward: what is saved inside for backward goes through `pack`, and comes back by `unpack`."""
        return torch.autograd.graph.saved_tensors_hooks(self.pack, self.unpack)

    def pack(self, x: Tensor) -> Any:
        """What the graph keeps of `x`: a claim if it lies in a gathered unit, else `x`."""
        shard = self.lent.get(x.untyped_storage()._cdata)
        if shard is None or x.dtype != shard.dtype:
            x._saved_for_backward = True  # type: ignore[attr-defined]  # an activation: see labkit/wire/sampler.py
            return x
        return Claim(shard, shard.stretch._version, tuple(x.shape), x.stride(), int(x.storage_offset()))

    def unpack(self, kept: Any) -> Tensor:
        """`x` again. Gathers the unit if it is not here."""
        if not isinstance(kept, Claim):
            return kept
        if kept.shard.stretch._version != kept.version:
            raise Refused(f"the weights of unit {kept.shard.unit or 'root'!r} were changed between forward "
                          "and backward (by an optimizer step?): the gradient would be that of neither")  # fmt: skip
        return kept.shard.settle().as_strided(kept.size, kept.stride, kept.offset)
