"""How well the planner predicts: a table of plans, each run by `Hybrid` on emulated GPUs, beside its prediction.

    rows = try_cases(CASES)                  # real ranks, minutes; CASES[:3] for a few
    fit = fitted(rows)                       # the figures of efficiency, from every other case
    fit.errors("held out")                   # predicted over measured, less 1, of the cases that it has not seen

The emulated cluster reaches other parts of its data sheet than the planner believes at first (`TRUE`), so the planner
must find them, and what it gets wrong beyond them is its own mistake.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from labkit.cost.planner import FIGURES, Cluster, Costs, Efficiency, Gpu, MeasuredStep, Model, Plan, calibrated
from labkit.cost.topology import Level, Topology
from labkit.parallel.hybrid.trial import Trial, try_plan

__all__ = ["CASES", "SOFTWARE", "TRUE", "Case", "Fitted", "Row", "emulated_cluster", "fitted", "table_of", "try_cases"]

# An H100 and its links, with a hidden size of 64 in the place of 8,192: the same parts of a step go to products, to
# what only moves numbers, and to messages.
GPU = Gpu("emulated GPU", 64e6, 0.4e9, (("bf16", 1e9),), 100)
INSIDE, ACROSS = (60e6, 20e-6), (8e6, 60e-6)  # bytes a second and seconds of a link
# What `Hybrid` overlaps, and how: flat rings, and of data parallelism only what FSDP sends layer by layer.
SOFTWARE = Efficiency(overlaps=frozenset({"tensor", "context", "pipeline", "shards"}), hierarchical=False)
TRUE = replace(SOFTWARE, products=0.6, attention=0.35, memory=0.7, inside=0.9, across=0.7)

SMALL = Model("4 layers", 4, 64, 8, vocabulary=128, sequence=64, positions=64, biases=True, tied=False)
DEEP = replace(SMALL, name="8 layers", layers=8)
WIDE = replace(SMALL, name="wide", hidden=128)
LONG = replace(SMALL, name="long", sequence=256, positions=256, tied=True)
EXPERTS = replace(SMALL, name="experts", experts=4, top_k=2, expert_inside=128)


def emulated_cluster(gpus: int, domain: int, efficiency: Efficiency = SOFTWARE) -> Cluster:
    """`gpus` emulated GPUs in nodes of `domain`."""
    levels = [Level("node", domain, *INSIDE)]
    if gpus > domain:
        levels.append(Level("cluster", gpus // domain, *ACROSS))
    return Cluster(Topology(f"{gpus // domain} nodes of {domain}", tuple(levels)), GPU, efficiency)


@dataclass(frozen=True)
class Case:
    """A plan for a model on nodes of `domain` GPUs."""

    model: Model
    domain: int
    plan: Plan

    def cluster(self, efficiency: Efficiency) -> Cluster:
        return emulated_cluster(self.plan.gpus, min(self.domain, self.plan.gpus), efficiency)

    def state(self) -> dict[str, float]:
        """Bytes by part, as the planner has them, of the stage that holds most of the training state.

        Without activations; and of Adam's state two moments of 2 bytes, as `Hybrid` has them in 16 bits, where the
        planner counts with 32 bits and a copy of the weights: 4 of 12 bytes.
        """
        plan = self.plan
        ends = Costs(self.model, self.cluster(SOFTWARE)).state(plan.cut, plan.sharding, plan.shard, 2, plan.chunks)
        parts = [
            {"parameters": end.parameters, "gradients": end.gradients, "optimizer": end.optimizer * 4 / 12}
            for end in ends
        ]
        return max(parts, key=lambda part: sum(part.values()))

    def __str__(self) -> str:
        return f"{self.model.name}, {self.plan}, nodes of {self.domain}"


def _case(model: Model, domain: int, *cut: int, **more: object) -> Case:
    options = {"recompute": "all", "gradient_bytes": 2, "microbatch": 4, "sequence_parallel": False, **more}
    return Case(model, domain, Plan(*cut, **options))


# (tensor, pipeline, context, expert, data). Every other one is fitted to, the rest held out.
CASES = (
    _case(SMALL, 1, 1, 1, 1, 1, 2, sharding="zero1"),
    _case(SMALL, 2, 2),
    _case(replace(SMALL, tied=True), 2, 1, 2, microbatches=4),
    _case(LONG, 2, 1, 1, 2),
    _case(SMALL, 1, 2),
    _case(EXPERTS, 2, 1, 1, 1, 2, 1),
    _case(WIDE, 2, 2, 1, 1, 1, 2, sharding="zero1"),
    _case(WIDE, 2, 4),
    _case(LONG, 4, 4, microbatch=1, sequence_parallel=True),
    _case(LONG, 2, 4, microbatch=1, sequence_parallel=True),
    _case(DEEP, 2, 1, 4, microbatches=8, microbatch=2),
    _case(DEEP, 1, 1, 2, microbatches=4, schedule="interleaved", chunks=2),
    _case(DEEP, 4, 1, 4, 1, 1, 2, microbatches=8, microbatch=2, schedule="zb_h1"),
    _case(SMALL, 2, 1, 4, microbatches=4, schedule="gpipe"),
    _case(LONG, 4, 2, 1, 2, 1, 2, microbatch=2, sharding="zero3"),
    _case(LONG, 4, 1, 1, 4, 1, 2, microbatch=2),
    _case(WIDE, 2, 1, 1, 1, 1, 4, sharding="hsdp", shard=2),
    _case(WIDE, 2, 1, 1, 1, 1, 4, sharding="zero3", microbatches=2),
    _case(EXPERTS, 4, 1, 1, 1, 4, 2),
    _case(EXPERTS, 4, 2, 1, 1, 2, 2, sharding="zero1"),
    _case(DEEP, 4, 2, 2, 1, 1, 2, microbatches=4, microbatch=2, sharding="zero1"),
    _case(WIDE, 4, 1, 1, 1, 1, 8, sharding="zero2"),
    _case(LONG, 4, 2, 2, 2, microbatch=1, microbatches=4),
    _case(DEEP, 4, 1, 4, 1, 1, 2, microbatches=8, microbatch=2, schedule="interleaved", chunks=2),
)


@dataclass(frozen=True)
class Row:
    """A case, and what it took."""

    case: Case
    trial: Trial

    def measured(self, efficiency: Efficiency = SOFTWARE) -> MeasuredStep:
        """For `calibrated`: with what the planner believes at first, and how the router shared out tokens."""
        model = replace(self.case.model, skew=self.trial.skew)
        return MeasuredStep(model, self.case.cluster(efficiency), self.case.plan, self.trial.seconds)


@dataclass(frozen=True)
class Fitted:
    """efficiency: with `figures` fitted to the first of every two rows. errors_of: predicted over measured, less 1, by
    row."""

    efficiency: Efficiency
    figures: tuple[str, ...]
    errors_of: tuple[float, ...]

    def errors(self, which: str) -> list[float]:
        """Sizes of the errors of the rows that were "fitted" or "held out"."""
        return [abs(e) for e in self.errors_of[("fitted", "held out").index(which) :: 2]]

    def __str__(self) -> str:
        return "; ".join(
            f"{which}: {100 * median(self.errors(which)):.1f} % in the median, {100 * max(self.errors(which)):.1f} % "
            "at worst" for which in ("fitted", "held out")
        )  # fmt: skip


def try_cases(cases: Sequence[Case]) -> list[Row]:
    """Run each case on real ranks."""
    return [Row(case, try_plan(case.model, case.cluster(TRUE), case.plan)) for case in cases]


def fitted(rows: Sequence[Row], figures: Sequence[str] = FIGURES) -> Fitted:
    """Fit the figures to rows 0, 2, ... and predict all of them. Raises ValueError for fewer rows than figures."""
    steps = [row.measured() for row in rows]
    efficiency = calibrated(steps[::2], figures, start=SOFTWARE).efficiency
    errors = tuple(step.predicted(efficiency) / step.seconds - 1 for step in steps)
    return Fitted(efficiency, tuple(figures), errors)


def table_of(rows: Sequence[Row], fit: Fitted) -> list[dict[str, Any]]:
    """Row by row in words and numbers: seconds and their error, bytes of the training state and those predicted."""
    found = []
    for n, (row, error) in enumerate(zip(rows, fit.errors_of, strict=True)):
        found.append({
            "model": row.case.model.name, "nodes of": row.case.domain, "plan": str(row.case.plan),
            "used": ("to fit", "held out")[n % 2], "measured ms": 1e3 * row.trial.seconds,
            "predicted ms": 1e3 * row.trial.seconds * (1 + error), "error %": 100 * error,
            "state kB": sum(row.trial.nbytes.values()) / 1e3, "predicted kB": sum(row.case.state().values()) / 1e3,
        })  # fmt: skip
    return found
