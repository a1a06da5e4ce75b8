"""What guides say by rule of thumb, answered by computing: the decision tree, the bandwidth check, where rules mislead.

The rungs are those of the two textbook chapters: replicate the model if it fits; else cut its state; else cut its
layers inside a node; else cut it in stages across nodes; and at the frontier do all of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from labkit.cost.planner.cluster import Cluster
from labkit.cost.planner.model import Model
from labkit.cost.planner.predicted import Estimate, estimate
from labkit.cost.planner.search import Search, search
from labkit.cost.planner.space import Space
from labkit.cost.planner.wires import AXES, lay
from labkit.cost.units import GB, format_bytes, format_seconds

__all__ = ["Advice", "AxisCheck", "Rung", "advice", "bandwidth_check", "bandwidth_sentence"]

RUNGS: tuple[tuple[str, dict[str, object]], ...] = (
    ("plain data parallelism", {"sharding": ("plain",), "tensor_limit": 1, "pipeline_limit": 1}),
    ("ZeRO-1", {"sharding": ("zero1",), "tensor_limit": 1, "pipeline_limit": 1}),
    ("ZeRO-2", {"sharding": ("zero2",), "tensor_limit": 1, "pipeline_limit": 1}),
    ("ZeRO-3", {"sharding": ("zero3", "hsdp"), "tensor_limit": 1, "pipeline_limit": 1}),
    ("ZeRO-3 and tensor parallelism in a domain", {"sharding": ("zero3", "hsdp"), "pipeline_limit": 1}),
    ("tensor, pipeline and data parallelism", {"sharding": ("plain", "zero1")}),
)  # fmt: skip


@dataclass(frozen=True)
class Rung:
    """One rung of the tree. best: its fastest plan that fits, or None. needs: bytes of its smallest plan."""

    name: str
    best: Estimate | None
    needs: float


@dataclass(frozen=True)
class Advice:
    """The rungs in order, the search over everything, and what the two say together."""

    rungs: tuple[Rung, ...]
    found: Search

    @property
    def first(self) -> Rung | None:
        """The first rung on which something fits: where the tree stops."""
        return next((rung for rung in self.rungs if rung.best), None)

    def sentences(self, named: Callable[[Estimate], str] = lambda one: str(one.plan)) -> list[str]:
        """The way down the tree, and whether the planner agrees with where it stops. named: a plan in words."""
        memory, said = self.found.cluster.gpu.memory, []
        for rung in self.rungs:
            if rung.best:
                break
            said.append(
                f"{_capital(rung.name)} needs {rung.needs / GB:,.{0 if rung.needs > 1e11 else 1}f} GB at least, and a "
                f"GPU has {memory / GB:.0f}."
            )
        first = self.first
        if first is None or first.best is None:
            return [*said, f"{_capital(self.found.nothing_fits())}."]
        said.append(
            f"{_capital(first.name)} is the first that fits, with {named(first.best)} and "
            f"{format_seconds(first.best.seconds)} a step."
        )
        winner = self.found.winner
        gain = first.best.seconds / winner.seconds - 1
        if gain < 0.01:
            said.append("Over all plans the planner finds nothing that is faster by 1%: the rule is right.")
        else:
            said.append(
                f"Over all plans {named(winner)} takes {format_seconds(winner.seconds)}: stopping at what fits first "
                f"costs {gain:.0%}."
            )
        return said


def advice(model: Model, cluster: Cluster, batch: int, space: Space | None = None) -> Advice:
    """The sources' decision tree for a job: each rung searched by itself, and beside them the search over everything.

    Tensor parallelism stays inside a domain on its rungs, and context parallelism is on none of them.
    """
    whole_space = Space() if space is None else space
    rungs = []
    for name, limits in RUNGS:
        options: dict[str, object] = {"tensor_limit": cluster.domain, "context_limit": 1, **limits}
        found = search(model, cluster, batch, replace(whole_space, **options), keep=1)  # type: ignore[arg-type]
        needs = found.nearest.held.total if found.nearest else float("inf")
        rungs.append(Rung(name, found.best[0] if found.best else None, needs))
    return Advice(tuple(rungs), search(model, cluster, batch, whole_space))


@dataclass(frozen=True)
class AxisCheck:
    """One axis of a plan on its slowest link. nbytes: that a GPU sends over it in a step.

    Of a collective that is done level by level, only a part goes out of a domain. seconds: at the link's full rate.
    share: of the time that the GPU computes. alone: seconds at the rate that software reaches, with nothing hidden.
    waited: seconds that the step really waits, after overlap.
    """

    axis: str
    link: str
    nbytes: float
    seconds: float
    share: float
    alone: float
    waited: float


def bandwidth_check(one: Estimate) -> list[AxisCheck]:
    """For each axis that sends: could its link carry the bytes while the GPU computes? Without latencies, as on paper.

    A share above 1 cannot be hidden whatever the software does; the sources' rule is to move such an axis to a faster
    link, or to cut it less.
    """
    busy = sum(one.parts[part] for part in ("computing", "uneven", "recomputed"))
    hides_nothing = replace(one.cluster.efficiency, overlaps=frozenset())
    alone = estimate(one.model, replace(one.cluster, efficiency=hides_nothing), one.plan).parts
    checks = []
    wires = lay(one.cluster, one.plan.cut)
    for axis in AXES:
        if one.link[axis]:
            lies = wires.holders if axis == "data" else getattr(wires, axis)
            rings = axis in ("tensor", "data") and lies.regular and lies.depth > 1
            nbytes = one.sent[axis] / (lies.members[lies.depth - 2] if rings else 1)
            seconds = nbytes / one.cluster.topology.level(one.link[axis]).share
            part = "messages" if axis == "pipeline" else axis
            known = axis, one.link[axis], nbytes, seconds, seconds / busy
            checks.append(AxisCheck(*known, max(alone[part], one.parts[part]), one.parts[part]))
    return checks


def bandwidth_sentence(check: AxisCheck) -> str:
    """The check of one axis in words."""
    hidden = 1 - check.waited / check.alone if check.alone else 0.0
    verdict = f"of which {hidden:.0%} hide behind computing" if hidden >= 0.01 else "and nothing of that is hidden"
    return (
        f"A GPU sends {format_bytes(check.nbytes)} a step for the {check.axis} axis over the {check.link} links. "
        f"At the rate that software reaches, that takes {format_seconds(check.alone, 3)}, {verdict}. "
        f"So the step waits {format_seconds(check.waited, 3)} for it."
    )


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
