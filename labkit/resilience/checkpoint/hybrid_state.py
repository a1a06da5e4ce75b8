"""The state of a `Hybrid` run as pieces: what a rank counts it saves, and what it holds it needs.

Every element is counted on one rank, so nothing is written twice, though ranks may hold copies that are cut differently
(the ranks of tp have vocabularies of different lengths, so what lies beside them in a flat tensor is cut elsewhere).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

import torch
from torch import Tensor

from labkit.parallel.hybrid.hybrid import Hybrid
from labkit.parallel.hybrid.replicas import Held

from .encode import encode
from .optimizer_state import Groups, settings_for
from .pieces import Piece
from .slices import along, everything, within
from .zero_state import NAMES, put_settings

KEYS = {"values": "parameters", "momentum": "momentum", "variance": "variance"}


def pieces(model: Hybrid) -> Iterator[Piece]:
    """What this rank counts, and the steps of all its parameters."""
    for h in model.held():
        if h.counted:
            yield from _of(model, h)
    yield from _steps(model)


def needed(model: Hybrid) -> Iterator[Piece]:
    """What this rank holds."""
    for h in model.held():
        yield from _of(model, h)
    yield from _steps(model)


def groups(model: Hybrid) -> Groups:
    """The settings of AdamW, as one parameter group."""
    return [{"settings": encode(asdict(model.optimizer), "the optimizer's settings"), "names": sorted(names(model))}]


def names(model: Hybrid) -> list[str]:
    """Of this rank's parameters."""
    return list(model.updates())


def put(model: Hybrid, read: dict[str, Tensor], groups: Groups) -> None:
    """Take what was read, by the names of `needed`. Every rank calls it."""
    put_settings(model.optimizer, settings_for(names(model), groups))
    with torch.no_grad():
        for h in model.held():
            for key, name in KEYS.items():
                values = read.get(NAMES[name] + h.place.name)  # None: this weight was never trained
                getattr(h, key).copy_(torch.zeros(h.stop - h.start) if values is None else values)
    model.loaded({n: int(read.get(f"optimizer/step/{n}", torch.zeros(1)).item()) for n in names(model)})


def _of(model: Hybrid, h: Held) -> Iterator[Piece]:
    spec, shape = h.place.spec, h.place.whole
    part = everything(h.place.numel) if spec is None else along(shape, spec.dim, spec.ranges[model.tp.rank])
    slices = within(part, h.start, h.stop)
    for key, name in KEYS.items():
        yield Piece(NAMES[name] + h.place.name, shape, slices, getattr(h, key))


def _steps(model: Hybrid) -> Iterator[Piece]:
    for name, step in model.updates().items():
        yield Piece(f"optimizer/step/{name}", (), everything(1), torch.tensor([float(step)]))
