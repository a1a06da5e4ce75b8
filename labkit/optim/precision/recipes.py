"""Which scale a tensor gets next, when it changes from step to step.

    current    the scale of this tensor: exact, but the whole tensor is read for its amax before any of it is cast
    delayed    that of the largest amax of the last steps: the amax is found while casting, for later (Transformer
               Engine). A tensor that grows faster than its history saturates, once
    fixed      one number for the whole run: right for one size, and every other overflows or underflows

A tensor whose parts lie on several ranks has one scale only if the ranks agree on its amax. `Scales.spoilt` sends all
amaxes of a model in one all-reduce of their maximum, after the backward pass; where one of them is not finite, on
whatever rank, all ranks learn of it and none of them takes the step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import isfinite, isnan, nan

import torch
from torch import Tensor

from labkit.collectives import all_reduce
from labkit.optim.precision.formats import E4M3, E5M2, FP32, Format, named, round_to
from labkit.optim.precision.scaling import Scaled, quantize, scale_for
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group

SCALINGS = ("current", "delayed", "fixed")


@dataclass(frozen=True)
class Recipe:
    """forward: of inputs and weights. backward: of gradients. scaling: how scales follow the tensors.

    scale: the one of "fixed". history: how many amaxes "delayed" looks back on. margin: powers of two that are kept
    free above the amax. accumulator, promote: of the matrix products (`products.multiply`).
    """

    forward: Format | str = E4M3
    backward: Format | str = E5M2
    scaling: str = "delayed"
    scale: float = 1.0
    history: int = 16
    margin: int = 0
    accumulator: Format | str = FP32
    promote: int | None = None

    def __post_init__(self) -> None:
        for name in ("forward", "backward", "accumulator"):
            object.__setattr__(self, name, named(getattr(self, name)))
        if self.scaling not in SCALINGS:
            raise RefusedError(f"scaling={self.scaling!r}: one of {', '.join(SCALINGS)}")
        if not 0 < self.scale < float("inf"):
            raise RefusedError(
                f"scale={self.scale}: a tensor is multiplied and later divided by it; above 0, and finite"
            )
        if type(self.history) is not int or self.history < 1:
            raise RefusedError(f"history={self.history!r}: how many amaxes are kept, a whole number of at least 1")


@dataclass
class Lost:
    """What casting did to the numbers of one tensor: how many there were, became 0, or were above the largest; and how
    many were 0 before, which nothing can be lost of."""

    numbers: int = 0
    underflow: int = 0
    overflow: int = 0
    zeros: int = 0


@dataclass
class TensorScale:
    """The scale of one tensor of a model, from step to step. lost: of the last cast. scales: every scale it had."""

    recipe: Recipe
    format: Format
    amaxes: deque[float] = field(init=False)
    pending: float | None = None  # the amax of what was cast last, until the ranks have agreed
    lost: Lost = field(default_factory=Lost)

    def __post_init__(self) -> None:
        self.amaxes = deque(maxlen=self.recipe.history)

    def scale(self, amax: Tensor) -> Tensor:
        """That of a tensor with this amax (0-d, finite); the first time "delayed" has nothing to look back on."""
        if self.recipe.scaling == "fixed":
            return torch.tensor(self.recipe.scale)
        if self.recipe.scaling == "delayed" and self.amaxes:
            amax = torch.tensor(max(self.amaxes))
        return scale_for(amax, self.format, margin=self.recipe.margin)

    def cast(self, x: Tensor, remember: bool = True) -> Scaled | Tensor:
        """x in the format with its scale, or rounded only where that has more than 8 bits. remember: its amax.

        What is not finite spoils the step in any format. x stays as it is then, so that the products show it, and
        `Scales.spoilt` tells.
        """
        x = x.detach()
        amax = x.abs().max() if x.numel() else x.new_zeros(())
        if remember:
            self.pending = _largest(self.pending, amax.item())
        if not amax.isfinite():
            return x
        if self.format.bits > 8:
            return x if self.format == FP32 else round_to(x, self.format, overflow="special")
        scale = self.scale(amax)
        q = quantize(x, self.format, scale=scale)
        self.lost = _lost(x, q, amax)
        return q


def _lost(x: Tensor, q: Scaled, amax: Tensor) -> Lost:
    """What became of x, whose largest number is amax. A code is 0 where all of its bits but the sign are."""
    there = int(x.count_nonzero())
    came = int((q.codes & (2 ** (q.format.bits - 1) - 1)).count_nonzero())
    most = q.format.max
    over = int((x.abs() * q.scale > most).sum()) if (amax * q.scale).item() > most else 0
    return Lost(x.numel(), there - came, over, x.numel() - there)


def _largest(*amaxes: float | None) -> float:
    """NaN, if one of them is not finite: `max` would depend on their order."""
    known = [amax for amax in amaxes if amax is not None]
    return max(known) if all(map(isfinite, known)) else nan


class Scales:
    """The scales of all tensors of a model, by name, and their agreement over the ranks of a group."""

    def __init__(self, group: Group | None = None) -> None:
        self.group = group
        self.of: dict[str, TensorScale] = {}

    def add(self, name: str, recipe: Recipe, format: Format) -> TensorScale:
        self.of[name] = TensorScale(recipe, format)
        return self.of[name]

    def __iter__(self) -> Iterator[tuple[str, TensorScale]]:
        return iter(self.of.items())

    def spoilt(self) -> tuple[str, ...]:
        """After a backward pass, on every rank: the names of tensors with a number that is not finite on any rank.

        All ranks get the same names. Where there are none, this step's amaxes go into the histories; else these keep
        what they had, and the step must be skipped. Bytes: an all-reduce of 4 for each tensor.
        """
        amaxes = torch.tensor(
            [t.pending or 0.0 for t in self.of.values()], device=self.group.device if self.group else None
        )
        if self.group is not None and self.group.size > 1:
            all_reduce(amaxes, self.group, op="max")
        wrong = tuple(name for name, amax in zip(self.of, amaxes.tolist(), strict=True) if isnan(amax))
        for tensor, amax in zip(self.of.values(), amaxes.tolist(), strict=True):
            if not wrong and amax:
                tensor.amaxes.append(amax)
            tensor.pending = None
        return wrong
