"""The training state of a model under ZeRO, to keep: whole, or the shard of each rank. And its weights alone.

weights as the plain module's `state_dict()` has them, under its own names: the master's values, and the buffers.
full    {"kind": "full", "parameters": {name: tensor}, "momentum": {...}, "variance": {...}, "steps": {name: int},
         "buffers": {...}}: parameters are the master's values; nothing in it depends on ranks, units or stage. Under a
         torch optimizer its own names ("momentum_buffer") stand in place of momentum and variance.
shard   {"kind": "shard", "rank": r, "size": N, "units": [{"shapes": {name: shape}, "parameters": this rank's shard,
         "momentum": ..., "variance": ...}, ...], "steps": ..., "buffers": ...}.

The shards of all ranks, as a list, can be loaded at another world size and into another stage. Frozen parameters have
a value only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from labkit import collectives
from labkit.parallel.flat import Flat

from .unit import ZeroUnit

if TYPE_CHECKING:
    from .inspect import Inspect

BESIDE = {"kind", "rank", "size", "units", "shapes", "steps", "buffers"}  # in a state dict, and no key of tensors


def held(unit: ZeroUnit) -> dict[str, Tensor]:
    """What this rank owns of a unit, by key."""
    if unit.state is None:
        return {"parameters": unit.shard}
    return unit.state.named()


def full(model: Inspect) -> dict[str, Any]:
    """All of it, gathered a unit at a time."""
    state: dict[str, Any] = {"kind": "full", **_common(model)}
    for unit in model.units:
        for key, own in held(unit).items():
            state.setdefault(key, {}).update(_whole(model, unit, own))
    return state


def weights(model: Inspect) -> dict[str, Tensor]:
    """What the plain module's `state_dict()` would return, on the device of this rank."""
    found = {name: b.clone() for name, b in model.module.named_buffers()}
    for unit in model.units:
        found |= _whole(model, unit, unit.shard if unit.state is None else unit.state.tensors()[0])
    return {key: found[name] for key, name in _keys(model).items()}


def not_weights(model: Inspect, state: Mapping[str, Any]) -> str | None:
    """Why `state` is no state dict of the plain module, as a sentence; None if it is one."""
    shapes: dict[str, tuple[int, ...]] = {name: tuple(b.shape) for name, b in model.module.named_buffers()}
    for unit in model.units:
        shapes |= dict(zip(unit.names, unit.flat.shapes, strict=True))
    expected = {key: shapes[name] for key, name in _keys(model).items()}
    given = {key: tuple(x.shape) for key, x in state.items() if isinstance(x, Tensor)}
    wrong = next((key for key in (*expected, *given) if expected.get(key) != given.get(key)), None)
    if wrong is None:
        return None
    return (f"this state dict is of another model: {wrong!r} is {given.get(wrong, 'not there')} in it, and "
            f"{expected.get(wrong, 'not there')} in this one. What training_state() has returned goes to "
            "load_training_state()")  # fmt: skip


def load_weights(model: Inspect, state: Mapping[str, Tensor]) -> None:
    """Copy what this rank owns out of a state dict of the plain module, in which there was nothing wrong."""
    keys = {name: key for key, name in reversed(_keys(model).items())}
    for unit in model.units:
        into = unit.shard if unit.state is None else unit.state.tensors()[0]
        for index, begin, start, length in unit.owned:
            into[start : start + length].copy_(state[keys[unit.names[index]]].reshape(-1)[begin : begin + length])
        if unit.state is not None:
            unit.state.publish(unit.shard)
    for name, buffer in model.module.named_buffers():
        if name in keys:
            buffer.copy_(state[keys[name]])


def _keys(model: Inspect) -> dict[str, str]:
    """Names in the plain state dict, tied ones included -> the first name of what is behind it."""
    named = (*model.module.named_parameters(), *model.module.named_buffers())
    first = {id(x): name for name, x in named}
    return {key: first[id(x)] for key, x in model.module.state_dict(keep_vars=True).items() if id(x) in first}


def _whole(model: Inspect, unit: ZeroUnit, own: Tensor) -> dict[str, Tensor]:
    own = own.to(unit.shard.device)
    whole = collectives.all_gather(own, unit.group, unit.flat.counts, algorithm="ring")
    return dict(zip(unit.names, unit.flat.views(whole), strict=True))


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
                        f"once: load_training_state([shard of rank 0, ..., shard of rank {size - 1}])")  # fmt: skip
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
                    return (f"the state dict has no {key} of {name!r}: it is of another model or optimizer, or the "
                            "weight was frozen")  # fmt: skip
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
    named = {unit: held(unit) for unit in model.units}
    for key, name, tensor in entries(state):
        unit, index = places[name]
        into, values = named[unit].get(key), tensor.reshape(-1)
        for i, begin, start, length in unit.owned if into is not None else ():
            if i == index and into is not None:
                into[start : start + length].copy_(values[begin : begin + length])
    for unit in model.units:
        unit.steps = [first["steps"][name] for name in unit.names]
        if unit.state is not None:
            unit.state.restore(named[unit], unit.steps)
            unit.state.publish(unit.shard)
    for name, buffer in model.module.named_buffers():
        buffer.copy_(first["buffers"][name])


def entries(state: Any) -> Iterator[tuple[str, str, Tensor]]:
    """(key, name, whole tensor) of everything in a full state dict or in a list of all shards."""
    shards = list(state) if isinstance(state, list | tuple) else [state]
    if shards[0]["kind"] == "full":
        for key in shards[0].keys() - BESIDE:
            yield from ((key, name, x) for name, x in shards[0][key].items())
        return
    shards.sort(key=lambda one: one["rank"])
    for parts in zip(*(one["units"] for one in shards), strict=True):
        flat = Flat(parts[0]["shapes"].items())
        for key in parts[0].keys() - BESIDE:
            whole = torch.cat([part[key] for part in parts])
            yield from ((key, name, x) for name, x in zip(flat.names, flat.views(whole), strict=True))


def _common(model: Inspect) -> dict[str, Any]:
    steps = {name: n for unit in model.units for name, n in zip(unit.names, unit.steps, strict=True)}
    return {"steps": steps, "buffers": {name: b.clone() for name, b in model.module.named_buffers()}}
