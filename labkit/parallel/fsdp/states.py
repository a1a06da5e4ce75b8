"""State dicts of a sharded model: whole, as the plain model would write it, or in one part for each rank.

Both fit a world of any size. A whole one names parameters; a part names shards of parameters, each with its place.
Loading is the same for both: every rank copies what it owns of whatever it is given. What does not fit is refused
before anything is written, by all ranks alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from labkit.collectives import all_gather
from labkit.parallel.fsdp.flat_parameter import FlatParameter
from labkit.parallel.refusals.agreement import agree_all
from labkit.wire.errors import RefusedError

if TYPE_CHECKING:
    from labkit.parallel.fsdp.fully_shard import FullyShard

FORMAT = "labkit fsdp 1"


@torch.no_grad()
def whole(model: FullyShard) -> dict[str, Tensor]:
    """The plain model's state dict, with the same keys, on the CPU of every rank. Every rank calls it.

    Sent: one all-gather of the model, in the dtype of its shards. Held at once: what is returned, and one unit.
    """
    found = {name: b.detach().to("cpu", copy=True) for name, b in model.module.named_buffers()}
    for flat_param in model.flat_params:
        found |= _gathered(flat_param, flat_param.shard)
    return {key: found[name] for key, name in model.keys.items()}


@torch.no_grad()
def gradients(model: FullyShard) -> dict[str, Tensor]:
    """The plain model's gradients by the names of its parameters, on the CPU of every rank. Every rank calls it."""
    found: dict[str, Tensor] = {}
    for flat_param in model.flat_params:
        if flat_param.shard.grad is not None:
            found |= _gathered(flat_param, flat_param.shard.grad)
    return found


def _gathered(flat_param: FlatParameter, shard: Tensor) -> dict[str, Tensor]:
    flat = all_gather(shard.detach(), flat_param.sharding.shard_group, flat_param.flat.counts, "ring")
    views = [view.to("cpu", copy=True) for view in flat_param.flat.views(flat)]
    return dict(zip(flat_param.flat.names, views, strict=True))


def load_whole(model: FullyShard, state: Mapping[str, Any]) -> None:
    """Take what this rank owns out of a plain state dict. Sends nothing but the agreement that it fits."""
    shapes = _shapes(model)
    given = {key: tuple(x.shape) for key, x in state.items() if isinstance(x, Tensor)}
    agree_all(model.sharding.groups, _difference({key: shapes[name] for key, name in model.keys.items()}, given))
    buffers = dict(model.module.named_buffers())
    with torch.no_grad():
        for key, name in model.keys.items():
            if name in buffers:
                buffers[name].copy_(state[key])
        named = {name: key for key, name in reversed(list(model.keys.items()))}
        for flat_param in model.flat_params:
            for name in flat_param.flat.names:
                flat_param.take(name, 0, state[named[name]].detach().flatten())


def part(model: FullyShard, optimizer: torch.optim.Optimizer | None = None) -> dict[str, Any]:
    """This rank's shards, copied, with their places in the parameters; nothing is sent. Plain data, for torch.save.

    optimizer: its state of the shards goes along (not its settings, such as the learning rate). With hybrid, the
    ranks of one replica hold it all; the others hold the same again. Raises RefusedError for an optimizer that keeps
    something else than one number for each weight, or one for all: another world could not cut it.
    """
    state = {} if optimizer is None else optimizer.state
    shards = [
        {
            "pieces": [[p.name, p.start, p.stop, p.offset] for p in flat_param.pieces],
            "values": flat_param.shard.detach().to("cpu", copy=True),
            "optimizer": {k: _kept(k, v, flat_param) for k, v in state.get(flat_param.shard, {}).items()},
        }
        for flat_param in model.flat_params
    ]
    buffers = {name: b.detach().to("cpu", copy=True) for name, b in model.module.named_buffers()}
    place = model.sharding.shard_group
    return {"format": FORMAT, "rank": place.rank, "size": place.size, "shapes": _shapes(model), "shards": shards,
            "buffers": buffers, "with_optimizer": optimizer is not None}  # fmt: skip


def load_parts(
    model: FullyShard, parts: Sequence[Mapping[str, Any]], optimizer: torch.optim.Optimizer | None = None
) -> None:
    """Take what this rank owns out of the parts of all ranks that saved, in any order.

    parts: of one shard group, one for each rank. Neither the number of ranks nor the units need be the same as then.
    Open files with `torch.load(..., mmap=True)`, and only what overlaps is read.
    """
    agree_all(model.sharding.groups, _problem(_shapes(model), parts, optimizer is not None))
    for name, b in model.module.named_buffers():
        b.copy_(parts[0]["buffers"][name])
    for flat_param in model.flat_params:
        state: dict[str, Any] = {}
        for saved in (shard for p in parts for shard in p["shards"]):
            for name, start, stop, offset in saved["pieces"]:
                here = slice(offset, offset + stop - start)
                if flat_param.take(name, start, saved["values"][here]) and optimizer is not None:
                    _take_state(flat_param, state, saved, name, start, here)
        if optimizer is not None and state:
            optimizer.state[flat_param.shard] = state


def _take_state(
    flat_param: FlatParameter, state: dict[str, Any], saved: Mapping[str, Any], name: str, start: int, here: slice
) -> None:
    for key, value in saved["optimizer"].items():
        if isinstance(value, Tensor) and value.shape == saved["values"].shape:  # one number for each weight
            mine = state.setdefault(key, torch.zeros_like(flat_param.shard, dtype=value.dtype))
            flat_param.take(name, start, value[here], into=mine)
        else:  # one for all of them, such as the number of steps
            state[key] = _copy(value)


def _kept(key: str, value: Any, flat_param: FlatParameter) -> Any:
    if isinstance(value, Tensor) and value.dim() and value.shape != flat_param.shard.shape:
        raise RefusedError(
            f"the optimizer keeps {key!r} of shape {tuple(value.shape)} for a shard of {flat_param.count} weights, and "
            "what is not one number for each weight cannot be cut for another world: call sharded_state_dict() "
            "without the optimizer, and save its own state_dict() on each rank"
        )
    return _copy(value)


def _copy(value: Any) -> Any:
    return value.detach().to("cpu", copy=True) if isinstance(value, Tensor) else value


def _shapes(model: FullyShard) -> dict[str, tuple[int, ...]]:
    """The shapes of all parameters and buffers, by name."""
    shapes = {name: tuple(b.shape) for name, b in model.module.named_buffers()}
    for flat_param in model.flat_params:
        shapes |= dict(zip(flat_param.flat.names, flat_param.flat.shapes, strict=True))
    return shapes


def _problem(shapes: dict[str, tuple[int, ...]], parts: Sequence[Mapping[str, Any]], trained: bool) -> str | None:
    """Why these parts cannot be loaded into a model of these shapes; None if they can."""
    if not parts or any(not isinstance(p, Mapping) or p.get("format") != FORMAT for p in parts):
        return "load_sharded_state_dict needs what sharded_state_dict returned on each rank that saved, as a list"
    sizes, ranks = sorted({p["size"] for p in parts}), sorted(p["rank"] for p in parts)
    if len(sizes) > 1:
        return f"these parts come from worlds of different sizes: {', '.join(map(str, sizes))}"
    if ranks != list(range(sizes[0])):
        return (f"this state was saved by {sizes[0]} ranks, and the parts given are those of ranks "
                f"{', '.join(map(str, ranks))}: give each of 0 to {sizes[0] - 1} once")  # fmt: skip
    if trained and not all(p["with_optimizer"] for p in parts):
        return "this state was saved without an optimizer's: call sharded_state_dict(optimizer) to save both"
    for p in parts:
        problem = _difference(shapes, {name: tuple(shape) for name, shape in p["shapes"].items()})
        if problem is not None:
            return problem
        for shard in p["shards"]:
            if sum(stop - start for _, start, stop, _ in shard["pieces"]) != len(shard["values"]):
                return f"the part of rank {p['rank']} is damaged: a shard is not as long as its pieces"
    return None


def _difference(mine: Mapping[str, tuple[int, ...]], given: Mapping[str, tuple[int, ...]]) -> str | None:
    for name, shape in mine.items():
        if name not in given:
            return f"this state dict is of another model: it has no {name!r}"
        if given[name] != shape:
            return f"this state dict is of another model: {name!r} is {given[name]}, and {shape} in this model"
    extra = next((name for name in given if name not in mine), None)
    return f"this state dict is of another model: it has {extra!r}, which this model has not" if extra else None
