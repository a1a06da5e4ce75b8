"""What the ways to share out the training state have in common: what a rank holds, by the plain model's names.

Every element of the model is *counted* on exactly one rank. So a sum over all ranks of what each counts is right
without anybody knowing how the others are cut: of squares it is the norm, of the elements themselves the whole model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn

from labkit.parallel.hybrid.part import Part
from labkit.parallel.tensor.shard_spec import ShardSpec, shard_specs_of
from labkit.wire.group import Group


@dataclass(frozen=True)
class Place:
    """Where a parameter of this rank lies in the plain model.

    name: there. shape: here, after tensor parallelism. spec: how it was cut, None if the ranks of tp hold it whole.
    counted: whether this rank counts it among those along tp and pp. expert: it is copied along fewer ranks.
    """

    name: str
    shape: tuple[int, ...]
    spec: ShardSpec | None
    counted: bool
    expert: bool

    @property
    def whole(self) -> tuple[int, ...]:
        """The shape in the plain model."""
        shape = list(self.shape)
        if self.spec is not None:
            shape[self.spec.dim] = sum(self.spec.sizes)
        return tuple(shape)

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


@dataclass
class Held:
    """Elements `start` to `stop` of a parameter of this rank, flattened: 1-D tensors that may be written to.

    gradient: None before there is one. counted: see above; copies of what others count are held all the same.
    """

    place: Place
    start: int
    stop: int
    values: Tensor
    gradient: Tensor | None
    momentum: Tensor
    variance: Tensor
    counted: bool


class Replicas(Protocol):
    """One way to train the parts of this rank together with those who hold the same ones.

    modules: what a forward pass calls, one a chunk. tied: the parameter that the first and the last stage both hold,
    for `Pipeline` to sum; empty where `reduce` does.
    """

    modules: Sequence[nn.Module]
    tied: dict[str, nn.Parameter]

    def expect(self, last: bool) -> None:
        """A backward pass comes; last: of this step, outside of a pipeline."""

    def reduce(self) -> None:
        """After all backward passes: have the sums over the replicas."""

    def held(self) -> Iterator[Held]:
        """What this rank owns of the training state."""

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """All tensors of the training state that lie on this rank: ("parameters", "gradients" or "optimizer", it)."""

    def steps(self) -> dict[str, int]:
        """Updates so far of every parameter of this rank, by the plain model's names."""

    def update(self) -> None:
        """One step of AdamW on what is held, and have the new weights wherever they are whole."""

    def zero_grad(self) -> None:
        """Forget all gradients."""

    def loaded(self, steps: Mapping[str, int]) -> None:
        """`values`, `momentum` and `variance` were written to; steps: updates so far, by the plain model's names."""


def places(part: Part, tp: Group) -> dict[int, Place]:
    """By the identity of each parameter, where it lies in the plain model."""
    model, found = part.model, {}
    for name, p, spec in shard_specs_of(model):
        copy = bool(model.tied) and model.last and name == "lm_head.weight"  # the first stage counts it
        counted = (spec is not None or tp.rank == 0) and not copy
        whole = "tokens.weight" if copy else name
        found[id(p)] = Place(whole, tuple(p.shape), spec, counted, ".experts." in name)
    return found
