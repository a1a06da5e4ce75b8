"""In which order the axes of a mesh should fill a machine: what each order costs, and which costs least."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import permutations
from typing import Any

from labkit.cost.refuse import not_negative, one_of
from labkit.cost.topology.axes import mesh_sizes, place
from labkit.cost.topology.levels import Topology
from labkit.cost.topology.times import COLLECTIVES, collective_seconds


@dataclass(frozen=True)
class Traffic:
    """What a step sends along one axis: `calls` collectives of `nbytes` each (the whole tensor).

    collective: one of `COLLECTIVES`. algorithm: as for `collective_seconds`, here by default the fastest.
    """

    collective: str
    nbytes: float
    calls: float = 1
    algorithm: str | None = "best"

    def __post_init__(self) -> None:
        one_of(COLLECTIVES, collective=self.collective)
        not_negative(nbytes=self.nbytes, calls=self.calls)


@dataclass(frozen=True)
class Order:
    """One order of the axes, outermost first, and the seconds that a step communicates along each."""

    axes: tuple[str, ...]
    by_axis: dict[str, float]

    @property
    def seconds(self) -> float:
        """All axes, one after the other."""
        return sum(self.by_axis.values())


def order_seconds(topology: Topology, sizes: Any, traffic: Mapping[str, Traffic], *, busy: bool = True) -> Order:
    """What the order of `sizes` (outermost first) costs. Axes without traffic cost nothing.

    Raises ValueError for traffic along an axis that the mesh has not.
    """
    placed = place(topology, sizes)
    for axis in traffic:
        one_of(tuple(placed), **{"axis of traffic": axis})
    seconds = {
        name: flow.calls * collective_seconds(placed[name], flow.collective, flow.nbytes, flow.algorithm, busy=busy)
        for name, flow in traffic.items()
    }
    return Order(tuple(placed), {name: seconds.get(name, 0.0) for name in placed})


def rank_orders(topology: Topology, sizes: Any, traffic: Mapping[str, Traffic], *, busy: bool = True) -> list[Order]:
    """All orders of the axes, the one that costs least first; of equals (nine digits) the first by the given order.

    What goes on at the same time as computing, or along two axes at once, is not taken off.
    """
    known = mesh_sizes(sizes)
    orders = [
        order_seconds(topology, {name: known[name] for name in names}, traffic, busy=busy)
        for names in permutations(known)
    ]
    return sorted(orders, key=lambda order: float(f"{order.seconds:.9g}"))


def cheapest_order(topology: Topology, sizes: Any, traffic: Mapping[str, Traffic], *, busy: bool = True) -> Order:
    """The first of `rank_orders`."""
    return rank_orders(topology, sizes, traffic, busy=busy)[0]
