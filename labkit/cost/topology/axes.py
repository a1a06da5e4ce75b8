"""Where the groups of a mesh axis lie on a machine: how many of a group share a unit, and which wires it needs.

Ranks fill a machine in order, as a `labkit.parallel.Layout` numbers them: the last axis changes from one rank to the
next. An axis of size n and stride s has groups {first, first + s, ..., first + (n - 1) s}. They lie *regularly* if at
each level every unit that a group touches has equally many of it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from labkit.cost.refuse import one_of, whole
from labkit.cost.topology.levels import Level, Topology


@dataclass(frozen=True)
class Axis:
    """The groups along one axis of a mesh that is placed on `topology`.

    groups: how many. members: by level, innermost first, the fewest ranks of a group in a unit that it touches.
    leaving: by level, how many groups have ranks in more than one unit. regular: see above.
    """

    topology: Topology
    name: str
    size: int
    stride: int
    groups: int
    members: tuple[int, ...]
    leaving: tuple[int, ...]
    regular: bool

    @property
    def crosses(self) -> Level | None:
        """The outermost level whose wires some group needs; None for an axis of one rank."""
        needed = [i for i, inside in enumerate((self.groups if self.size > 1 else 0, *self.leaving)) if inside]
        return self.topology.levels[needed[-1]] if needed else None

    @property
    def depth(self) -> int:
        """Levels, from the inside, whose wires the axis needs or passes by: 0 for an axis of one rank."""
        level = self.crosses
        return 0 if level is None else self.topology.index(level.name) + 1

    def leaves(self, level: str) -> int:
        """How many groups have ranks in more than one unit of a level."""
        return self.leaving[self.topology.index(level)]

    def first_group(self) -> range:
        """The group that rank 0 is in."""
        return range(0, self.size * self.stride, self.stride)


def mesh_sizes(sizes: Any) -> dict[str, int]:
    """`sizes` as a dict of ranks by axis, outermost first; a `Layout` has them under that name."""
    found = getattr(sizes, "sizes", sizes)
    if not isinstance(found, Mapping) or not found:
        raise ValueError(f'sizes must be ranks by axis, such as {{"dp": 2, "tp": 4}}, not {sizes!r}')
    whole(**{str(axis): size for axis, size in found.items()})
    return {str(axis): int(size) for axis, size in found.items()}


def place(topology: Topology, sizes: Any) -> dict[str, Axis]:
    """The axes of a mesh on a machine, by name.

    sizes: ranks along each axis, outermost first ({"dp": 16, "tp": 8}), or a `Layout`. The mesh takes the first ranks
    of the machine. Raises ValueError if it has more ranks than there are GPUs.
    """
    known = mesh_sizes(sizes)
    ranks = math.prod(known.values())
    if ranks > topology.gpus:
        written = " x ".join(f"{axis} {size}" for axis, size in known.items())
        raise ValueError(f"{written} = {ranks} ranks, and {topology.name} has {topology.gpus} GPUs")
    placed, stride = {}, ranks
    for name, size in known.items():
        stride //= size
        placed[name] = _axis(topology, name, size, stride, ranks)
    return placed


def axis_of(placed: Mapping[str, Axis], name: str) -> Axis:
    """One axis of a placed mesh; ValueError names the axes that there are."""
    one_of(tuple(placed), axis=name)
    return placed[name]


def _axis(topology: Topology, name: str, size: int, stride: int, ranks: int) -> Axis:
    groups = ranks // size
    members, leaving, regular = [], [], True
    for capacity in topology.capacities:
        fewest, most, out = _in_units(size, stride, ranks, capacity)
        members.append(fewest)
        leaving.append(out)
        regular = regular and fewest == most and out in (0, groups)
    return Axis(topology, name, size, stride, groups, tuple(members), tuple(leaving), regular)


def _in_units(size: int, stride: int, ranks: int, capacity: int) -> tuple[int, int, int]:
    """(fewest, most) ranks of a group in a unit of `capacity` ranks that it touches; how many groups leave a unit."""
    block = size * stride  # ranks from a group's first to where the next block of groups begins
    groups = ranks // size
    if capacity % block == 0:
        return size, size, 0
    if stride >= capacity:  # no two of a group in one unit
        return 1, 1, groups if size > 1 else 0
    if block % capacity == 0 and capacity % stride == 0:
        return capacity // stride, capacity // stride, groups
    # Units cut through blocks: look at each way in which one can lie, and count how often it does.
    period = capacity // math.gcd(block, capacity)
    fewest, most, out = size, 1, 0
    for k in range(min(period, ranks // block)):
        times = len(range(k, ranks // block, period))
        for first in range(k * block, k * block + stride):
            counts = Counter(rank // capacity for rank in range(first, first + block, stride)).values()
            fewest, most = min(fewest, *counts), max(most, *counts)
            out += times * (len(counts) > 1)
    return fewest, most, out
