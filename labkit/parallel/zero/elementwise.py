"""Any optimizer of torch that treats every element by itself, on the pieces of parameters that a rank owns.

Each piece is an `nn.Parameter` of its own, whose memory is a part of the master's. SGD, Adam, RMSprop and Adagrad do
not notice. An optimizer that looks at a whole matrix or at its norm (Muon, Adafactor, LARS), or that calls the model
(LBFGS), would train pieces otherwise than parameters: it is found out by a trial, and refused.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from labkit.wire.errors import RefusedError

from .state import Run, State

if TYPE_CHECKING:
    from .unit import ZeroUnit

Make = Callable[..., Optimizer]


def state_keys(make: Make, settings: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """What `make` keeps for each element, by name ("momentum_buffer"), and "step" if it counts steps.

    Three steps on eight numbers, as one matrix and in two pieces, for each group's settings. Raises RefusedError unless
    both end alike, or if anything is kept for a parameter as a whole but the number of its steps.
    """
    found: dict[str, None] = {}
    name = getattr(getattr(make, "func", make), "__name__", type(make).__name__)
    for own in settings:
        start = torch.linspace(-1, 2, 8)
        matrix = nn.Parameter(start.view(2, 4).clone())
        pieces = [nn.Parameter(part.clone()) for part in start.split([3, 5])]
        try:
            for parameters in ([matrix], pieces):
                optimizer = make([{"params": parameters, **own}])
                for step in range(3):
                    gradient = torch.sin(start * (step + 2))
                    for p, g in zip(parameters, gradient.split([p.numel() for p in parameters]), strict=True):
                        p.grad = g.view_as(p).clone()
                    optimizer.step()
                kept = [(key, x, p) for p in parameters for key, x in optimizer.state[p].items() if x is not None]
                whole = [key for key, x, p in kept if key != "step" and getattr(x, "shape", None) != p.shape]
                if whole:
                    raise RefusedError(
                        f"optimizer {name} keeps {whole[0]!r} for each parameter as a whole, and ZeRO cuts "
                        "parameters in the middle: take one that treats every element by itself"
                    )
                found |= dict.fromkeys(key for key, _, _ in kept)
        except RefusedError:
            raise
        except Exception as error:
            raise RefusedError(
                f"optimizer {name} cannot train pieces of parameters: {type(error).__name__}: {error}"
            ) from error
        if not torch.allclose(matrix.flatten(), torch.cat([p.detach() for p in pieces]), rtol=1e-4, atol=1e-6):
            raise RefusedError(
                f"optimizer {name} does not treat every element by itself: it trains a matrix otherwise than "
                "its pieces, and ZeRO cuts parameters in the middle. Take AdamW, or SGD"
            )
    return tuple(found)


def over_pieces(make: Make, units: Sequence[ZeroUnit], settings: Sequence[dict[str, Any]]) -> Optimizer:
    """The optimizer over what this rank owns, in groups with these settings."""
    groups: list[dict[str, Any]] = [{"params": [], **own} for own in settings]
    for unit in units:
        assert isinstance(unit.state, Pieces)
        for index, _, start, length in unit.owned:
            p = nn.Parameter(unit.state.master[start : start + length])
            unit.state.pieces.append((index, start, p))
            groups[unit.groups[index]]["params"].append(p)
    optimizer = make(groups)  # a group of which this rank owns nothing is empty
    for unit in units:
        assert isinstance(unit.state, Pieces)
        unit.state.optimizer, unit.state.fresh = (
            optimizer,
            copy.deepcopy([optimizer.state[p] for *_, p in unit.state.pieces]),
        )
    return optimizer


class Pieces(State):
    """The master of one shard, and a torch optimizer's state of its pieces.

    pieces: (number of the parameter in the unit, start in the shard, the piece).
    """

    optimizer: Optimizer

    def __init__(self, values: Tensor, shard: Tensor, keys: Sequence[str], dtype: torch.dtype) -> None:
        self.master = shard if shard.dtype == dtype else values.to(dtype, copy=True)
        self.keys = [key for key in keys if key != "step"]
        self.counts = "step" in keys
        self.pieces: list[tuple[int, int, nn.Parameter]] = []
        self.fresh: list[dict[str, Any]] = []  # the state of each piece before the first step

    @torch.no_grad()
    def update(self, groups: Any, gradient: Tensor, shard: Tensor, runs: Sequence[Run]) -> None:
        """One step of the optimizer (`groups`) on the pieces inside of `runs`."""
        for _, start, p in self.pieces:
            if any(first <= start < stop for first, stop, *_ in runs):
                p.grad = gradient[start : start + p.numel()].to(p.dtype)
        groups.step()
        for *_, p in self.pieces:
            p.grad = None
        self.publish(shard)

    def tensors(self) -> tuple[Tensor, ...]:  # type: ignore[override]
        """The master, and what the optimizer keeps for its elements."""
        return self.master, *(x for p in self._state() for key, x in p.items() if key in self.keys and x is not None)

    def named(self) -> dict[str, Tensor]:
        """Master and state as shards by the optimizer's own names, copied; zeros where there is nothing yet."""
        found = {"parameters": self.master} | {key: torch.zeros_like(self.master) for key in self.keys}
        for (_, start, p), state in zip(self.pieces, self._state(), strict=True):
            for key in self.keys:
                if state.get(key) is not None:
                    found[key][start : start + p.numel()].copy_(state[key])
        return found

    def restore(self, named: dict[str, Tensor], steps: Sequence[int]) -> None:
        """Give the optimizer the state of each piece; that of one which was never trained is as at the beginning."""
        for (index, start, p), fresh in zip(self.pieces, self.fresh, strict=True):
            state: dict[str, Any] = copy.deepcopy(fresh)
            if steps[index]:
                state = {key: named[key][start : start + p.numel()].clone() for key in self.keys}
                if self.counts:
                    state["step"] = torch.tensor(float(steps[index]))
            self.optimizer.state[p] = state

    def _state(self) -> list[dict[str, Any]]:
        return [self.optimizer.state[p] for *_, p in self.pieces]
