"""`Training`: everything that a run needs to go on as if it had never stopped, as pieces and plain values.

model, optimizer    parameters, buffers, momentum, numbers of steps, learning rates
scheduler, loader   what has `state_dict` and `load_state_dict`, and says plain data
random              the random numbers of this rank
extra               more of the caller's own, plain data: a function that gives it
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from labkit.parallel.zero.base import ZeRO
from labkit.wire.errors import Refused
from labkit.wire.group import Group

from . import zero_state
from .encode import decode, encode
from .errors import NotLoaded
from .holdings import buffers, description, holdings, stream_of
from .manifest import Manifest
from .optimizer_state import numbers, optimizer_groups, optimizer_pieces, put, put_state, settings_for, shaped
from .pieces import DTYPES, Piece, dtype_name
from .random_state import derived_seed, random_state, seed_everything, set_random_state
from .stretches import Stretch, everything


@dataclass(frozen=True)
class Want:
    """A part of a tensor that this rank needs from a checkpoint."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    stretches: tuple[Stretch, ...]


class Training:
    """The state of one rank. optimizer: one, or several, or None; under ZeRO it is a part of the model.

    stream: the name of this rank's random numbers (see `random_state.py`); by default ranks of one tensor-parallel
    group have one stream, and every other rank one of its own.
    identity: what must be the same beyond names and shapes; by default the model's `config`, if it has one.
    """

    def __init__(
        self, model: Any, optimizer: Optimizer | Sequence[Optimizer] | None, group: Group, *, scheduler: Any = None,
        loader: Any = None, random: bool = True, stream: str | None = None, extra: Any = None,
        identity: str | None = None,
    ) -> None:  # fmt: skip
        self.model, self.group, self.random = model, group, random
        self.zero = model if isinstance(model, ZeRO) else None
        given = [] if optimizer is None else [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
        if self.zero is not None and given:
            raise Refused("a model under ZeRO has its optimizer inside: pass the model alone")
        if not all(isinstance(o, Optimizer) for o in given):
            raise Refused(f"optimizer is a {type(optimizer).__name__}: pass a torch.optim.Optimizer, or several")
        self.optimizers: list[Optimizer] = given
        self.parts = {"scheduler": scheduler, "loader": loader}
        for name, part in self.parts.items():
            if part is not None and not (hasattr(part, "state_dict") and hasattr(part, "load_state_dict")):
                raise Refused(f"{name} is a {type(part).__name__}: it needs state_dict() and load_state_dict()")
        self.extra = extra
        self.identity = description(model) if identity is None else identity
        self.stream = stream_of(model, group) if stream is None else stream

    # -- to be written -----------------------------------------------------------------------------------------

    def pieces(self) -> list[Piece]:
        """Every tensor, as far as this rank has it. Nothing is copied where memory is contiguous."""
        found = list(self._model_pieces())
        found += [
            Piece(f"buffer/{name}", tuple(b.shape), everything(b.numel()), b.detach().reshape(-1), each=True)
            for name, b in buffers(self.model)
        ]
        if self.random:
            for kind, x in random_state(self.group.device).items():
                found.append(Piece.whole(f"random/{self.stream}/{kind}", x))
        return found

    def _model_pieces(self) -> Iterator[Piece]:
        if self.zero is not None:
            yield from zero_state.zero_pieces(self.zero)
            return
        held = holdings(self.model)
        yield from (Piece(f"model/{h.name}", h.shape, h.stretches, h.of(h.parameter)) for h in held)
        yield from optimizer_pieces(self.optimizers, held)

    def plain(self) -> dict[str, Any]:
        """All else, ready for JSON: "values", "groups" and "numbers" (see `manifest.py`)."""
        values = {name: encode(part.state_dict(), name) for name, part in self.parts.items() if part is not None}
        values["optimizer"] = "AdamW" if self.zero is not None else _kind(self.optimizers)
        values["model"] = self.identity
        if self.extra is not None:
            values["extra"] = encode(self.extra(), "extra")
        if self.zero is not None:
            return {"values": values, "groups": zero_state.zero_groups(self.zero), "numbers": {}}
        held = holdings(self.model)
        return {"values": values, "groups": optimizer_groups(self.optimizers, held),
                "numbers": numbers(self.optimizers, held)}  # fmt: skip

    # -- to be read --------------------------------------------------------------------------------------------

    def wanted(self, saved: Manifest) -> list[Want]:
        """What this rank needs of a checkpoint. Raises NotLoaded where that is of another model or optimizer."""
        self._check_values(saved)
        wants = []
        for piece in self._model_pieces():
            kind, _, rest = piece.name.partition("/")
            if kind == "model":
                wants.append(_want(piece, saved))
                wants += self._optimizer_wants(rest, piece, saved)
        for name, b in buffers(self.model):
            own = f"own/{self.group.rank}/buffer/{name}"
            name = own if own in saved.tensors and saved.ranks == self.group.size else f"buffer/{name}"
            wants.append(_want(Piece.whole(name, b), saved))
        if self.random:
            prefix = f"random/{self.stream}/"
            for name, (shape, dtype) in saved.tensors.items():
                if name.startswith(prefix):
                    wants.append(Want(name, shape, dtype, everything(_numel(shape))))
        return wants

    def _optimizer_wants(self, name: str, piece: Piece, saved: Manifest) -> Iterator[Want]:
        if not self.optimizers and self.zero is None:
            return
        for key in _keys(saved):
            full = f"optimizer/{key}/{name}"
            if full in saved.tensors:
                shape, dtype = saved.tensors[full]
                mine = piece.stretches if shaped(key, shape, piece.shape) else everything(_numel(shape))
                yield Want(full, shape, dtype, mine)

    def _check_values(self, saved: Manifest) -> None:
        kind, mine = saved.value("optimizer", self.group.rank, self.group.size), _kind(self.optimizers)
        for name, part in self.parts.items():
            if part is not None and saved.value(name, self.group.rank, self.group.size) is None:
                raise NotLoaded(f"the checkpoint was saved without a {name}: load without one")
        there, here = saved.values.get("model"), self.identity
        if there and here and there != here:
            raise NotLoaded(f"the checkpoint is of another model: {there}, and here it is {here}")
        try:
            if kind is None and (mine or self.zero is not None):
                raise NotLoaded("the checkpoint was saved without an optimizer: load with optimizer=None")
            if kind is not None and self.zero is not None:
                zero_state.refuse_other_settings(self.zero, kind, saved.groups)
            elif mine and kind != mine:
                raise NotLoaded(f"the checkpoint has the state of {kind}, and the optimizer here is {mine}")
            for names in self._group_names():
                settings_for(names, saved.groups)
        except Refused as why:
            raise NotLoaded(str(why)) from None

    def _group_names(self) -> list[list[str]]:
        if self.zero is not None or not self.optimizers:
            return []
        return [g["names"] for g in optimizer_groups(self.optimizers, holdings(self.model))]

    def check(self, read: Mapping[str, Tensor], saved: Manifest) -> None:
        """Raise NotLoaded if what was read cannot be taken up, though each of it was there."""
        if self.zero is not None:
            return
        first: dict[tuple[int, str], tuple[str, Tensor]] = {}
        for holding in holdings(self.model):
            for key in _keys(saved):
                full = f"optimizer/{key}/{holding.name}"
                if full in read and not shaped(key, saved.tensors[full][0], holding.shape):
                    name, x = first.setdefault((id(holding.parameter), key), (holding.name, read[full]))
                    if not torch.equal(x, read[full]):
                        raise NotLoaded(f"{name!r} and {holding.name!r} were saved with {key} {x.tolist()} and "
                                        f"{read[full].tolist()}, and here they are trained together: give FullyShard "
                                        "units that keep them apart")  # fmt: skip

    # -- taking it up ------------------------------------------------------------------------------------------

    def states(self) -> dict[str, Any]:
        """The states of scheduler and loader, as they are."""
        return {name: copy.deepcopy(part.state_dict()) for name, part in self.parts.items() if part is not None}

    def put_states(self, states: Mapping[str, Any]) -> None:
        """Go back to `states()`."""
        for name, state in states.items():
            self.parts[name].load_state_dict(state)

    def take_states(self, saved: Manifest) -> None:
        """Take up the states of scheduler and loader. Raises what they raise."""
        rank, size = self.group.rank, self.group.size
        self.put_states({n: decode(saved.value(n, rank, size)) for n, p in self.parts.items() if p is not None})

    def take(self, read: Mapping[str, Tensor], saved: Manifest) -> None:
        """Go on from what was read for `wanted(saved)`. Nothing here can be refused any more."""
        if self.zero is not None:
            zero_state.put_zero(self.zero, dict(read), saved.groups)
        else:
            self._take_model(read, saved)
        with torch.no_grad():
            for name, b in buffers(self.model):
                own = f"own/{self.group.rank}/buffer/{name}"
                b.copy_(read[own if own in read else f"buffer/{name}"].view(b.shape))
        if self.random:
            self._take_random(read, saved)

    def _take_model(self, read: Mapping[str, Tensor], saved: Manifest) -> None:
        held = holdings(self.model)
        tensors: dict[str, dict[str, Any]] = {}
        for holding in held:
            put(holding.parameter, holding, read[f"model/{holding.name}"])
            for key in _keys(saved):
                full = f"optimizer/{key}/{holding.name}"
                if full in read:
                    shape, _ = saved.tensors[full]
                    x = read[full]
                    alike = shaped(key, shape, holding.shape)
                    tensors.setdefault(holding.name, {})[key] = (alike, x if alike else x.view(shape))
        put_state(self.optimizers, held, tensors, saved.numbers)
        groups = (g for o in self.optimizers for g in o.param_groups)
        for group, names in zip(groups, self._group_names(), strict=True):
            group.update(settings_for(names, saved.groups))

    def _take_random(self, read: Mapping[str, Tensor], saved: Manifest) -> None:
        prefix = f"random/{self.stream}/"
        state = {name.removeprefix(prefix): x for name, x in read.items() if name.startswith(prefix)}
        if state:
            set_random_state(state, self.group.device)
            return
        digests = {
            n: parts[0].crc for n, parts in saved.stored.items() if n.startswith("random/") and n.endswith("/torch")
        }
        if digests:
            seed_everything(derived_seed(digests, self.stream), self.group.device)


def _want(piece: Piece, saved: Manifest) -> Want:
    """This piece of a checkpoint that has to have it, in the same shape and dtype."""
    name = piece.name.partition("/")[2]
    if piece.name not in saved.tensors:
        raise NotLoaded(f"the checkpoint is of another model, or of a part of it: it has no {name!r}")
    shape, dtype = saved.tensors[piece.name]
    if shape != piece.shape:
        raise NotLoaded(f"the checkpoint is of another model: {name!r} is {list(shape)} in it, and {list(piece.shape)} "
                        "here")  # fmt: skip
    if dtype != dtype_name(piece.tensor):
        raise NotLoaded(f"{name!r} is {dtype} in the checkpoint, and {dtype_name(piece.tensor)} here: build the model "
                        f"in {dtype}, load, and convert it then")  # fmt: skip
    assert dtype in DTYPES
    return Want(piece.name, shape, dtype, piece.stretches)


def _keys(saved: Manifest) -> list[str]:
    return sorted({name.split("/")[1] for name in saved.tensors if name.startswith("optimizer/")})


def _kind(optimizers: Sequence[Optimizer]) -> str | None:
    return " + ".join(sorted({type(o).__name__ for o in optimizers})) or None


def _numel(shape: Sequence[int]) -> int:
    return int(torch.Size(shape).numel())
