"""The small cluster of chapter 15: a GPT, GPUs and links that are emulated, a step on them, and what planners are told.

A link inside a node is twelve times as fast as one between nodes, as NVLink of an A100 is beside its network card.
Numbers have 16 bits, as on a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from labkit.collectives import barrier
from labkit.cost import planner
from labkit.cost.planner import Cluster, Efficiency, Gpu, MeasuredStep, Model, Plan
from labkit.cost.planner.costs import Costs
from labkit.cost.topology import Level, Topology
from labkit.models import GPTConfig, MoEConfig
from labkit.parallel import Hybrid, HybridConfig
from labkit.parallel.emulated_gpu import EmulatedGpu, Speeds
from labkit.parallel.hybrid.trial import emulated
from labkit.wire import Group, Link, Network
from labkit.wire.errors import RefusedError

GPT = GPTConfig(vocab=64, context=32, layers=4, heads=8, width=64)
EXPERTS = replace(GPT, moe=MoEConfig(8, 2, hidden=0.5))
BATCH = 32  # sequences of a step
FLOPS = 4e9  # operations a second of an emulated GPU
INSIDE, ACROSS = Link(100e6, 2e-6), Link(100e6 / 12, 10e-6)
OVERLAPS = frozenset({"tensor", "context", "pipeline"})  # what `Hybrid` sends while it computes
ORDERS = {  # axes, the innermost last: its ranks are neighbours
    "tensor": ("pp", "dp", "cp", "tp"), "pipeline": ("tp", "dp", "cp", "pp"), "data": ("tp", "pp", "cp", "dp"),
}  # fmt: skip
NAMES = ("tensor", "pipeline", "context", "data")  # of the axes
SHARDING = {"plain": "plain", "zero1": "zero1", "zero2": "zero2", "zero3": "zero3", "fsdp": "zero3", "hsdp": "hsdp"}


# The machine -----------------------------------------------------------------------------------------------------


def per_node(ranks: int, nodes: int = 2) -> int:
    """Ranks on a node: an even share of `nodes`; where they do not divide, each rank is a node of its own."""
    return ranks // nodes if ranks % nodes == 0 else 1


def network(ranks: int, nodes: int = 2, inside: Link = INSIDE, across: Link = ACROSS) -> Network:
    """Its links, for a run."""
    k = per_node(ranks, nodes)
    return Network(ranks // k, k, inside, across)


def cluster(links: Network, data: str = "plain", memory: float = 1e12) -> Cluster:
    """The same for the planner. Attention and products reach all of the peak; memory is never waited for.

    data: of FSDP the planner is told that gathering and reducing go on under computing. The gradients of plain data
    parallelism would too, but those of this small model are one bucket, which leaves when the last of them is there.
    The sum of plain data parallelism is done inside the nodes first; ZeRO's exchange takes no notice of nodes.
    """
    k = links.ranks_per_node or 1
    levels = [
        Level(name, holds, link.bandwidth, link.latency)
        for name, holds, link in (("node", k, links.intra), ("cluster", links.nodes, links.inter))
        if holds > 1
    ]
    gpu = Gpu("emulated", memory, 1e18, (("bf16", FLOPS),), 1)
    overlaps = OVERLAPS | {"data"} if "sdp" in data else OVERLAPS
    figures = Efficiency(1.0, 1.0, 1.0, 1.0, 1.0, overlaps=overlaps, hierarchical=data == "plain")
    return Cluster(Topology("emulated", tuple(levels)), gpu, figures)


def model_of(gpt: GPTConfig, sequence: int | None = None) -> Model:
    """A small GPT as the planner knows models."""
    return Model(
        f"a GPT of {gpt.layers} layers", gpt.layers, gpt.width, gpt.heads, kv_heads=gpt.groups,
        inside=gpt.expansion * gpt.width, vocabulary=gpt.vocab, sequence=sequence or gpt.context, tied=gpt.tied,
        positions=0 if gpt.rotary else gpt.context, biases=True,
    )  # fmt: skip


def plan_of(config: HybridConfig, batch: int = BATCH) -> Plan:
    """A configuration as the planner knows plans. Nothing is computed again, and gradients are as wide as activations.

    Of the planner's experts and data the small model has data only.
    """
    return Plan(
        config.tp, config.pp, config.cp, 1, config.dp, batch // (config.dp * config.microbatches), config.microbatches,
        config.schedule if config.pp > 1 else "one_f_one_b", config.chunks, SHARDING[config.data], config.shard or 0,
        "all", config.sequence_parallel, 2,
    )  # fmt: skip


# A cut -----------------------------------------------------------------------------------------------------------


def cut(
    ranks: int, tp: int = 1, pp: int = 1, microbatches: int = 1, inner: str = "tensor", **more: Any
) -> HybridConfig:  # fmt: skip
    """tp x pp, and what is left of the ranks as data parallelism; refused if they do not divide.

    With tensor parallelism comes sequence parallelism, so that a stage sends each activation once.
    """
    cp = more.get("cp", 1)
    more = {"sequence_parallel": tp > 1} | more
    if ranks % (tp * pp * cp):
        sizes = " x ".join(map(str, (tp, pp, cp) if cp > 1 else (tp, pp)))
        raise RefusedError(
            f"{sizes} = {tp * pp * cp} ranks hold the model once, and {tp * pp * cp} does not divide {ranks}: "
            "take smaller degrees"
        )
    return HybridConfig(
        dp=ranks // (tp * pp * cp), pp=pp, tp=tp, microbatches=microbatches, order=ORDERS[inner], **more
    )


def usual(ranks: int) -> tuple[int, int]:
    """(tp, pp) that use each axis where the number of ranks allows it: 2 and 2 of 8, 2 and 1 of 6, 1 and 1 of 7."""
    tp = 2 if ranks % 2 == 0 else 1
    pp = 2 if ranks % 4 == 0 else 1
    return tp, pp


def shape_of(plan: Plan, ranks: int = 8) -> HybridConfig:
    """A plan made small: its largest degree is halved until so many ranks are enough; `made_small` says what changed.

    Schedule, state and microbatches for each stage stay as they are where `Hybrid` can do them. Context parallelism
    goes first where not all axes have room, so that replicas stay, and with them a way to share the state.
    """
    whole_axes = {"cp": plan.context, "dp": plan.replicas, "pp": plan.pipeline, "tp": plan.tensor}
    sizes = {axis: 1 << (size.bit_length() - 1) for axis, size in whole_axes.items()}  # powers of two
    sizes["pp"] = min(sizes["pp"], GPT.layers)
    while math.prod(sizes.values()) > ranks:
        axis = max(sizes, key=lambda one: sizes[one])  # of equal ones the first
        sizes[axis] //= 2
    sizes["dp"] *= ranks // math.prod(sizes.values())
    pp, dp = sizes["pp"], sizes["dp"]
    data = {"zero3": "fsdp", "hsdp": "fsdp"}.get(plan.sharding, plan.sharding)
    data = "plain" if dp * sizes["cp"] == 1 else "zero1" if pp > 1 and data == "zero2" else data
    more: dict[str, Any] = {"microbatches": min(4, 1 << (plan.microbatches.bit_length() - 1))}
    if pp > 1:
        waves = min(2, max(1, plan.microbatches // plan.pipeline))
        more = {"microbatches": pp << (waves.bit_length() - 1)}  # a power of two, so that they share the batch
        if plan.chunks > 1:
            more |= {"schedule": "interleaved", "chunks": 2} if GPT.layers >= 2 * pp else {}
        elif data != "fsdp" and more["microbatches"] >= 2 * pp - 1:
            more |= {"schedule": plan.schedule}
        more["microbatches"] = min(more["microbatches"], BATCH // dp)
    return HybridConfig(
        data=data, order=ORDERS["tensor"], sequence_parallel=plan.sequence_parallel and sizes["tp"] > 1, **sizes, **more
    )


def made_small(plan: Plan, config: HybridConfig) -> str:
    """In words: which degrees are smaller in `config` than in the plan, and what of the plan it leaves out."""
    changed: list[str] = []
    dropped: list[str] = []
    for name, before, after in (
        ("tensor", plan.tensor, config.tp), ("pipeline", plan.pipeline, config.pp),
        ("context", plan.context, config.cp), ("data", plan.replicas, config.dp),
    ):  # fmt: skip
        if before != after:
            (changed if after > 1 else dropped).append(
                f"{name} from {before:,} to {after}" if after > 1 else f"{name} parallelism ({before:,} ways)"
            )
    if plan.chunks != config.chunks:
        dropped.append(f"{plan.chunks - config.chunks} of the {plan.chunks} chunks on a rank")
    if plan.pipeline > 1 and config.pp > 1 and plan.schedule != config.schedule:
        dropped.append(f"the schedule {plan.schedule}")
    if SHARDING[config.data] != plan.sharding:
        dropped.append({"hsdp": "the copies of HSDP"}.get(plan.sharding, f"the sharding of {plan.sharding}"))
    if plan.recompute != "all":
        dropped.append("recomputation")
    said = f" Halved: {', '.join(changed)}." if changed else ""
    return f"{said} Left out: {', '.join(dropped)}." if dropped else said


# A step ----------------------------------------------------------------------------------------------------------


def gpu(hybrid: Hybrid, size: int = BATCH, slower: float = 1) -> EmulatedGpu:
    """`with gpu(hybrid):` its matrix products and attention take the time of a GPU of `FLOPS`, or of one that is
    `slower` times as slow. size: of its batch."""
    return emulated(hybrid, Speeds(FLOPS / slower, FLOPS / slower, math.inf), size)


def batch(step: int = 1, size: int = BATCH, gpt: GPTConfig = GPT) -> tuple[Tensor, Tensor]:
    """The batch of a step, the same on every rank: random ids, since only time and bytes are looked at."""
    drawn = torch.randint(gpt.vocab, (size, gpt.context + 1), generator=torch.Generator().manual_seed(step))
    return drawn[:, :-1], drawn[:, 1:]


@dataclass(frozen=True)
class Told:
    """What a rank says after two steps: its configuration, and the groups that it is in, by axis."""

    config: HybridConfig
    groups: dict[str, tuple[int, ...]]


def two_steps(
    group: Group, config: HybridConfig, gpt: GPTConfig = GPT, size: int = BATCH, slow: int | None = None
) -> Told:  # fmt: skip
    """Two steps with emulated kernels. Look at the second, number 2: in the first a pipeline learns its shapes.

    Without a pipeline the first is like all others, if all ranks begin it together, and is left out. Without the
    barrier it is not: what a rank still waits for when the model is built would count as part of its step. slow: a
    rank whose GPU is half as fast as the others.
    """
    group.step(0)  # the ranks may have been kept, and the last step of the run before was 3
    return take(Hybrid(group, gpt, config, dtype=torch.bfloat16), size, 2 if group.rank == slow else 1)


def take(hybrid: Hybrid, size: int = BATCH, slower: float = 1) -> Told:
    """The same of a model that has been made: forward, backward and update, on emulated GPUs."""
    group, config = hybrid.group, hybrid.config
    barrier(group)
    with gpu(hybrid, size, slower):
        for step in (1, 2) if config.pp > 1 else (2,):
            group.step(step)
            hybrid.step(*batch(step, size, hybrid.model))
    group.step(3)  # ends the last one
    return Told(config, groups_of(hybrid))


def groups_of(hybrid: Hybrid) -> dict[str, tuple[int, ...]]:
    """The ranks that this one works with along each axis."""
    found = {"tensor": hybrid.tp, "pipeline": hybrid.pp, "context": hybrid.mesh["cp"], "data": hybrid.data}
    return {axis: tuple(group.global_ranks) for axis, group in found.items()}


def seconds(run: Any, step: int = 2) -> float:
    """Of the second step of `two_steps`."""
    begin, end = run.trace.during_step(step)
    return float(end - begin)


def busy(run: Any, step: int = 2) -> float:
    """The part of a step in which ranks compute, on average."""
    rows = run.trace.step_breakdown(step)
    return sum(row["compute"] for row in rows) / len(rows) / seconds(run, step)


def sent_by_axis(run: Any, step: int = 2) -> list[dict[str, int]]:
    """By rank: bytes of a step, by the axis whose group carried them; "numbers" are those of all ranks at once."""
    found = [dict.fromkeys((*NAMES, "numbers"), 0) for _ in run.results]
    for m, axis in messages(run, step):
        found[m.src][axis] += int(m.nbytes)
    return found


def messages(run: Any, step: int = 2, received: bool = False) -> Iterator[tuple[Any, str]]:
    """The messages of a step, as their senders saw them or their receivers, each with its axis."""
    groups = run.trace.groups
    for m in run.trace.recvs if received else run.trace.sends:
        if m.step == step:
            yield m, _axis(set(groups[m.group]), run.results[m.src].groups)


def crossing(run: Any, per_node: int, step: int = 2) -> dict[str, dict[str, float]]:
    """Bytes of a step by axis, of all ranks: inside nodes, between nodes to the same place, and to another place."""
    found = {where: dict.fromkeys(NAMES, 0.0) for where in ("inside a node", "same rail", "another rail")}
    for m, axis in messages(run, step):
        if axis in NAMES:
            rail = "same rail" if m.src % per_node == m.dst % per_node else "another rail"
            found["inside a node" if m.src // per_node == m.dst // per_node else rail][axis] += float(m.nbytes)
    return found


def slow_turns(run: Any, per_node: int, step: int = 2) -> int:
    """How often, one after the other, messages with parts of the gradients go between nodes."""
    turns, over = 0, 0.0
    for start, end in sorted(
        (m.start, m.end) for m, axis in messages(run, step)
        if axis == "data" and m.nbytes > 1000 and m.src // per_node != m.dst // per_node
    ):  # fmt: skip
        if start > over:  # those of one turn overlap
            turns, over = turns + 1, start + (end - start) / 2
    return turns


def _axis(members: set[int], of: dict[str, tuple[int, ...]]) -> str:
    inside = [axis for axis, ranks in of.items() if len(ranks) > 1 and members <= set(ranks)]
    return inside[0] if inside else "numbers"


def measured(run: Any, links: Network, gpt: GPTConfig = GPT, size: int = BATCH) -> MeasuredStep:
    """A run beside its plan, for the planner."""
    config = run.results[0].config
    return MeasuredStep(model_of(gpt), cluster(links, config.data), plan_of(config, size), seconds(run))


def predicted(one: MeasuredStep) -> planner.Estimate:
    """What the planner says of it, with the figures that its cluster has."""
    return planner.estimate(one.model, one.cluster, one.plan)


def ingredients(one: MeasuredStep) -> dict[str, float]:
    """What the reader's `step_seconds` asks for, of a plan on its machine. Ranks of tp and of cp share a layer."""
    plan = one.plan
    return {
        "t": plan.tensor * plan.context, "p": plan.pipeline, "m": plan.microbatches, "layers": one.model.layers,
        **layer_of(one.model, one.cluster, plan), "gradients": predicted(one).parts["data"],
    }  # fmt: skip


def layer_of(model: Model, cluster: Cluster, plan: Plan) -> dict[str, float]:
    """Seconds of one layer in one microbatch: computing on one GPU alone, and waiting for its all-reduces."""
    costs = Costs(model, cluster)
    whole = costs.layer(plan.microbatch, 1, 1, 1, False, plan.recompute)
    waits = costs.waits(
        plan.tensor, plan.context, plan.expert, plan.microbatch, plan.sequence_parallel, plan.recompute
    )  # fmt: skip
    return {"layer": whole.total, "sums": waits.forward + waits.backward}


# Faults of a plan -------------------------------------------------------------------------------------------------

FAULTS = ("none", "tensor ranks on two nodes", "a single microbatch", "nothing sharded", "a slow GPU")


def with_fault(fault: str = "none") -> tuple[HybridConfig, int | None]:
    """Plan C on eight ranks with one of `FAULTS`: its configuration, and the rank whose GPU is slow."""
    inner = "data" if fault == "tensor ranks on two nodes" else "tensor"
    m = 1 if fault == "a single microbatch" else 8
    config = cut(8, 2, 2, m, inner, data="plain" if fault == "nothing sharded" else "zero1")
    return config, 5 if fault == "a slow GPU" else None


def step_with_fault(group: Group, fault: str = "none") -> Told:
    """`two_steps` of that."""
    config, slow = with_fault(fault)
    return two_steps(group, config, slow=slow)


def holding_with_fault(group: Group, fault: str = "none") -> dict[str, int]:
    """`holding` of that."""
    return holding(group, with_fault(fault)[0])


# Memory ----------------------------------------------------------------------------------------------------------


def holding(group: Group, config: HybridConfig, gpt: GPTConfig = GPT) -> dict[str, int]:
    """Bytes of weights, gradients and Adam's state on this rank at the end of the second backward pass, by part.

    Sequences are as few and as short as they can be.
    """
    hybrid = Hybrid(group, gpt, config)
    inputs, targets = batch(1, config.dp * config.microbatches, gpt)
    length = 2 * config.cp * config.tp
    hybrid.step(inputs[:, :length], targets[:, :length])  # Adam's state begins with the first update
    hybrid.zero_grad()
    hybrid.forward_backward(inputs[:, :length], targets[:, :length])
    return hybrid.nbytes()


def fullest(run: Any) -> dict[str, float]:
    """Of the rank that holds most in a run of `holding`: its bytes by part."""
    return max(run.results, key=lambda held: sum(held.values()))


def state_of(config: HybridConfig, gpt: GPTConfig = GPT) -> float:
    """Bytes of training state on the fullest rank, by the planner.

    In 32 bits there are no second weights: 4 bytes for a weight, 4 for its gradient and 8 for Adam, where the planner
    has 2, 2 and 12.
    """
    plan = plan_of(config, config.dp * config.microbatches)
    held = planner.estimate(model_of(gpt), cluster(network(config.size)), plan).held
    return 2 * held.parameters + 2 * held.gradients + held.optimizer * 8 / 12
