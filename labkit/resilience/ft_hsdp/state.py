"""The training state of one rank: its parts in a fixed order, as a snapshot in host memory, and back.

Rank i of every replica holds tensors of the same shapes, so what one of them wrote down fits all of them. The state is
named by its version (step, lineage) and known by its checksum.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from labkit.resilience.audit import checksum
from labkit.wire.errors import RefusedError

from .digest import digest

FORMAT = "labkit ft state 1"
_ALIGN = 16


@dataclass
class Snapshot:
    """A state at one moment. header: plain data, says what lies where. raw: uint8, in host memory."""

    header: dict[str, Any]
    raw: Tensor

    @property
    def version(self) -> tuple[int, int]:
        return self.header["step"], self.header["lineage"]


class TrainingState:
    """Model, optimizer, and what no tensor says: the next step, the lineage, and the positions of all streams.

    parameters: those of the model, once each, in its order; the optimizer's state is found by them.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, replicas: int):
        self.model, self.optimizer = model, optimizer
        self.step, self.lineage, self.positions = 0, 0, [0] * replicas
        self.parameters = list(model.parameters())
        self.names = [name for name, _ in model.named_parameters()]
        mine, trained = {id(p) for p in self.parameters}, {id(p) for g in optimizer.param_groups for p in g["params"]}
        if not trained <= mine:
            raise RefusedError(
                "the optimizer trains parameters that the model has not: build it from model.parameters(), "
                "after the model was sharded"
            )
        self.checksum, self.summed = "", False  # summed: it is of the tensors

    @property
    def version(self) -> tuple[int, int]:
        return self.step, self.lineage

    # -- parts ---------------------------------------------------------------------------------------------------

    def tensors(self) -> Iterator[tuple[list[Any], Tensor]]:
        """(place, tensor) in a fixed order: parameters, buffers, then the optimizer's state by parameter and key."""
        for i, p in enumerate(self.parameters):
            yield ["parameter", i], p.detach()
        for name, b in self.model.named_buffers():
            yield ["buffer", name], b.detach()
        for i, p in enumerate(self.parameters):
            found = self.optimizer.state.get(p, {})
            for key in sorted(found):
                if isinstance(found[key], Tensor):
                    yield ["optimizer", i, key], found[key].detach()

    def numbers(self) -> list[Any]:
        """What the optimizer keeps that is no tensor: [parameter, key, value]."""
        rows = []
        for i, p in enumerate(self.parameters):
            found = self.optimizer.state.get(p, {})
            rows += [[i, key, found[key]] for key in sorted(found) if not isinstance(found[key], Tensor)]
        return rows

    def sum_up(self) -> str:
        """Work out the checksum anew: of every tensor, the numbers, the step and the positions (not the lineage)."""
        said = f"{self.step} {self.positions} {self.numbers()}"
        self.checksum, self.summed = digest(said, (x for _, x in self.tensors())), True
        return self.checksum

    def follow(self, words: str) -> str:
        """A checksum without looking at the tensors: of the one before, and of what was done to that state."""
        self.checksum, self.summed = checksum(self.checksum, f"{self.step} {self.positions}", words), False
        return self.checksum

    # -- to host memory and back ---------------------------------------------------------------------------------

    def header(self) -> dict[str, Any]:
        """What a snapshot of the present state says about itself; its bytes are laid out by it."""
        entries, at = [], 0
        for place, x in self.tensors():
            entries.append({"place": place, "dtype": str(x.dtype)[6:], "shape": list(x.shape), "at": at})
            at += -(-x.nbytes // _ALIGN) * _ALIGN
        return {
            "format": FORMAT, "step": self.step, "lineage": self.lineage, "positions": list(self.positions),
            "checksum": self.checksum, "summed": self.summed, "numbers": self.numbers(), "entries": entries,
            "nbytes": at,
        }  # fmt: skip

    @torch.no_grad()
    def copy_into(self, snapshot: Snapshot) -> None:
        """Copy the tensors to where the header says. Nobody may change the state meanwhile."""
        for entry, (_, x) in zip(snapshot.header["entries"], self.tensors(), strict=True):
            view(snapshot.raw, entry).copy_(x)

    @torch.no_grad()
    def load(self, snapshot: Snapshot) -> None:
        """Become the state of `snapshot`, to the bit. Raises RefusedError, with nothing written, if it does not fit."""
        header = snapshot.header
        if problem := self._problem(header):
            raise RefusedError(f"this state cannot be loaded: {problem}")
        own = {tuple(place): x for place, x in self.tensors()}
        kept = {tuple(e["place"][1:]) for e in header["entries"]} | {(i, key) for i, key, _ in header["numbers"]}
        for i, p in enumerate(self.parameters):  # what that state does not have, this optimizer must not have either
            found = self.optimizer.state.get(p, {})
            for key in [k for k in found if (i, k) not in kept]:
                del found[key]
        for entry in header["entries"]:
            place, x = entry["place"], view(snapshot.raw, entry)
            if place[0] == "optimizer":
                self._load_optimizer(place[1], place[2], x)
            else:
                own[tuple(place)].copy_(x)
        for i, key, value in header["numbers"]:
            self.optimizer.state[self.parameters[i]][key] = value
        self.step, self.lineage = header["step"], header["lineage"]
        self.positions[:] = header["positions"]
        if not header["summed"]:
            self.checksum, self.summed = header["checksum"], False
        elif self.sum_up() != header["checksum"]:
            raise RefusedError(
                f"the state of step {self.step} was changed on its way: its checksum is {self.checksum}, and "
                f"{header['checksum']} where it comes from"
            )

    def _load_optimizer(self, i: int, key: str, x: Tensor) -> None:
        p = self.parameters[i]
        there = self.optimizer.state[p].get(key)
        if isinstance(there, Tensor) and there.shape == x.shape and there.dtype == x.dtype:
            there.copy_(x)
        else:  # numbers of steps stay on the CPU, as torch keeps them
            self.optimizer.state[p][key] = x.to(p.device if x.dim() else "cpu", copy=True)

    def _problem(self, header: dict[str, Any]) -> str | None:
        if header.get("format") != FORMAT:
            return f"its format is {header.get('format')!r}, and this code reads {FORMAT!r}"
        if len(header["positions"]) != len(self.positions):
            return f"it is of a run with {len(header['positions'])} replicas, and this one has {len(self.positions)}"
        given = {tuple(e["place"]): (e["dtype"], tuple(e["shape"])) for e in header["entries"]}
        for place, x in self.tensors():
            if place[0] == "optimizer":
                continue
            name = self.names[place[1]] if place[0] == "parameter" else place[1]
            mine = (str(x.dtype)[6:], tuple(x.shape))
            theirs = given.pop(tuple(place), None)
            if theirs != mine:
                return f"it is of another model: {place[0]} {name!r} is {mine} here, and {theirs} there"
        if extra := [place for place in given if place[0] != "optimizer" or place[1] >= len(self.parameters)]:
            return f"it is of another model: it has {extra[0]}, which this model has not"
        return None


def view(raw: Tensor, entry: dict[str, Any]) -> Tensor:
    """The tensor of one entry of a header, as a view of the raw bytes."""
    dtype = getattr(torch, entry["dtype"])
    count = 1
    for n in entry["shape"]:
        count *= n
    return raw[entry["at"] : entry["at"] + count * dtype.itemsize].view(dtype).view(entry["shape"])


def room_for(header: dict[str, Any], pinned: bool = False) -> Snapshot:
    """A snapshot that is still to be filled."""
    return Snapshot(header, torch.empty(header["nbytes"], dtype=torch.uint8, pin_memory=pinned))
