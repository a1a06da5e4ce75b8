"""When a unit is gathered, when it is let go, and what is fetched ahead.

Forward: a unit is waited for when its forward begins; the next ones are fetched first, so that they travel while it
computes. Backward: the same in the opposite order. Which unit comes next is known from the forward before; in the very
first one, it is taken to be the next in the model. All ranks run the same program, so all fetch in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from labkit.parallel.fsdp.flat_parameter import FlatParameter
from labkit.parallel.fsdp.gather import Gather
from labkit.parallel.fsdp.reducing import Reducer


class Unit:
    """A module whose parameters come and go together.

    flat_params: one for each kind (dtype, parameter group, trained or frozen).
    """

    def __init__(self, name: str, module: nn.Module, flat_params: list[FlatParameter]):
        self.name, self.module, self.flat_params = name, module, flat_params

    def __repr__(self) -> str:
        return f"Unit({self.name or 'root'}, {self.numel} elements)"

    @property
    def numel(self) -> int:
        """Elements of all its parameters, over all ranks."""
        return sum(s.flat.numel for s in self.flat_params)

    @property
    def nbytes(self) -> int:
        """Bytes that it takes while it is gathered."""
        return sum(s.flat.numel * s.dtype.itemsize for s in self.flat_params)

    def unshard(self) -> None:
        """Start to gather."""
        for flat_param in self.flat_params:
            flat_param.unshard()

    def wait(self) -> None:
        """Wait until it is whole."""
        for flat_param in self.flat_params:
            flat_param.wait()

    def reshard(self) -> None:
        """Let go."""
        for flat_param in self.flat_params:
            flat_param.reshard()

    def install(self, reducer: Reducer) -> None:
        """Put the gathered parameters where the module looks for them."""
        for flat_param in self.flat_params:
            trained = flat_param.shard.requires_grad and torch.is_grad_enabled()
            flat_param.show(Gather.apply(flat_param.shard, flat_param, reducer) if trained else flat_param.views())

    def uninstall(self) -> None:
        """Leave shapes in their place: the parameters are gone, or not to be used until the next forward."""
        for flat_param in self.flat_params:
            flat_param.hide()


class Schedule:
    """units: as they are defined, the root first. ahead: how many units are fetched before their turn.

    starts: the units in the order in which their forwards began, ends: in which they ended. Backward begins in the
    reverse of `ends`.
    """

    def __init__(self, units: Sequence[Unit], ahead: int, reshard: bool):
        self.units, self.ahead, self.reshard = list(units), ahead, reshard
        self._expected = list(units)
        self.starts: list[Unit] = []
        self.ends: list[Unit] = []

    def begin(self) -> None:
        """A new forward of the whole model. What an earlier one left gathered may be out of date."""
        self.reshard_all()
        self.starts, self.ends = [], []

    def end(self) -> None:
        """Forward is over: what was fetched and not used goes, and the next one is expected to go the same way."""
        for unit in {id(u): u for u in self._expected}.values():
            if unit not in self.starts:
                unit.reshard()
        self._expected = self.starts

    def before_forward(self, unit: Unit) -> None:
        """Fetch `unit`, and those that follow."""
        unit.unshard()
        if not in_backward():  # else activations are computed again, and the schedule is backward's
            self.starts.append(unit)
            done = len(self.starts)
            for following in self._expected[done : done + self.ahead]:
                following.unshard()

    def after_forward(self, unit: Unit) -> tuple[list[Unit], int] | None:
        """Let `unit` go, if it can be gathered again for backward, or if there will be none.

        Returns what `before_backward` needs to know, or None where this forward is a part of backward.
        """
        if in_backward():
            return None
        self.ends.append(unit)
        if self.reshard or not torch.is_grad_enabled():
            unit.reshard()
        return self.ends, len(self.ends) - 1

    def before_backward(self, ends: list[Unit], place: int) -> None:
        """Fetch the unit at `place` of `ends` and those whose backward follows; return when it is here."""
        unit = ends[place]
        for later in ends[place + 1 : place + 2]:  # its backward is over; what is trained of it is gone already
            if later.name and not unit.name.startswith(f"{later.name}."):
                later.reshard()
        for following in ends[max(0, place - self.ahead) : place + 1][::-1]:
            following.unshard()
        unit.wait()

    def reshard_all(self) -> None:
        """Let everything go."""
        for unit in self.units:
            unit.reshard()


def in_backward() -> bool:
    """Whether autograd runs right now on this thread (as when a checkpointed block is computed again)."""
    return torch._C._current_graph_task_id() != -1
