"""What a model under ZeRO lets one see of it: how much it holds, its gradients, its state to keep and to load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from labkit import collectives
from labkit.cost.training.memory import StateBytes
from labkit.parallel.refusals.agreement import agree
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group

from . import states
from .state import Copies
from .unit import ZeroUnit


class Inspect(nn.Module):
    """The half of `ZeRO` that trains nothing."""

    units: list[ZeroUnit]
    group: Group
    module: nn.Module
    optimizer: Any

    def state_bytes(self) -> StateBytes:
        """Bytes of training state on this rank's device now: parameters, gradients, optimizer. Whole numbers.

        From the end of backward to `zero_grad()` (before and after there are no gradients) the total is, on rank r,
        `labkit.cost.zero_state_bytes_by_rank([u.flat.numel for u in model.units], N, stage, precision)[r]` where
        nothing is frozen. Nothing is padded. Not counted: what is gathered or reduced for a moment, activations, the
        module's buffers, what lies in host memory, and the optimizer's step numbers, which are Python integers.
        """
        parts = [unit.nbytes() for unit in self.units]
        return StateBytes(*(sum(column) for column in zip(*parts, strict=True)))

    def host_bytes(self) -> int:
        """Bytes of training state that this rank keeps in host memory: 0 without `offload`."""
        return sum(unit.state.host_bytes() for unit in self.units if unit.state is not None)

    def copied_bytes(self) -> Copies:
        """Bytes that this rank has copied between device and host memory so far: 0 without `offload`."""
        made = [unit.state.copies for unit in self.units if unit.state is not None]
        return Copies(sum(c.to_host for c in made), sum(c.to_device for c in made))

    @torch.no_grad()
    def gradients(self) -> dict[str, Tensor]:
        """The mean gradient of every trained parameter by name, whole, on every rank. To look at: all call it."""
        self._reduced()
        found: dict[str, Tensor] = {}
        for unit in self.units:
            if unit.gradient is not None:
                whole = collectives.all_gather(unit.gradient, unit.group, unit.flat.counts, algorithm="ring")
                found.update(zip(unit.names, unit.flat.views(whole), strict=True))
        return found

    @torch.no_grad()
    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """The plain module's state dict under its own names, whole, on every rank. Every rank calls it.

        Of what is trained the master's values, in full precision. Sent: one all-gather of the model in their dtype.
        """
        return states.weights(self)

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True, assign: bool = False) -> None:
        """Load a state dict of the plain module. Every rank calls it, and refuses one of another model with all others.

        Weights and buffers only: momentum and step numbers stay (`load_training_state` has them).
        """
        agree(self.group, states.not_weights(self, state))
        states.load_weights(self, state)
        self._loaded()

    def training_state(self, kind: str = "full") -> dict[str, Any]:
        """All that training goes on from. kind: "full", all of it on every rank; or "shard", what this rank owns.

        Both formats stand in labkit/parallel/zero/states.py. Every rank calls it for "full"; "shard" sends nothing.
        """
        if kind not in ("full", "shard"):
            raise RefusedError(f"training_state({kind!r}): kind is 'full' or 'shard'")
        assert self.optimizer is not None  # a torch optimizer is made when it is first asked for
        return states.full(self) if kind == "full" else states.shard(self)

    @torch.no_grad()
    def load_training_state(self, state: dict[str, Any] | Sequence[dict[str, Any]]) -> None:
        """Load a full training state, or the list of all ranks' shards, saved at any world size and by any stage.

        Every rank calls it. If it does not fit on one rank, every rank raises RefusedError and nothing has changed.
        """
        assert self.optimizer is not None
        agree(self.group, states.problem(self, state))
        states.load(self, state)
        self._loaded()

    def _loaded(self) -> None:
        """Forget gradients of the weights before, and have the new ones wherever they are whole."""
        self.zero_grad()
        for unit in self.units:
            if not unit.cut:
                unit.publish(unit.all_gather())

    def _reduced(self) -> None:
        raise NotImplementedError
