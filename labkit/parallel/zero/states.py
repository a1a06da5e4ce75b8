"""The training state of a model under ZeRO, to keep: whole, or the shard of each rank.

full    {"kind": "full", "parameters": {name: tensor}, "momentum": {...}, "variance": {...}, "steps": {name: int},
         "buffers": {...}}: parameters are the master's values; nothing in it depends on ranks, units or stage.
shard   {"kind": "shard", "rank": r, "size": N, "units": [{"shapes": {name: shape}, "parameters": this rank's stretch,
         "momentum": ..., "variance": ...}, ...], "steps": ..., "buffers": ...}.

The shards of all ranks, as a list, can be loaded at another world size and into another stage. Frozen parameters have
a value only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from labkit import collectives
from labkit.parallel.flat import Flat

from .unit import Unit

if TYPE_CHECKING:
    from .inspect import Inspect

KEYS = ("parameters", "momentum", "variance")


def held(unit: Unit) -> dict[str, Tensor]:
    """What this rank owns of a unit, by key."""
    if unit.state is None:
        return {"parameters": unit.stretch}
    return dict(zip(KEYS, unit.state.tensors(), strict=True))


def full(model: Inspect) -> dict[str, Any]:
    """All of it, gathered a unit at a time."""
    state: dict[str, Any] = {"kind": "full", **{key: {} for key in KEYS}, **_common(model)}
    for unit in model.units:
        for key, own in held(unit).items():
            own = own.to(unit.stretch.device)
            whole = collectives.all_gather(own, model.group, unit.flat.counts, algorithm="ring")
            state[key].update(zip(unit.names, unit.flat.views(whole), strict=True))
    return state


def shard(model: Inspect) -> dict[str, Any]:
    """What this rank owns, copied."""
    units = [
        {"shapes": dict(zip(u.flat.names, u.flat.shapes, strict=True))} | {k: x.clone() for k, x in held(u).items()}
        for u in model.units
    ]
    return {"kind": "shard", "rank": model.group.rank, "size": model.group.size, "units": units, **_common(model)}


def problem(model: Inspect, state: Any) -> str | None:
    """Why `state` cannot be loaded into `model`, as a sentence with a remedy; None if it can."""
    try:
        shards = list(state) if isinstance(state, list | tuple) else [state]
        kinds = {one["kind"] for one in shards}
        if kinds == {"shard"}:
            size = shards[0]["size"]
            ranks = sorted(one["rank"] for one in shards)
            if any(one["size"] != size for one in shards) or ranks != list(range(size)):
                return (f"these are shards of ranks {ranks} of a world of {size}, and all of them are needed, each "
                        f"once: load_state_dict([shard of rank 0, ..., shard of rank {size - 1}])")  # fmt: skip
        elif kinds != {"full"} or len(shards) != 1:
            return "pass one full state dict, or a list of the shards of all ranks"
        found = {(key, name): tuple(x.shape) for key, name, x in entries(state)}
        steps, buffers = shards[0]["steps"], shards[0]["buffers"]
    except (KeyError, TypeError, AttributeError, IndexError, RuntimeError) as error:
        return f"this is no state dict of ZeRO, or a part of it is missing ({type(error).__name__}: {error})"
    for unit in model.units:
        for name, shape in zip(unit.flat.names, unit.flat.shapes, strict=True):
            for key in held(unit):
                if (key, name) not in found:
                    return f"the state dict has no {key} of {name!r}: it is of another model, or the weight was frozen"
                if found[key, name] != shape:
                    return (f"{name!r} has shape {list(found[key, name])} in the state dict and {list(shape)} in the "
                            "model: build the model that was saved")  # fmt: skip
            if name not in steps:
                return f"the state dict has no step number of {name!r}"
    known = {name for unit in model.units for name in unit.names}
    extra = sorted(name for key, name in found if key == "parameters" and name not in known)
    if extra:
        return f"the state dict has {extra[0]!r}, which the model has not: build the model that was saved"
    missing = sorted(set(dict(model.module.named_buffers())) - set(buffers))
    return f"the state dict has no buffer {missing[0]!r}" if missing else None


def load(model: Inspect, state: Any) -> None:
    """Copy what this rank owns out of `state`, in which there was no `problem`."""
    first = state[0] if isinstance(state, list | tuple) else state  # of shards: these parts are the same in all
    places = {name: (unit, index) for unit in model.units for index, name in enumerate(unit.names)}
    for key, name, tensor in entries(state):
        unit, index = places[name]
        into, values = held(unit).get(key), tensor.reshape(-1)
        for i, begin, start, length in unit.owned if into is not None else ():
            if i == index and into is not None:
                into[start : start + length].copy_(values[begin : begin + length])
    for unit in model.units:
        unit.steps = [first["steps"][name] for name in unit.names]
        if unit.state is not None:
            unit.state.publish(unit.stretch)
    for name, buffer in model.module.named_buffers():
        buffer.copy_(first["buffers"][name])


def entries(state: Any) -> Iterator[tuple[str, str, Tensor]]:
    """(key, name, whole tensor) of everything in a full state dict or in a list of all shards."""
    shards = list(state) if isinstance(state, list | tuple) else [state]
    if shards[0]["kind"] == "full":
        for key in KEYS:
            yield from ((key, name, x) for name, x in shards[0][key].items())
        return
    shards.sort(key=lambda one: one["rank"])
    for parts in zip(*(one["units"] for one in shards), strict=True):
        flat = Flat(parts[0]["shapes"].items())
        for key in parts[0].keys() & set(KEYS):
            whole = torch.cat([part[key] for part in parts])
            yield from ((key, name, x) for name, x in zip(flat.names, flat.views(whole), strict=True))


def _common(model: Inspect) -> dict[str, Any]:
    steps = {name: n for unit in model.units for name, n in zip(unit.names, unit.steps, strict=True)}
    return {"steps": steps, "buffers": {name: b.clone() for name, b in model.module.named_buffers()}}
