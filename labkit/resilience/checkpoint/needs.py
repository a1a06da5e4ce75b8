"""What a rank needs of a checkpoint, and whether that is there: everything that can be refused, before it is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from labkit.wire.errors import RefusedError

from . import zero_state
from .errors import NotLoaded
from .holdings import buffers, holdings
from .manifest import Manifest
from .optimizer_state import optimizer_groups, settings_for, shaped
from .pieces import DTYPES, Piece, dtype_name
from .slices import StridedSlice, everything
from .training import Training, kind_of


@dataclass(frozen=True)
class Want:
    """A part of a tensor that this rank needs from a checkpoint."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    slices: tuple[StridedSlice, ...]


def wanted(training: Training, saved: Manifest) -> list[Want]:
    """What this rank needs of a checkpoint. Raises NotLoaded where that is of another model or optimizer."""
    there, here = saved.values.get("model"), training.identity
    if there and here and there != here:
        raise NotLoaded(f"the checkpoint is of another model: {there}, and here it is {here}")
    wants = []
    for piece in training.needed_pieces():
        kind, _, rest = piece.name.partition("/")
        if kind == "model":
            wants.append(_want(piece, saved))
            wants += _optimizer_wants(training, rest, piece, saved)
        elif training.inside is not None and rest.startswith("step/") and piece.name in saved.tensors:
            wants.append(_want(piece, saved))  # every rank counts the steps of every parameter
    for name, b in buffers(training.model):
        wants.append(_want(Piece.whole(name_of(training, saved, f"buffer/{name}"), b), saved))
    _check_values(training, saved)
    if training.random:
        prefix = f"random/{training.stream}/"
        for name in (n for n in saved.tensors if n.startswith(prefix)):
            mine = name_of(training, saved, name)
            shape, dtype = saved.tensors[mine]
            wants.append(Want(mine, shape, dtype, everything(_numel(shape))))
    return wants


def name_of(training: Training, saved: Manifest, name: str) -> str:
    """Under which name this rank finds what each rank may have had its own of (`saving._apart`)."""
    own = f"own/{training.group.rank}/{name}"
    return own if own in saved.tensors and saved.ranks == training.group.size else name


def _optimizer_wants(training: Training, name: str, piece: Piece, saved: Manifest) -> Iterator[Want]:
    if not training.optimizers and training.inside is None:
        return
    for key in keys_of(saved):
        full = f"optimizer/{key}/{name}"
        if full in saved.tensors and not (key == "step" and training.inside is not None):
            shape, dtype = saved.tensors[full]
            mine = piece.slices if shaped(key, shape, piece.shape) else everything(_numel(shape))
            yield Want(full, shape, dtype, mine)


def _check_values(training: Training, saved: Manifest) -> None:
    kind, mine = saved.value("optimizer", training.group.rank, training.group.size), kind_of(training.optimizers)
    for name, part in training.parts.items():
        if part is not None and saved.value(name, training.group.rank, training.group.size) is None:
            raise NotLoaded(f"the checkpoint was saved without a {name}: load without one")
    try:
        if kind is None and (mine or training.inside is not None):
            raise NotLoaded("the checkpoint was saved without an optimizer: load with optimizer=None")
        if kind is not None and training.inside is not None:
            zero_state.refuse_other_settings(training.inside.names(training.model), kind, saved.groups)
        elif mine and kind != mine:
            raise NotLoaded(f"the checkpoint has the state of {kind}, and the optimizer here is {mine}")
        for names in group_names(training):
            settings_for(names, saved.groups)
    except RefusedError as why:
        raise NotLoaded(str(why)) from None


def group_names(training: Training) -> list[list[str]]:
    """The names in each parameter group of the optimizers here."""
    if training.inside is not None or not training.optimizers:
        return []
    return [g["names"] for g in optimizer_groups(training.optimizers, holdings(training.model))]


def check(training: Training, read: Mapping[str, Tensor], saved: Manifest) -> None:
    """Raise NotLoaded if what was read cannot be taken up, though each of it was there."""
    if training.inside is not None:
        return
    first: dict[tuple[int, str], tuple[str, Tensor]] = {}
    for holding in holdings(training.model):
        for key in keys_of(saved):
            full = f"optimizer/{key}/{holding.name}"
            if full in read and not shaped(key, saved.tensors[full][0], holding.shape):
                name, x = first.setdefault((id(holding.parameter), key), (holding.name, read[full]))
                if not torch.equal(x, read[full]):
                    raise NotLoaded(
                        f"{name!r} and {holding.name!r} were saved with {key} {x.tolist()} and "
                        f"{read[full].tolist()}, and here they are trained together: give FullyShard "
                        "units that keep them apart"
                    )


def _want(piece: Piece, saved: Manifest) -> Want:
    """This piece of a checkpoint that has to have it, in the same shape and dtype."""
    name = piece.name.partition("/")[2]
    if piece.name not in saved.tensors:
        raise NotLoaded(f"the checkpoint is of another model, or of a part of it: it has no {name!r}")
    shape, dtype = saved.tensors[piece.name]
    if shape != piece.shape:
        raise NotLoaded(
            f"the checkpoint is of another model: {name!r} is {list(shape)} in it, and {list(piece.shape)} here"
        )
    if dtype != dtype_name(piece.tensor):
        raise NotLoaded(
            f"{name!r} is {dtype} in the checkpoint, and {dtype_name(piece.tensor)} here: build the model "
            f"in {dtype}, load, and convert it then"
        )
    assert dtype in DTYPES
    return Want(piece.name, shape, dtype, piece.slices)


def keys_of(saved: Manifest) -> list[str]:
    """What the optimizer kept for each parameter: "exp_avg", ..."""
    return sorted({name.split("/")[1] for name in saved.tensors if name.startswith("optimizer/")})


def _numel(shape: Sequence[int]) -> int:
    return int(torch.Size(shape).numel())
