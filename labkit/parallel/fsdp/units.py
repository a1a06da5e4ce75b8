"""Which modules are units, and which parameters each of them holds.

A unit is what is gathered, computed and let go together. Small units keep little in memory at once; large ones send
few messages. One block of a transformer is the usual measure. Whatever belongs to no unit makes up the last one, the
root, which stays gathered while the others come and go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from torch import nn

from labkit.wire.errors import RefusedError

Choice = Iterable[str] | Callable[[str, nn.Module], bool] | None


@dataclass
class Owned:
    """A parameter: its first name, and every place where a module holds it (several if it is tied)."""

    name: str
    tensor: nn.Parameter
    places: list[tuple[nn.Module, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)  # the name of the module at each place


def choose_units(module: nn.Module, units: Choice) -> dict[str, nn.Module]:
    """The unit modules by name, the root ("") first.

    units: names, in which * stands for anything ("blocks.*" takes each block and what is in it, not only blocks);
    or a function of name and module; or None: each member of every ModuleList and Sequential that has parameters,
    and none inside another.
    """
    named = {name: m for name, m in module.named_modules() if name}
    if units is None:
        chosen = _members(module, named)
    elif callable(units):
        chosen = [name for name, m in named.items() if units(name, m)]
    else:
        patterns = [units] if isinstance(units, str) else list(units)
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in named):
                raise RefusedError(
                    f"units={patterns!r}: this module has no submodule {pattern!r}. It has "
                    f"{', '.join(list(named)[:8])}{' ...' if len(named) > 8 else ''}"
                )
        chosen = [name for name in named if any(fnmatchcase(name, p) for p in patterns)]
    for name in chosen:
        if isinstance(named[name], nn.ModuleList | nn.ModuleDict | nn.ParameterList | nn.ParameterDict):
            raise RefusedError(
                f"units: {name!r} is a {type(named[name]).__name__}, which has no forward of its own: name its members"
            )
    return {"": module} | {name: named[name] for name in chosen}


def _members(module: nn.Module, named: dict[str, nn.Module]) -> list[str]:
    lists = {name for name, m in ({"": module} | named).items() if isinstance(m, nn.ModuleList | nn.Sequential)}
    found: list[str] = []
    for name, m in named.items():
        member = name.rpartition(".")[0] in lists
        inside = any(name.startswith(f"{unit}.") for unit in found)
        if member and name not in lists and not inside and next(m.parameters(), None) is not None:
            found.append(name)
    return found


def owned_by(module: nn.Module, units: Iterable[str]) -> dict[str, list[Owned]]:
    """The parameters of each unit, by its name. Each parameter belongs to exactly one.

    It is the innermost unit that holds all its places. So a weight that an embedding and a later layer share belongs
    to the unit around both: gathered before the first use, kept until after the last, its gradient the sum of both.
    """
    found: dict[int, Owned] = {}
    for path, m in module.named_modules():
        for attribute, p in m._parameters.items():
            if p is not None:
                name = f"{path}.{attribute}" if path else attribute
                owned = found.setdefault(id(p), Owned(name, p))
                owned.places.append((m, attribute))
                owned.paths.append(path)
    units = list(units)
    table: dict[str, list[Owned]] = {unit: [] for unit in units}
    for owned in found.values():
        around = [u for u in units if all(_inside(path, u) for path in owned.paths)]
        table[max(around, key=len)].append(owned)
    return table


def _inside(path: str, unit: str) -> bool:
    return not unit or path == unit or path.startswith(f"{unit}.")
