"""What a compression hook remembers between steps, by the name of a parameter."""

from __future__ import annotations

import copy
import zlib
from typing import Any

import torch
from torch import Tensor

from labkit.wire.errors import RefusedError


class HookState:
    """The base of the hooks. `kept[kind][name]` is a tensor of parameter `name`, of this rank or the same on all.

    It is kept by name because buckets are made anew after the first step. A hook belongs to one model.
    steps: how many steps each parameter has been through. seed: of all random numbers.
    """

    feedback = True

    def __init__(self, seed: int = 0, check_nan: bool = True) -> None:
        self.seed, self.check_nan = seed, check_nan
        self.kept: dict[str, dict[str, Tensor]] = {}
        self.steps: dict[str, int] = {}

    def __repr__(self) -> str:
        """All options, and nothing of what changes: ranks compare it."""
        options = {k: v for k, v in vars(self).items() if k not in ("kept", "steps")}
        return f"{type(self).__name__}({', '.join(f'{k}={_said(v)}' for k, v in options.items())})"

    def at(self, kind: str, name: str, like: Tensor) -> Tensor:
        """`kept[kind][name]`, at first zeros. Raises RefusedError if it is of another shape than `like`."""
        tensors = self.kept.setdefault(kind, {})
        if name not in tensors:
            tensors[name] = torch.zeros_like(like)
        if tensors[name].shape != like.shape:
            raise RefusedError(
                f"the {kind} kept for {name!r} has shape {tuple(tensors[name].shape)}, and the gradient has "
                f"{tuple(like.shape)}: it is of another model, and each model needs a hook of its own"
            )
        return tensors[name]

    def dice(self, name: str, step: int, rank: int = 0) -> torch.Generator:
        """Random numbers that belong to a parameter, a step and a rank, whatever was drawn before."""
        return torch.Generator().manual_seed(zlib.crc32(f"{self.seed} {name} {step} {rank}".encode()))

    def state_dict(self) -> dict[str, Any]:
        """A copy of all of it, for a checkpoint. Residuals are this rank's own: each rank saves its state."""
        return copy.deepcopy({"kept": self.kept, "steps": self.steps})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.kept, self.steps = copy.deepcopy((state["kept"], state["steps"]))


def _said(x: object) -> str:
    """`repr`, or for a class that has none its attributes: "TopK(k=0.01)"."""
    if type(x).__repr__ is not object.__repr__:
        return repr(x)
    return f"{type(x).__name__}({', '.join(f'{k}={_said(v)}' for k, v in vars(x).items())})"
