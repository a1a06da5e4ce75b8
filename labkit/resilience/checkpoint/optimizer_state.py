"""The state of torch's optimizers by the names of the plain model, so that another cut of the model can take it up.

What an optimizer keeps for a parameter is of two kinds. A tensor shaped like the parameter (momentum, variance) is cut
like it. Anything else (a number of steps) belongs to the whole parameter, and every rank that has some of it keeps it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from labkit.wire.errors import RefusedError

from .encode import decode, encode
from .holdings import Holding
from .pieces import Piece
from .slices import everything

PREFIX = "optimizer/"
Groups = list[dict[str, Any]]  # of {"settings": {...}, "names": [...]}


def optimizer_pieces(optimizers: Sequence[Optimizer], held: Sequence[Holding]) -> Iterator[Piece]:
    """The tensors that the optimizers keep for what this rank holds."""
    for holding in held:
        for key, value in _state(optimizers, holding.parameter).items():
            if not isinstance(value, Tensor):
                continue
            name = f"{PREFIX}{key}/{holding.name}"
            if shaped(key, value.shape, holding.parameter.shape):
                yield Piece(name, holding.shape, holding.slices, holding.of(value))
            elif value.numel() == 1 or holding.parameter.numel() == _numel(holding.shape):
                flat = value.detach().reshape(-1)
                yield Piece(name, tuple(value.shape), everything(flat.numel()), flat)
            else:
                raise RefusedError(
                    f"the optimizer keeps {key!r} of shape {list(value.shape)} for {holding.name!r}, of "
                    "which this rank holds a part: only what is shaped like the parameter, or is one number, "
                    "can be cut with it. Use an optimizer such as AdamW or SGD"
                )


def shaped(key: str, shape: Sequence[int], like: Sequence[int]) -> bool:
    """Whether a tensor of the state is cut with its parameter: it has its shape, and counts no steps."""
    return key != "step" and tuple(shape) == tuple(like)


def optimizer_groups(optimizers: Sequence[Optimizer], held: Sequence[Holding]) -> Groups:
    """Settings of each parameter group, with the names of its parameters on this rank."""
    names: dict[int, list[str]] = {}
    for holding in held:
        names.setdefault(id(holding.parameter), []).append(holding.name)
    found = []
    for group in (g for optimizer in optimizers for g in optimizer.param_groups):
        settings = {k: v for k, v in group.items() if k != "params"}
        mine = sorted({name for p in group["params"] for name in names.get(id(p), [])})
        found.append({"settings": encode(settings, "the settings of a parameter group"), "names": mine})
    return found


def merge_groups(of_ranks: Sequence[Groups]) -> Groups:
    """The groups of all ranks: those with the same settings are one."""
    merged: dict[str, dict[str, Any]] = {}
    for group in (g for groups in of_ranks for g in groups):
        one = merged.setdefault(json.dumps(group["settings"], sort_keys=True), {**group, "names": set()})
        one["names"] |= set(group["names"])
    return [{**g, "names": sorted(g["names"])} for g in merged.values()]


def numbers(optimizers: Sequence[Optimizer], held: Sequence[Holding]) -> dict[str, dict[str, Any]]:
    """What an optimizer keeps for a parameter and is no tensor, by name and key."""
    found: dict[str, dict[str, Any]] = {}
    for holding in held:
        kept = {k: v for k, v in _state(optimizers, holding.parameter).items() if not isinstance(v, Tensor)}
        if kept:
            found[holding.name] = encode(kept, f"the optimizer's state of {holding.name!r}")
    return found


def settings_for(names: Sequence[str], saved: Groups) -> dict[str, Any]:
    """The settings that these parameters were saved with. Raises RefusedError where they have not the same ones."""
    fitting = [g for g in saved if set(g["names"]) & set(names)] if names else saved[:1]
    unknown = set(names) - {name for g in fitting for name in g["names"]}
    if unknown:
        raise RefusedError(f"the checkpoint has no optimizer settings for {min(unknown)!r}")
    if len(fitting) > 1:
        pairs = [(min(set(g["names"]) & set(names)), g["settings"]) for g in fitting[:2]]
        key = next(k for k in pairs[0][1] if pairs[0][1][k] != pairs[1][1].get(k))
        (one, a), (other, b) = pairs
        raise RefusedError(
            f"one parameter group has {one!r} and {other!r}, which were saved with different settings "
            f"({key}: {decode(a[key])}, {decode(b.get(key))}): make the groups that were saved"
        )
    return dict(decode(fitting[0]["settings"])) if fitting else {}


def put_state(
    optimizers: Sequence[Optimizer], held: Sequence[Holding], tensors: Mapping[str, Mapping[str, tuple[bool, Tensor]]],
    plain: Mapping[str, Mapping[str, Any]],
) -> None:  # fmt: skip
    """Give the optimizers the state that was read.

    tensors: by name, key -> (whether it is cut with the parameter, values).
    """
    fresh: dict[int, dict[str, Any]] = {}
    for holding in held:
        p = holding.parameter
        state = fresh.setdefault(id(p), {})
        for key, value in plain.get(holding.name, {}).items():
            state[key] = decode(value)
        for key, (alike, values) in tensors.get(holding.name, {}).items():
            if alike:
                mine = state.setdefault(key, torch.zeros_like(p, dtype=values.dtype, requires_grad=False))
                put(mine, holding, values)
            else:
                state[key] = values.clone().to(_device_of(optimizers, p))
    for optimizer in optimizers:
        for p in (p for group in optimizer.param_groups for p in group["params"]):
            optimizer.state.pop(p, None)
            if fresh.get(id(p)):
                optimizer.state[p] = fresh[id(p)]


@torch.no_grad()
def put(into: Tensor, holding: Holding, values: Tensor) -> None:
    """Write `values` to the place of the holding in a tensor shaped like its parameter."""
    if into.is_contiguous():
        into.detach().view(-1)[holding.begin : holding.end].copy_(values)
    else:
        flat = into.detach().reshape(-1)
        flat[holding.begin : holding.end].copy_(values)
        into.detach().copy_(flat.view(into.shape))


def _state(optimizers: Sequence[Optimizer], p: Tensor) -> Mapping[str, Any]:
    return next((o.state[p] for o in optimizers if p in o.state), {})


def _device_of(optimizers: Sequence[Optimizer], p: Tensor) -> torch.device:
    """Where an optimizer wants its number of steps: on the host, unless it counts on the device."""
    for group in (g for o in optimizers for g in o.param_groups):
        if any(q is p for q in group["params"]):
            return p.device if group.get("capturable") or group.get("fused") else torch.device("cpu")
    return torch.device("cpu")


def _numel(shape: Sequence[int]) -> int:
    return int(torch.Size(shape).numel())
