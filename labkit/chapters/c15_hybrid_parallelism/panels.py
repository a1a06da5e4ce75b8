"""The workbenches of chapter 15: which controls each has, where they begin, and what it shows."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from labkit import book
from labkit.book.drawing.units import listing
from labkit.book.workbenches.bench import View
from labkit.chapters.c15_hybrid_parallelism import pictures, same, small
from labkit.cost import planner
from labkit.cost.planner import MODELS, Cluster, Estimate, Search
from labkit.cost.planner.cluster import A100_PRICE
from labkit.cost.topology import Topology
from labkit.cost.units import GB, format_seconds

Run = Callable[..., Any]
CLUSTERS: dict[str, Callable[[], Cluster]] = {
    "64 A100": lambda: planner.a100_cluster(64), "1,024 A100": lambda: planner.a100_cluster(1024),
    "1,024 H100": lambda: planner.h100_cluster(1024),
    "16 racks of 64 B200": lambda: planner.b200_cluster(1024, 64),
    "3 CloudMatrix 384": lambda: planner.cloudmatrix_cluster(3),
}  # fmt: skip
NETWORKS = {"full": 1.0, "fat tree 4 : 1": 4.0}


def choice(label: str, options: Any, value: Any) -> Any:
    """A list to choose from, with a label that is no name of Python's."""
    from ipywidgets import Dropdown

    return Dropdown(options=options, value=value, description=label)


def cuts(ranks: int, batch: int = 0) -> dict[str, tuple[int, int]]:
    """All cuts of so many ranks, as "TP2 PP2 DP2" -> (tp, pp); with a batch, those that share it in two microbatches.

    The small models have 8 heads and 4 layers, so of 3 ranks a pipeline is the only cut beside data parallelism.
    """
    found = {}
    for pp in range(1, small.GPT.layers + 1):
        for tp in (1, 2, 4, 8):
            dp, left = divmod(ranks, tp * pp)
            if not left and not (batch and pp > 1 and batch % (2 * dp)):
                found[pictures.degrees(tp, pp, dp=dp)] = tp, pp
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
    views: list[View] = [pictures.took, pictures.each_stage, pictures.on_nodes]
    return recorded(book.workbench(step, controls, views, title="Eight ranks on two nodes", ranks=8, clock="virtual",
                          network=small.network(8)), 6)  # fmt: skip


def one_device_or_not(check: Run, world_size: int) -> book.Workbench:
    """A cut of the reader's own, a way to share out the state, and a mistake."""
    controls = {
        "cut": choice("cut", cuts(world_size, same.BATCH), small.usual(world_size)),
        "data": choice("data parallelism", {"plain": "plain", "ZeRO-1": "zero1", "ZeRO-3": "fsdp"}, "plain"),
        "mistake": list(same.MISTAKES),
    }  # fmt: skip
    views: list[View] = [pictures.signals, pictures.apart]
    return recorded(
        book.workbench(check, controls, views, title="Does it match one device?", ranks=world_size, transport="local"),
        6,
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


search = functools.cache(planner.search)  # one that was made before is not made again


_own: dict[str, planner.Model] = {}  # the reader's, by name


def searched(model: str, machine: str, network: str = "full", batch: int = 1024) -> Search:
    """`search` by names of the panel."""
    return search((MODELS | _own)[model], cluster(machine, network), batch)


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


def plan_and_try(run: Run, *own: planner.Model) -> book.Workbench:
    """What is trained on what, and which of the five best plans is tried on real ranks. own: models of the reader.

    Raises ValueError for a name that another model has.
    """
    models = ["Llama 3 8B", "Llama 3 70B", "GPT-3 175B", "Llama 3 405B"]
    for one in own:
        if one.name in MODELS:
            raise ValueError(f"there is a model {one.name!r} already: give yours another name")
        _own[one.name] = one
        models += [one.name] * (one.name not in models)
    controls = {
        "model": choice("model", models, "GPT-3 175B"), "machine": choice("machine", [*CLUSTERS], "1,024 H100"),
        "network": list(NETWORKS),
        "batch": choice("batch (sequences)", [256, 1024, 4096], 1024),
        "place": choice("try plan", [1, 2, 3, 4, 5], 1),
    }  # fmt: skip
    views: list[View] = [in_words, all_plans, why_lost, tried, price_and_trust]
    return recorded(book.workbench(run, controls, views, title="The planner", ranks=8, clock="virtual",
                          network=small.network(8)), 6)  # fmt: skip


def in_words(one: Tried) -> str:
    """The chosen plan; or by how much nothing fits, and where it would."""
    found = one.found
    if found.best:
        return _in_words(found, one.plan)
    larger = planner.nearest_that_fits(found, 16)
    where = (
        f" On {larger.cluster.gpus:,} such GPUs {pictures.short(larger.winner)} fits."
        if larger else " Nor does anything on 16 times as many."
    )  # fmt: skip
    held, has = one.plan.held, one.plan.cluster.gpu.memory
    part, size = max(held.parts().items(), key=lambda item: item[1])
    of = {"optimizer": "the optimizer's state"}.get(part, part)
    return (
        f"Nothing fits for {found.model.name} on {found.cluster.gpus:,} GPUs with a batch of {found.batch:,} "
        f"sequences. The plan that needs least is {pictures.short(one.plan)}: {(held.total - has) / GB:.1f} GB more "
        f"than a GPU has. The largest part of what it holds is {of}, {size / GB:.1f} GB.{where}"
    )


def _in_words(found: Search, plan: Estimate) -> str:
    error = pictures.published_error()
    equal = sum(other.seconds < (1 + error) * found.winner.seconds for other in found.best)
    alike = f"{equal} of the {len(found.best)} best cuts are" if equal > 1 else "only the first cut is"
    so = ", so it cannot say for sure which of them is the fastest" if equal > 1 else ""
    return (
        f"You try {pictures.short(plan)}. A step takes {plan.seconds:.3g} s, and the largest part after computing "
        f"goes to {pictures.largest(plan)}. Here {alike} within {error:.1%} of the best. That is the planner's mean "
        f"error on published runs{so}."
    )


def price_and_trust(one: Tried) -> str:
    """What a billion tokens cost with the chosen plan, and how far its time can be trusted."""
    if not one.found.best:
        return ""
    plan, named = one.plan, one.plan.cluster.gpu.name in ("A100", "H100")
    said = f"**Price and error.** A billion tokens take {plan.gpu_hours_per_billion_tokens:,.0f} GPU-hours"
    priced = 40 * GB if plan.cluster.price == A100_PRICE else plan.cluster.gpu.memory  # the card that has the price
    if plan.cluster.price is not None and plan.held.total <= priced:
        said += f", ${1000 * plan.dollars_per_million_tokens:,.0f} {plan.cluster.price_said}"
    elif plan.cluster.price is None:
        said += "; we have no price for this machine"
    else:
        said += "; the card of which we have a price holds only 40 GB"
    said += ". " if named else ". No run on this machine was checked. "
    said += f"The planner was fitted to 13 published runs{'' if named else ' on A100s and H100s'}, and it misses the "
    said += f"worst of them by {pictures.published_error(max):.1%}."
    if plan.plan.sharding in ("zero3", "hsdp"):
        said += " Trust this plan less: the planner counts its gathering as hidden behind computing, and no run with "
        said += "ZeRO-3 alone is among the 13."
    return said


def all_plans(one: Tried) -> book.Figure | str:
    return pictures.all_plans(one.found) if one.found.best else ""


def why_lost(one: Tried) -> book.Table:
    """The five best, and what the others lose most and save most in; where nothing fits, the smallest."""
    if not one.found.best:
        name, has = pictures.short(one.plan), one.plan.cluster.gpu.memory / GB
        row = {"plan": name, "needs (GB)": one.plan.held.total / GB, "a plan may fill (GB)": has}
        return book.Table([row], caption="The plan that needs least (simulated)")
    rows = []
    for n, plan in enumerate(one.found.best[:5], 1):
        rows.append({"": n, "plan": pictures.short(plan), "step (s)": plan.seconds, "MFU (%)": 100 * plan.mfu,
                     "GB": plan.held.total / GB, "beside the first": _beside(one.found, plan)})  # fmt: skip
    return book.Table(
        rows,
        caption="Why the others come after it (simulated). The last column: how much longer a step is than "
        "the first, and in which part it loses and gains most (in ms)",
    )


def _beside(found: Search, plan: Estimate) -> str:
    """How much longer a step is than the best, with the largest loss and the largest gain: "+45 ms: pipeline +211"."""
    best, all_in_all = pictures.parts_of(found.winner), plan.seconds - found.winner.seconds
    if plan is found.winner:
        return "the fastest"
    if all_in_all < 1e-6 * plan.seconds:
        return "equal in this model"
    gaps = sorted(((s - best[p], p) for p, s in pictures.parts_of(plan).items()), reverse=True)
    named = [(gap, part) for gap, part in (gaps[0], gaps[-1]) if abs(gap) > 0.05 * gaps[0][0]]
    others = all_in_all - sum(gap for gap, _ in named)
    named += [(others, "others")] if abs(others) > 0.5e-3 else []
    worth = [f"{part} {1e3 * gap:+,.0f}" for gap, part in named]
    return f"{1e3 * all_in_all:+,.0f} ms: {', '.join(worth)}"


def tried(one: Tried) -> str:
    """The shape of the plan on eight ranks: its step beside the planner's word for exactly that."""
    if one.run is None:
        return "The small ranks did not try it, because no plan fits."
    links = small.network(one.run.trace.world_size)
    found = small.measured(one.run, links)
    said = small.predicted(found)
    config = one.run.results[0].config
    off = said.seconds / found.seconds - 1
    return (
        f"**On real ranks.** Made small, this plan is {pictures.cut_name(config)} with {config.microbatches} "
        f"microbatch{'es' * (config.microbatches > 1)}, for a GPT of {small.GPT.layers} layers. On eight ranks a step "
        f"takes {format_seconds(found.seconds, 3)} (emulated). The planner says {format_seconds(said.seconds, 3)} for "
        f"it, {off:+.1%}, and that the largest part after computing goes to {pictures.largest(said)}."
        + (" This is further off than any of the plans in section 4." if abs(off) > 0.1 else "")
        + small.made_small(one.plan.plan, config)
        + " So the run tests whether the planner adds up a plan of this shape correctly. It cannot tell which plan is "
        f"the fastest on the {one.plan.cluster.gpu.name}s.{_the_same(one, config)}"
    )


def _the_same(one: Tried, shape: Any) -> str:
    """Which of the other plans become the same run when they are made small."""
    alike = [
        str(n) for n, plan in enumerate(one.found.best[:5], 1)
        if plan is not one.plan and small.shape_of(plan.plan) == shape
    ]  # fmt: skip
    if not alike:
        return ""
    many = len(alike) > 1
    return f" Plan{'s' * many} {listing(alike)} even become{'' if many else 's'} the same small run."


def pictures_of_run(one: WithMore) -> book.Figure | str:
    return "" if one.run is None else pictures.each_stage(one.run)


def faults(run: Run) -> book.Workbench:
    """Plan C on eight ranks with one fault, and what five signals show of it."""
    controls = {"fault": list(small.FAULTS)}
    views: list[View] = [pictures.health, pictures_of_run]
    return book.workbench(run, controls, views, title="One fault, five signals", ranks=8, clock="virtual",
                          network=small.network(8, nodes=4))  # fmt: skip
