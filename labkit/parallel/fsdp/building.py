"""From a plain module to units and flat parameters, alike on every rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from labkit.parallel.fsdp.flat_parameter import FlatParameter
from labkit.parallel.fsdp.schedule import Unit
from labkit.parallel.fsdp.strategies import Sharding
from labkit.parallel.fsdp.units import Choice, Owned, choose_units, owned_by
from labkit.parallel.groups import Grouped
from labkit.parallel.refusals.agreement import check_all
from labkit.parallel.refusals.gradients import AVERAGES, AVERAGES_SAID
from labkit.parallel.refusals.same_model import check_same, checksum
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group

Elsewhere = Callable[[str], tuple[Group, Group] | None] | None


@dataclass
class Built:
    """units: the root first. keys: of the plain state dict -> name of the parameter or buffer."""

    units: list[Unit]
    keys: dict[str, str]


def build(
    module: nn.Module, choice: Choice, sharding: Sharding, dtype: torch.dtype | None, lent: dict[int, FlatParameter],
    options: str, groups: Grouped, elsewhere: Elsewhere = None,
) -> Built:  # fmt: skip
    """Cut the parameters of `module`, and take them out of it.

    Sends a checksum of the model: 16 bytes a rank, and more only if ranks differ. Values are read parameter by
    parameter: a module made by `deferred` is never whole.
    """
    modules = choose_units(module, choice)
    table = owned_by(module, modules)
    recipe = module.__dict__.pop("recipe", None)
    if recipe is None:
        _refuse_meta(module)
    words = {"options": options} | _describe(module, table, recipe is not None) | groups.words
    shardings = {o.name: _sharding_of(o.name, sharding, elsewhere) for owned in table.values() for o in owned}
    _check_same(words, sharding, shardings)

    keys = _keys(module)
    units = [
        Unit(name, unit, _flat_params(name, table[name], shardings, dtype, lent, groups))
        for name, unit in modules.items()
    ]
    home = {
        id(o.tensor): (flat_param, o.name)
        for unit in units
        for flat_param in unit.flat_params
        for o in flat_param.owned
    }

    def deliver(values: Tensor, of: Tensor) -> None:
        flat_param, name = home[id(of)]
        flat_param.take(name, 0, values.detach().flatten())

    if recipe is not None:
        recipe.replay(deliver, module, sharding.shard_group.device)
    else:
        for unit in units:
            for flat_param in unit.flat_params:
                for o in flat_param.owned:
                    deliver(o.tensor, o.tensor)
        for m in module.modules():
            for name, b in m._buffers.items():
                m._buffers[name] = b.to(sharding.shard_group.device) if b is not None else None
    for unit in units:
        _swap(unit)
    return Built(units, keys)


def _flat_params(
    name: str, owned: list[Owned], shardings: dict[str, Sharding], dtype: Any, lent: dict[int, FlatParameter],
    groups: Grouped,
) -> list[FlatParameter]:  # fmt: skip
    kinds: dict[tuple[torch.dtype, bool, Sharding, int], list[Owned]] = {}
    for o in owned:
        kind = (o.tensor.dtype, o.tensor.requires_grad, shardings[o.name], groups.of[id(o.tensor)])
        kinds.setdefault(kind, []).append(o)
    return [FlatParameter(name, alike, sharding, dtype, lent, n) for (_, _, sharding, n), alike in kinds.items()]


def _sharding_of(name: str, sharding: Sharding, elsewhere: Elsewhere) -> Sharding:
    found = None if elsewhere is None else elsewhere(name)
    return sharding if found is None else replace(sharding, shard_group=found[0], replicate_group=found[1])


def _check_same(words: dict[str, str], sharding: Sharding, shardings: dict[str, Sharding]) -> None:
    """`words` are the same on all ranks; those of a parameter with other holders on those."""
    apart = {f"{what} {name!r}": one for name, one in shardings.items() if one != sharding
             for what in ("parameter", "group of")}  # fmt: skip
    everywhere = {key: text for key, text in words.items() if key not in apart}
    groups = [(group, everywhere) for group in sharding.groups]
    for other in dict.fromkeys(apart.values()):
        some = {key: text for key, text in words.items() if apart.get(key) == other}
        groups += [(group, some) for group in other.groups]
    said = {id(group): text for group, text in reversed(groups)}
    check_all([group for group, _ in groups], lambda group: check_same(said[id(group)], group))


def _swap(unit: Unit) -> None:
    """Take the parameters out of the unit's modules, and register the shards in their place."""
    for flat_param in unit.flat_params:
        for o in flat_param.owned:
            for module, attribute in o.places:
                del module._parameters[attribute]
            o.tensor = nn.Parameter(o.tensor.detach().to("meta"), requires_grad=False)  # only its shape is left
    for i, flat_param in enumerate(unit.flat_params):
        name = f"shard_{i}" if i else "shard"
        if hasattr(unit.module, name):
            raise RefusedError(
                f"unit {unit.name!r} has an attribute {name!r} of its own, where its shard goes: rename it"
            )
        unit.module.register_parameter(name, flat_param.shard)


def _keys(module: nn.Module) -> dict[str, str]:
    """Names in the plain state dict, tied ones included -> the first name of what is behind it."""
    first = {id(x): name for name, x in (*module.named_parameters(), *module.named_buffers())}
    return {key: first[id(x)] for key, x in module.state_dict(keep_vars=True).items() if id(x) in first}


def _describe(module: nn.Module, table: dict[str, list[Owned]], deferred: bool) -> dict[str, str]:
    words = {}
    for unit, owned in table.items():
        for o in owned:
            words[f"parameter {o.name!r}"] = f"in unit {unit!r}, " + _words(o.tensor, deferred)
    for name, b in module.named_buffers():
        words[f"buffer {name!r}"] = _words(b, deferred)
    return words


def _words(x: Tensor, deferred: bool) -> str:
    values = "" if deferred else f", values with checksum {checksum(x)} (the same seed on every rank?)"
    kind = ", trained" if x.requires_grad else ", not trained"
    return f"{tuple(x.shape)} {str(x.dtype).removeprefix('torch.')}{kind}{values}"


def _refuse_meta(module: nn.Module) -> None:
    for name, x in (*module.named_parameters(), *module.named_buffers()):
        if x.is_meta:
            raise RefusedError(
                f"{name!r} is on the meta device and nobody knows its values: build the model with "
                "labkit.parallel.deferred(GPT, config), which remembers how they are drawn"
            )


def check_options(module: Any, prefetch: Any, average: Any, *dtypes: Any) -> None:
    """Refuse what no rank could work with."""
    if not isinstance(module, nn.Module):
        raise RefusedError(f"FullyShard wraps a module, not {type(module).__name__}")
    if any(hasattr(m, "sharding") and hasattr(m, "units") for m in module.modules()):
        raise RefusedError("this module is sharded already: wrap it once, and name its parts with units=")
    if next(module.parameters(), None) is None:
        raise RefusedError("this module has no parameters: there is nothing to shard")
    if isinstance(prefetch, bool) or not isinstance(prefetch, int) or prefetch < 0:
        raise RefusedError(f"prefetch={prefetch!r}: the number of units to fetch ahead, 0 or more")
    if average not in (*AVERAGES, "sum"):
        raise RefusedError(f"average={average!r}: {AVERAGES_SAID}, or 'sum' (the losses are shares of one)")
    for name, dtype in zip(("param_dtype", "reduce_dtype", "output_dtype"), dtypes, strict=True):
        if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise RefusedError(f"{name}={dtype!r}: a floating-point dtype such as torch.bfloat16, or None")
