"""Where the ranks of a mesh lie: rank <-> coordinates, the groups of each axis, the nodes. Numbers only, no messages.

With sizes {"dp": 2, "pp": 2, "tp": 2} rank 5 has the coordinates dp 1, pp 0, tp 1. The last axis changes from each
rank to the next, the first one slowest: so the ranks of the last axis are neighbours, and share a node if any do.
(Narayanan et al. 2021, "Efficient large-scale language model training on GPU clusters", section 3.2, put tensor
parallelism there: it sends most.)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

from labkit import pictures
from labkit.parallel.fitting import checked_sizes
from labkit.wire.errors import RefusedError


class Layout:
    """Named axes over the ranks 0 to `size` - 1.

    sizes: ranks along each axis, outermost first, such as {"dp": 2, "tp": 4}; their product is `size`.
    """

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._sizes = checked_sizes(sizes)
        self.size = math.prod(self._sizes.values())

    @property
    def sizes(self) -> dict[str, int]:
        """Ranks along each axis, outermost first."""
        return dict(self._sizes)

    @property
    def axes(self) -> tuple[str, ...]:
        """The names, outermost first."""
        return tuple(self._sizes)

    def __repr__(self) -> str:
        return f"Layout({', '.join(f'{axis}={size}' for axis, size in self._sizes.items())})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and list(self._sizes.items()) == list(other._sizes.items())

    def __hash__(self) -> int:
        return hash(tuple(self._sizes.items()))

    def stride(self, axis: str) -> int:
        """How far apart, in ranks, neighbours along `axis` are: the product of the sizes of the axes after it."""
        (axis,) = self._known((axis,))
        return math.prod(self._sizes[later] for later in self.axes[self.axes.index(axis) + 1 :])

    def coordinates(self, rank: int) -> dict[str, int]:
        """The place of `rank` along each axis."""
        self._in_range("rank", rank, self.size)
        return {axis: rank // self.stride(axis) % size for axis, size in self._sizes.items()}

    def rank(self, **coordinates: int) -> int:
        """The rank with these coordinates, one for each axis: `layout.rank(dp=1, pp=0, tp=1)`."""
        self._known(coordinates)
        missing = [axis for axis in self.axes if axis not in coordinates]
        if missing:
            raise RefusedError(f"{self!r}.rank(...) needs a coordinate for each axis: {', '.join(missing)} missing")
        for axis, place in coordinates.items():
            self._in_range(axis, place, self._sizes[axis])
        return sum(place * self.stride(axis) for axis, place in coordinates.items())

    def groups(self, *axes: str) -> list[list[int]]:
        """The groups along `axes`: ranks in one of them differ in these axes only. In order of their first ranks.

        With several axes the one named first is the outermost in the order of the ranks of a group.
        """
        others = [axis for axis in self.axes if axis not in self._known(axes)]
        return [self._from(sum(first), axes) for first in itertools.product(*map(self._steps, others))]

    def group_of(self, rank: int, *axes: str) -> list[int]:
        """The group along `axes` that `rank` is in."""
        place = self.coordinates(rank)
        return self._from(rank - sum(place[axis] * self.stride(axis) for axis in self._known(axes)), axes)

    # -- nodes -------------------------------------------------------------------------------------------------

    def node_of(self, rank: int, ranks_per_node: int) -> int:
        """The node of `rank`, if nodes hold `ranks_per_node` neighbouring ranks each."""
        self._in_range("rank", rank, self.size)
        if type(ranks_per_node) is not int or ranks_per_node < 1:
            raise RefusedError(f"ranks_per_node={ranks_per_node!r}: needs a whole number, 1 or more")
        return rank // ranks_per_node

    def crossing(self, axis: str, ranks_per_node: int) -> list[list[int]]:
        """The groups along `axis` that have ranks on more than one node."""
        return [g for g in self.groups(axis) if len({self.node_of(rank, ranks_per_node) for rank in g}) > 1]

    def crosses(self, axis: str, ranks_per_node: int) -> bool:
        """Whether messages along `axis` leave a node."""
        return bool(self.crossing(axis, ranks_per_node))

    def draw(self, ranks_per_node: int | None = None, **options: Any) -> Any:
        """The mapping onto nodes as a figure: `labkit.book.mesh`."""
        return pictures.draw(self, ranks_per_node, **options)

    # -- inside ------------------------------------------------------------------------------------------------

    def _from(self, first: int, axes: tuple[str, ...]) -> list[int]:
        """The group along `axes` whose first rank is this one."""
        return [first + sum(steps) for steps in itertools.product(*map(self._steps, axes))]

    def _steps(self, axis: str) -> range:
        """What each place along `axis` adds to the number of a rank."""
        return range(0, self.stride(axis) * self._sizes[axis], self.stride(axis))

    def _known(self, axes: Any) -> tuple[str, ...]:
        names = tuple(axes)
        unknown = [axis for axis in names if axis not in self._sizes]
        if unknown or not names or len(set(names)) < len(names):
            said = f"no axis {unknown[0]!r}" if unknown else "an axis twice" if names else "no axis was named"
            raise RefusedError(f"{said}: {self!r} has {', '.join(map(repr, self.axes))}, each once")
        return names

    def _in_range(self, name: str, value: Any, below: int) -> None:
        if type(value) is not int or not 0 <= value < below:
            raise RefusedError(f"{name}={value!r} is not in {self!r}: it goes from 0 to {below - 1}")
