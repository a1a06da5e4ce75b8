"""What a rank holds of a model's parameters, by the names of the plain model: one answer for every strategy.

A plain module, `DataParallel`, tensor-parallel layers, stages of a pipeline and `FullyShard` differ in this file only.
ZeRO and `Hybrid` keep the optimizer's state themselves: `zero_state.py`, `hybrid_state.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, is_dataclass
from typing import Any

from torch import Tensor, nn

from labkit.parallel.data.wrapper import DataParallel
from labkit.parallel.fsdp.fully_shard import FullyShard
from labkit.parallel.hybrid.hybrid import Hybrid
from labkit.parallel.pipeline.running.pipeline import Pipeline
from labkit.parallel.zero.base import ZeRO
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group

from .slices import StridedSlice, along, everything, within


@dataclass(frozen=True)
class Holding:
    """Elements `begin` to `end` of the flattened `parameter` are the slices of the whole tensor `name`."""

    name: str
    shape: tuple[int, ...]
    slices: tuple[StridedSlice, ...]
    parameter: nn.Parameter
    begin: int
    end: int

    def of(self, like: Tensor) -> Tensor:
        """These elements of a tensor shaped like the parameter, 1-D: a view where it is contiguous."""
        return like.detach().reshape(-1)[self.begin : self.end]


def modules_of(model: Any) -> list[nn.Module]:
    """The modules behind a model: one, or the stages of a pipeline on this rank."""
    if isinstance(model, Pipeline):
        return list(model.modules)
    if isinstance(model, Hybrid):
        return [part.model for part in model.parts]
    if isinstance(model, nn.Module):
        return [model]
    if isinstance(model, Sequence) and model and all(isinstance(m, nn.Module) for m in model):
        return list(model)
    raise RefusedError(
        f"model is a {type(model).__name__}: pass a module, a Pipeline, or the stages of this rank as a list"
    )


def holdings(model: Any) -> list[Holding]:
    """What this rank holds of the parameters; each parameter appears once, under its first name. Nothing is sent."""
    found: dict[tuple[str, int], Holding] = {}
    for module in modules_of(model):
        for holding in _sharded(module) if isinstance(module, FullyShard) else _direct(module):
            found.setdefault((holding.name, holding.begin), holding)
    return list(found.values())


def buffers(model: Any) -> list[tuple[str, Tensor]]:
    """(name, buffer) of the buffers that a state dict has."""
    found: dict[str, Tensor] = {}
    for module in modules_of(model):
        inner = _inner(module)
        seen = set[int]()
        for prefix, part in inner.named_modules():
            for name, b in part._buffers.items():
                if b is not None and name not in part._non_persistent_buffers_set and id(b) not in seen:
                    seen.add(id(b))
                    found[f"{prefix}.{name}" if prefix else name] = b
    return list(found.items())


def description(model: Any) -> str:
    """What a model says of itself beyond names and shapes (heads, for one): the repr of its `config`, or ""."""
    for module in modules_of(model):
        config = getattr(_inner(module), "config", None)
        if is_dataclass(config):  # the repr of anything else may change from run to run
            return repr(config)
    return ""


def stream_of(model: Any, group: Group) -> str:
    """The name of this rank's stream of random numbers: the first rank of those whose numbers must be the same."""
    for module in modules_of(model):
        for layer in _inner(module).modules():
            inside = getattr(layer, "group", None)
            if getattr(layer, "shard_specs", None) and isinstance(inside, Group):
                return str(min(r for r, world in enumerate(group.global_ranks) if world in inside.global_ranks))
    return str(group.rank)


def _inner(module: nn.Module) -> nn.Module:
    return module.module if isinstance(module, DataParallel | FullyShard | ZeRO) else module


def _sharded(model: FullyShard) -> Iterator[Holding]:
    for flat_param in model.flat_params:
        owned = {one.name: one for one in flat_param.owned}
        for piece in flat_param.pieces:
            layer, attribute = owned[piece.name].places[0]
            shape, held = _cut(layer, attribute, owned[piece.name].tensor)
            stop = piece.offset + piece.stop - piece.start
            yield Holding(
                piece.name, shape, within(held, piece.start, piece.stop), flat_param.shard, piece.offset, stop
            )


def _direct(module: nn.Module) -> Iterator[Holding]:
    module = _inner(module)
    other = {id(p): name for name, p in getattr(module, "tied", {}).items()}  # a stage calls it as the first stage does
    seen = set[int]()
    for prefix, layer in module.named_modules():
        for name, p in layer._parameters.items():
            if p is not None and id(p) not in seen:
                seen.add(id(p))
                whole = other.get(id(p)) or (f"{prefix}.{name}" if prefix else name)
                shape, slices = _cut(layer, name, p)
                yield Holding(whole, shape, slices, p, 0, p.numel())


def _cut(layer: nn.Module, name: str, p: Tensor) -> tuple[tuple[int, ...], tuple[StridedSlice, ...]]:
    """Whole shape of a layer's parameter, and what is held of it: layers say in `shard_specs` how they are cut."""
    specs: Any = getattr(layer, "shard_specs", {})
    spec, shape = specs.get(name), list(p.shape)
    if spec is None:
        return tuple(shape), everything(p.numel())
    shape[spec.dim] = sum(spec.sizes)
    group: Any = layer.group
    return tuple(shape), along(shape, spec.dim, spec.ranges[group.rank])
