"""The workbenches of chapter 15: which controls each has, where they begin, and what it shows."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from labkit import book
from labkit.book.workbenches.bench import View
from labkit.chapters.c15_hybrid_parallelism import pictures, same, small
from labkit.cost import planner
from labkit.cost.planner import MODELS, Cluster, Estimate, Search
from labkit.cost.topology import Topology
from labkit.cost.units import GB, format_seconds

Run = Callable[..., Any]
CLUSTERS: dict[str, Callable[[], Cluster]] = {
    "64 A100": lambda: planner.a100_cluster(64), "1,024 A100": lambda: planner.a100_cluster(1024),
    "1,024 H100": lambda: planner.h100_cluster(1024),
    "16 racks, 64 GPUs of each": lambda: planner.b200_cluster(1024, 64),
    "3 CloudMatrix 384": lambda: planner.cloudmatrix_cluster(3),
}  # fmt: skip
NETWORKS = {"full": 1.0, "fat tree 4 : 1": 4.0}


def choice(label: str, options: Any, value: Any) -> Any:
    """A list to choose from, with a label that is no name of Python's."""
    from ipywidgets import Dropdown

    return Dropdown(options=options, value=value, description=label)


def cuts(ranks: int, batch: int = 0) -> dict[str, tuple[int, int]]:
    """All cuts of so many ranks, as "D2 P2 T2" -> (tp, pp); with a batch, those that share it in two microbatches.

    The small models have 8 heads and 4 layers, so of 3 ranks a pipeline is the only cut beside data parallelism.
    """
    found = {}
    for pp in range(1, small.GPT.layers + 1):
        for tp in (1, 2, 4, 8):
            dp, left = divmod(ranks, tp * pp)
            if not left and not (batch and pp > 1 and batch % (2 * dp)):
                name = " ".join(f"{letter}{n}" for letter, n in (("D", dp), ("P", pp), ("T", tp)) if n > 1)
                found[name or "one rank"] = tp, pp
    return found


def recorded(bench: book.Workbench, most: int) -> book.Workbench:
    """The same, with at most so many runs for pages on which nothing runs: one of eight ranks takes seconds."""
    bench.most_recorded = most
    return bench


def eight_ranks(step: Run) -> book.Workbench:
    """The cut, microbatches, and which axis has neighbours as its ranks."""
    controls = {
        "cut": choice("cut", cuts(8), (4, 1)), "microbatches": [1, 2, 4], "neighbours": list(small.ORDERS),
    }  # fmt: skip
    views: list[View] = [pictures.took, pictures.on_nodes, pictures.each_stage]
    return recorded(book.workbench(step, controls, views, title="Eight ranks on two nodes", ranks=8, clock="virtual",
                          network=small.network(8)), 6)  # fmt: skip


def one_device_or_not(check: Run, world_size: int) -> book.Workbench:
    """A cut of the reader's own, a way to share out the state, and a mistake."""
    controls = {
        "cut": choice("cut", cuts(world_size, same.BATCH), small.usual(world_size)),
        "data": choice("data parallelism", ["plain", "zero1", "fsdp"], "plain"),
        "mistake": list(same.MISTAKES),
    }  # fmt: skip
    views: list[View] = [pictures.signals, pictures.apart]
    return recorded(
        book.workbench(check, controls, views, title="Is it one device?", ranks=world_size, transport="local"), 6
    )


# The planner -----------------------------------------------------------------------------------------------------


class WithMore:
    """A run with something beside it that its pictures need. A workbench asks it for what it asks of a run."""

    run: Any

    @property
    def results(self) -> Any:
        return self.run.results

    @property
    def trace(self) -> Any:
        return self.run.trace

    @property
    def seconds(self) -> float:
        return float(self.run.seconds)


@dataclass(frozen=True)
class Checked(WithMore):
    """A run of `same.train`, with the seed of its model."""

    run: Any
    seed: int


@dataclass(frozen=True)
class Tried(WithMore):
    """A search, the plan of it that was chosen, and a run of its shape on a few ranks; none if it does not fit."""

    found: Search
    plan: Estimate
    run: Any = None


@dataclass(frozen=True)
class Watched(WithMore):
    """A run of `small.two_steps`, and one of `small.holding` with the same configuration."""

    run: Any
    held: Any


@functools.cache
def searched(model: str, machine: str, network: str = "full", batch: int = 1024) -> Search:
    """`planner.search` by names of the panel; a search that was made before is not made again."""
    return planner.search(MODELS[model], cluster(machine, network), batch)


def tried_small(world: Any, shape: Any) -> Any:
    """`small.two_steps` of a configuration; plans that have the same small shape share one run."""
    if shape not in _tried:
        _tried[shape] = world.run(small.two_steps, shape)
    return _tried[shape]


_tried: dict[Any, Any] = {}


def try_small(world: Any, found: Search, plan: Estimate) -> Tried:
    """The plan, and a run of it with degrees halved until the ranks are enough; without a run if it does not fit."""
    return Tried(found, plan, tried_small(world, small.shape_of(plan.plan)) if plan.fits else None)


def cluster(name: str, network: str = "full") -> Cluster:
    """One of `CLUSTERS`, with a network outside of its domains that is full or oversubscribed."""
    made = CLUSTERS[name]()
    *inner, outer = made.topology.levels
    thin = replace(outer, oversubscription=NETWORKS[network])
    return replace(made, topology=Topology(made.topology.name, (*inner, thin)))


def chosen(found: Search, place: int) -> Estimate:
    """The plan in this place of the best, counted from 1; where nothing fits, the one that needs least memory.

    Raises ValueError if no cut of the GPUs is possible at all, with the reason.
    """
    if found.best:
        return found.best[min(place, len(found.best)) - 1]
    if found.nearest is None:
        raise ValueError(found.nothing_fits())
    return found.nearest


def plan_and_try(run: Run) -> book.Workbench:
    """What is trained on what, and which of the ten best plans is tried on real ranks."""
    models = ["Llama 3 8B", "Llama 3 70B", "GPT-3 175B", "Llama 3 405B"]
    controls = {
        "model": models, "machine": list(CLUSTERS), "network": list(NETWORKS),
        "batch": choice("batch (sequences)", [256, 1024, 4096], 1024),
        "place": choice("try plan", [1, 2, 3, 5, 10], 1),
    }  # fmt: skip
    views: list[View] = [in_words, all_plans, memory, steps, why_lost, tried, stages_of_run]
    return recorded(book.workbench(run, controls, views, title="The planner", ranks=8, clock="virtual",
                          network=small.network(8)), 6)  # fmt: skip


def in_words(one: Tried) -> str:
    """The chosen plan; or by how much nothing fits, and where it would."""
    found = one.found
    if found.best:
        return _in_words(found, one.plan)
    larger = planner.nearest_that_fits(found, 16)
    where = (
        f" On {larger.cluster.gpus:,} such GPUs {larger.winner.plan} fits." if larger else " Nor does 16 times as many."
    )
    over = one.plan.held.total - one.plan.cluster.gpu.memory
    remedy = planner.why_too_large(found.costs, one.plan.plan)
    return (
        f"Nothing fits for {found.model.name} on {found.cluster.gpus:,} GPUs with a batch of {found.batch:,} "
        f"sequences. The plan that needs least has {over / GB:.1f} GB more than a GPU has: {one.plan.plan} "
        f"{remedy}.{where}"
    )


def _in_words(found: Search, plan: Estimate) -> str:
    error = pictures.published_error()
    equal = sum(other.seconds < (1 + error) * found.winner.seconds for other in found.best)
    alike = f"{equal} of these {len(found.best)}" if equal > 1 else "here only the first"
    said = f"{found.considered:,} plans, of which {found.fitting:,} fit. The one that you try is {plan.plan}. A step "
    said += f"takes {format_seconds(plan.seconds, 3)}, an MFU (the useful part of the GPUs' peak) of {plan.mfu:.1%}. "
    said += f"After computing, most of it goes to {pictures.largest(plan)}. A billion tokens take "
    said += f"{plan.gpu_hours_per_billion_tokens:,.0f} GPU-hours"
    if plan.cluster.price is not None:
        said += f", ${1000 * plan.dollars_per_million_tokens:,.0f} {plan.cluster.price_said}"
    said += ". How far may you believe it? On 13 published runs, to which one figure for each kind of machine was "
    said += f"fitted, the planner is off by {error:.1%} on average. On other runs it may be off by more, so plans "
    said += f"within that cannot be told apart: {alike}. "
    if plan.plan.sharding in ("zero3", "hsdp"):
        said += "Be more careful with this one. It takes gathering for hidden behind computing, and no run with ZeRO-3 "
        said += "alone is among the 13."
    return said.rstrip()


def all_plans(one: Tried) -> book.Figure | str:
    return pictures.all_plans(one.found) if one.found.best else ""


def memory(one: Tried) -> book.Figure:
    return pictures.memory(pictures.named(one.found.best or [one.plan]), letters=False)  # `steps` explains them


def steps(one: Tried) -> book.Figure:
    return pictures.steps(pictures.named(one.found.best or [one.plan]), "One step of the best")


def why_lost(one: Tried) -> book.Table:
    """The ten best, and why each of the others is not the first."""
    reasons = ["the fastest", *planner.lost(one.found)] if one.found.best else ["does not fit"]
    rows = []
    for n, (plan, why) in enumerate(zip(one.found.best or [one.plan], reasons, strict=True), 1):
        because = why.partition(", because ")[2] or why
        rows.append({"": n, "plan": pictures.short(plan), "step (s)": plan.seconds, "MFU (%)": 100 * plan.mfu,
                     "GB": plan.held.total / GB, "why not the first": because})  # fmt: skip
    return book.Table(rows, caption="Why the others come after it (simulated)")


def tried(one: Tried) -> str:
    """The shape of the plan on eight ranks: its step beside the planner's word for exactly that."""
    if one.run is None:
        return "The small ranks did not try it, because no plan fits."
    links = small.network(one.run.trace.world_size)
    found = small.measured(one.run, links)
    said = small.predicted(found)
    config = one.run.results[0].config
    part = max((p for p in said.parts if p != "computing"), key=lambda p: said.parts[p])
    return (
        f"The plan made small: {small.made_small(one.plan.plan, config)} So {pictures.cut_name(config)} with "
        f"{config.microbatches} microbatch{'es' * (config.microbatches > 1)} takes "
        f"{format_seconds(found.seconds, 3)} a step on eight ranks "
        f"(emulated). For this small machine the planner says {format_seconds(said.seconds, 3)}, "
        f"{said.seconds / found.seconds - 1:+.1%}, and after computing the largest part is {part}."
    )


def stages_of_run(one: WithMore) -> book.Figure | str:
    """A lane for each stage: all ranks of a stage do the same."""
    return "" if one.run is None else pictures.each_stage(one.run)


def pictures_of_run(one: WithMore) -> book.Figure | str:
    return "" if one.run is None else pictures.timeline(one.run)


def faults(run: Run) -> book.Workbench:
    """Plan C on eight ranks with one fault, and what five signals show of it."""
    controls = {"fault": list(small.FAULTS)}
    views: list[View] = [pictures.health, pictures_of_run]
    return book.workbench(run, controls, views, title="One fault, five signals", ranks=8, clock="virtual",
                          network=small.network(8, nodes=4))  # fmt: skip
