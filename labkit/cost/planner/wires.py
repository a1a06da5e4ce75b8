"""Where the axes of a plan lie on a cluster, and how long their collectives take there."""

from __future__ import annotations

from dataclasses import dataclass, replace

from labkit.cost.planner.cluster import Cluster
from labkit.cost.topology.axes import Axis, place
from labkit.cost.topology.times import collective_seconds

__all__ = ["AXES", "Wires", "lay"]

AXES = ("tensor", "context", "expert", "data", "pipeline")


@dataclass(frozen=True)
class Wires:
    """The axes of one cut, each placed. `holders` are all ranks with the same parameters, `expert_holders` those with
    the same experts."""

    tensor: Axis
    context: Axis
    expert: Axis
    data: Axis
    pipeline: Axis
    holders: Axis
    expert_holders: Axis

    def link(self, axis: str) -> str:
        """The level of the topology that the groups of an axis need: "node", "cluster"; "" if they send nothing."""
        level = getattr(self, axis).crosses
        return "" if level is None else level.name


def lay(cluster: Cluster, cut: tuple[int, int, int, int, int]) -> Wires:
    """Tensor ranks are neighbours, then context, expert and data ranks, then stages.

    The links have the bandwidth that software reaches (`Efficiency.inside`, `across`).
    """
    t, p, c, e, d = cut
    axes = _placed(cluster, {"pipeline": p, "data": d, "expert": e, "context": c, "tensor": t})
    holders = _placed(cluster, {"pipeline": p, "holders": d * e * c, "tensor": t})["holders"]
    experts = holders
    if e > 1:  # every e-th of them; context ranks count as data ranks here
        experts = _placed(cluster, {"pipeline": p, "holders": d * c, "inside": e * t})["holders"]
    return Wires(**axes, holders=holders, expert_holders=experts)


def shard_axes(cluster: Cluster, cut: tuple[int, int, int, int, int], shard: int) -> tuple[Axis, Axis]:
    """Of HSDP: the axis of `shard` neighbours that share a state, and the axis of those that hold the same part."""
    t, p, c, e, d = cut
    axes = _placed(cluster, {"pipeline": p, "copies": d * e * c // shard, "shard": shard, "tensor": t})
    return axes["shard"], axes["copies"]


def seconds(axis: Axis, collective: str, nbytes: float) -> float:
    """Of one collective along an axis: rings level by level, or one flat ring where groups lie irregularly (or are said
    to, by `lay`)."""
    rings = collective in ("all_reduce", "reduce_scatter", "all_gather")
    return collective_seconds(axis, collective, nbytes, "hierarchical" if rings and axis.regular else None)


def _placed(cluster: Cluster, sizes: dict[str, int]) -> dict[str, Axis]:
    """Axes on the links that software reaches. Those of software that knows no domains count as irregular."""
    axes, knows = place(cluster.reached, sizes), cluster.efficiency.hierarchical
    return axes if knows else {name: replace(axis, regular=False) for name, axis in axes.items()}
