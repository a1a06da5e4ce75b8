"""How long a collective takes along an axis that is placed on a machine: the closed forms, with that axis's wires.

A flat algorithm (ring, tree, pairwise) goes at the pace of the slowest wire on its way. Where all groups of an axis
work at once, oversubscribed switches are shared: of a unit with m members of a group a ring sends one message out for
every m of its GPUs, so a level oversubscribed by 2.8 does not slow down a ring with m of 3 or more. The hierarchical
form sums up level by level, so that only a part 1/m of the bytes goes out, from all GPUs at once.
"""

from __future__ import annotations

from collections.abc import Callable

from labkit.cost.collectives import ALGORITHMS, cost_of
from labkit.cost.collectives.ring import ring_all_gather, ring_all_reduce, ring_reduce_scatter
from labkit.cost.refuse import not_negative, one_of
from labkit.cost.topology.axes import Axis

SEND = "send"  # one message to the next rank along the axis
ONE_OF_A_UNIT = (
    "ring",
    "tree",
    "chain",
)  # in the order of the ranks, one rank of a unit sends to another unit at a time
COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", SEND)
_FLAT = {"all_reduce": "ring", "reduce_scatter": "ring", "all_gather": "ring", "all_to_all": "pairwise"}
_RINGS: dict[str, Callable[[float, int, float, float], float]] = {
    "all_reduce": ring_all_reduce.time,
    "reduce_scatter": ring_reduce_scatter.time,
    "all_gather": ring_all_gather.time,
}


def pace(axis: Axis, *, busy: bool = True, all_send: bool = False) -> tuple[float, float]:
    """(alpha, beta) of the slowest wire on the way around a group: seconds a message, seconds a byte.

    busy: all groups of the axis work at once; else one group has the machine to itself. all_send: all members of a
    unit send to other units at once, and not one of them (`ONE_OF_A_UNIT`).
    """
    alpha, rate = 0.0, float("inf")
    for i, level in enumerate(axis.topology.levels[: axis.depth]):
        inside = 1 if all_send or i == 0 else axis.members[i - 1]
        alpha = max(alpha, level.latency)
        rate = min(rate, level.bandwidth, level.share * inside if busy else level.bandwidth)
    return alpha, 1 / rate if axis.depth else 0.0


def hierarchical_seconds(axis: Axis, collective: str, nbytes: float, *, busy: bool = True) -> float:
    """Seconds of a collective that is done level by level: rings inside each unit, then rings of what is left between.

    On two levels it is `hierarchical_all_reduce_time`. collective: "all_reduce", "reduce_scatter" or "all_gather".
    nbytes: of the whole tensor. Raises ValueError for groups that lie irregularly.
    """
    one_of(tuple(_RINGS), collective=collective)
    not_negative(nbytes=nbytes)
    if not axis.regular:
        raise ValueError(
            f"groups of {axis.name} ({axis.size} ranks, {axis.stride} apart) have unequal numbers of ranks in the "
            f"units of {axis.topology.name}: take sizes that divide the units, or a flat ring"
        )
    seconds, inside = 0.0, 1
    for i, level in enumerate(axis.topology.levels[: axis.depth]):
        rate = level.share if busy else level.bandwidth
        across = axis.members[i] // inside
        seconds += _RINGS[collective](nbytes / inside, across, level.latency, 1 / rate)
        inside = axis.members[i]
    return seconds


def collective_seconds(
    axis: Axis, collective: str, nbytes: float, algorithm: str | None = None, *, busy: bool = True
) -> float:
    """Seconds of one collective along a placed axis; all its groups at once if `busy`.

    collective: one of `COLLECTIVES`; "send" is a message to the next rank of the group. nbytes: of the whole tensor, as
    in `labkit.cost.collectives`. algorithm: a name from `labkit.cost.ALGORITHMS`, by default a ring, or pairwise for
    all_to_all; "hierarchical" is done on all levels; "best" is the fastest of all. For all_to_all an upper bound: each
    round takes as long as its slowest message.
    """
    one_of(COLLECTIVES, collective=collective)
    not_negative(nbytes=nbytes)
    if axis.size == 1:
        return 0.0
    if collective == SEND:
        alpha, beta = pace(axis, busy=busy)
        return alpha + nbytes * beta
    if algorithm == "best":
        names = [name for name in ALGORITHMS[collective] if name != "hierarchical"]
        names += ["hierarchical"] if collective in _RINGS and axis.regular else []
        return min(collective_seconds(axis, collective, nbytes, name, busy=busy) for name in names)
    if algorithm == "hierarchical":
        return hierarchical_seconds(axis, collective, nbytes, busy=busy)
    cost = cost_of(collective, _FLAT[collective] if algorithm is None else algorithm)
    all_send = cost.algorithm not in ONE_OF_A_UNIT
    return cost.seconds(nbytes, axis.size, *pace(axis, busy=busy, all_send=all_send))
