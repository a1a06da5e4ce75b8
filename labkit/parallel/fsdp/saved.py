"""What the autograd graph keeps in place of a gathered weight: a reference to it.

A linear layer saves its weight for backward. If the graph held the gathered weight itself, letting the unit go would
free nothing. So whatever lies in a gathered unit is saved as a reference: which unit, from where, in which shape. When
backward comes to it, the reference is good for the same weight, gathered again. (PyTorch's FSDP takes the memory from
under the saved tensors instead, and puts it back before backward.)
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from labkit.parallel.fsdp.flat_parameter import FlatParameter
from labkit.wire.errors import RefusedError


class SavedReference(NamedTuple):
    """A tensor that lay in the whole of `flat_param`, when its shard was of `version`."""

    flat_param: FlatParameter
    version: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


class SavedReferences:
    """Saves references while `instead_of_weights` is entered.

    lent: the flat parameters whose whole is here, by the identity of its memory; they keep it up to date.
    """

    def __init__(self) -> None:
        self.lent: dict[int, FlatParameter] = {}

    def instead_of_weights(self) -> torch.autograd.graph.saved_tensors_hooks:
        """A context for forward: what is saved inside for backward goes through `pack`, and comes back by `unpack`."""
        return torch.autograd.graph.saved_tensors_hooks(self.pack, self.unpack)

    def pack(self, x: Tensor) -> Any:
        """What the graph keeps of `x`: a reference if it lies in a gathered unit, else `x`."""
        flat_param = self.lent.get(x.untyped_storage()._cdata)
        if flat_param is None or x.dtype != flat_param.dtype:
            x._saved_for_backward = True  # type: ignore[attr-defined]  # an activation: see labkit/wire/sampler.py
            return x
        return SavedReference(
            flat_param, flat_param.shard._version, tuple(x.shape), x.stride(), int(x.storage_offset())
        )

    def unpack(self, kept: Any) -> Tensor:
        """`x` again. Gathers the unit if it is not here."""
        if not isinstance(kept, SavedReference):
            return kept
        if kept.flat_param.shard._version != kept.version:
            raise RefusedError(
                f"the weights of unit {kept.flat_param.unit or 'root'!r} were changed between forward "
                "and backward (by an optimizer step?): the gradient would be that of neither"
            )
        return kept.flat_param.wait().as_strided(kept.size, kept.stride, kept.offset)
