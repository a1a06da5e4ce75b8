"""The state of a model under ZeRO as pieces: its master values, and momentum and variance under AdamW's names.

So a run that began with torch's AdamW can go on under ZeRO, and the other way round.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from labkit.parallel.zero.adamw import AdamW
from labkit.parallel.zero.base import ZeRO
from labkit.parallel.zero.states import held
from labkit.parallel.zero.unit import ZeroUnit
from labkit.wire.errors import RefusedError

from .encode import decode, encode
from .optimizer_state import Groups, settings_for
from .pieces import Piece
from .slices import StridedSlice, everything

NAMES = {"parameters": "model/", "momentum": "optimizer/exp_avg/", "variance": "optimizer/exp_avg_sq/"}


def pieces(model: ZeRO) -> Iterator[Piece]:
    """What this rank owns, and the number of steps of every parameter, which every rank knows."""
    for unit in model.units:
        for prefix, tensor in _tensors(unit):
            for index, begin, start, length in unit.owned:
                name, shape = unit.names[index], unit.flat.shapes[index]
                yield Piece(prefix + name, shape, (StridedSlice(begin, length),), tensor[start : start + length])
        if unit.state is not None:
            for name, steps in zip(unit.names, unit.steps, strict=True):
                yield Piece(f"optimizer/step/{name}", (), everything(1), torch.tensor([float(steps)]))


def groups(model: ZeRO) -> Groups:
    """The settings of AdamW, as one parameter group."""
    return [{"settings": encode(asdict(model.optimizer), "the optimizer's settings"), "names": sorted(names(model))}]


def put(model: ZeRO, read: dict[str, Tensor], groups: Groups) -> None:
    """Take what was read, by the names of `pieces`. Every rank calls it: stages 1 and 2 gather what was read."""
    put_settings(model.optimizer, settings_for(names(model), groups))
    with torch.no_grad():
        for unit in model.units:
            for prefix, tensor in _tensors(unit):
                for index, _, start, length in unit.owned:
                    values = read.get(prefix + unit.names[index])  # None: this weight was never trained
                    tensor[start : start + length].copy_(torch.zeros(length) if values is None else values)
            if unit.state is not None:
                unit.steps = [int(read.get(f"optimizer/step/{name}", torch.zeros(1)).item()) for name in unit.names]
                unit.state.publish(unit.shard)
            unit.forget()
            if not unit.cut:
                unit.publish(unit.all_gather())


needed = pieces  # to go on, a rank needs what it would save


def names(model: ZeRO) -> list[str]:
    """Of the parameters that are trained."""
    return [name for unit in model.units if unit.trained for name in unit.names]


def refuse_other_settings(trained: Sequence[str], saved: Any, groups: Groups) -> None:
    """Raise RefusedError for the state of another optimizer than AdamW, or of a variant of it that ours has not."""
    if saved != "AdamW":
        raise RefusedError(f"the checkpoint has the state of {saved}, and ZeRO trains with AdamW")
    settings = settings_for(trained, groups)
    for key in ("amsgrad", "maximize"):
        if settings.get(key):
            raise RefusedError(f"the checkpoint was trained with AdamW({key}=True), which ZeRO's AdamW has not")


def put_settings(optimizer: AdamW, settings: Mapping[str, Any]) -> None:
    """Learning rate and the like, as they were saved."""
    for key in asdict(optimizer):
        if key in settings:
            setattr(optimizer, key, decode(settings[key]))


def _tensors(unit: ZeroUnit) -> Iterator[tuple[str, Tensor]]:
    yield from ((NAMES[key], tensor) for key, tensor in held(unit).items())
