"""A plan of `cost.planner` on real ranks: the step that it predicts, run by `Hybrid` on emulated GPUs and links.

    trial = try_plan(model, cluster, plan)             # as many real processes as the plan has GPUs
    trial.seconds, trial.loss, trial.nbytes            # and beside it: planner.estimate(model, cluster, plan).seconds

Processes, numbers and messages are real. Time is the virtual clock's: operations take what they would on the cluster's
GPU (`EmulatedGpu`), messages what they would on its links, with the parts of both that `cluster.efficiency` says. So
the time is the same on any machine, and nothing that the planner believes of layers, schedules or overlap is in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean
from typing import Any

import torch

import labkit
from labkit.cost.planner import Cluster, Model, Plan
from labkit.models.gpt import GPTConfig
from labkit.models.moe import MoEConfig
from labkit.parallel.emulated_gpu import EmulatedGpu, Speeds
from labkit.parallel.hybrid.config import HybridConfig
from labkit.parallel.hybrid.hybrid import Hybrid
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group
from labkit.wire.network import Link, Network

DTYPE = torch.bfloat16  # weights, gradients and messages of 2 bytes, which the planner counts with
ORDER = ("pp", "dp", "cp", "tp")  # where a plan has its axes (`planner.Plan`)
_DATA = {"plain": "plain", "zero1": "zero1", "zero2": "zero2", "zero3": "fsdp", "hsdp": "hsdp"}


@dataclass(frozen=True)
class Trial:
    """What a plan took. seconds: of one step after the first, on the virtual clock, from end to end of all ranks.

    loss: of the last step. skew: tokens of the expert rank with most, over the mean, in the mean of the layers, for
    `planner.Model.skew`; 1 without experts. nbytes: by part ("parameters", "gradients", "optimizer"), of the tensors
    that lie on the rank which has most, after the backward pass.
    """

    seconds: float
    loss: float
    skew: float
    nbytes: dict[str, int]
    trace: Any


def try_plan(model: Model, cluster: Cluster, plan: Plan, *, steps: int = 2, seed: int = 0) -> Trial:
    """Run `steps` steps of `plan` after a first one, on `plan.gpus` ranks, and say what one took.

    Raises RefusedError for what `Hybrid` is not built for: recomputation, gated layers, gradients of another size than
    the weights. Random tokens, float numbers of 16 bits.
    """
    plan.refuse(model, cluster.gpus)
    run = labkit.launch(
        _train, plan.gpus, gpt_config(model), hybrid_config(plan), speeds_of(cluster), plan.batch, steps, seed,
        transport="local", clock="virtual", network=network_of(cluster),
    )  # fmt: skip
    ends = [max(times) for times in zip(*(found[0] for found in run.results), strict=True)]
    most = max((found[2] for found in run.results), key=lambda parts: sum(parts.values()))
    skews = [skew for found in run.results for skew in found[3]]
    return Trial((ends[-1] - ends[0]) / steps, run.results[0][1], mean(skews) if skews else 1.0, most, run.trace)


def hybrid_config(plan: Plan) -> HybridConfig:
    """The configuration that does what `plan` says, its axes placed as the planner places them, collectives by ring."""
    if plan.recompute != "all":
        raise RefusedError(f"Plan(recompute={plan.recompute!r}): Hybrid keeps all activations; take recompute='all'")
    if plan.gradient_bytes != DTYPE.itemsize:
        raise RefusedError(f"Plan(gradient_bytes={plan.gradient_bytes}): gradients have the dtype of weights; take 2")
    return HybridConfig(
        dp=plan.replicas, data=_DATA[plan.sharding], shard=plan.shard // plan.context if plan.shard else None,
        tp=plan.tensor, sequence_parallel=plan.sequence_parallel and plan.tensor > 1, pp=plan.pipeline,
        schedule=plan.schedule, chunks=plan.chunks, microbatches=plan.microbatches, cp=plan.context, ep=plan.expert,
        order=ORDER, algorithm="ring",
    )  # fmt: skip


def gpt_config(model: Model) -> GPTConfig:
    """The same sizes. Rotary positions where the model has no table of them. Raises RefusedError for gated layers."""
    if model.gated or not model.biases or model.positions not in (0, model.sequence) or model.dropout:
        raise RefusedError(
            f"{model.name}: Hybrid trains a GPT with biases, without gates and dropout, and with positions for its "
            "whole sequence, or none: take such a Model"
        )
    moe = None
    if model.experts:
        width = model.expert_inside / model.hidden
        moe = MoEConfig(model.experts, model.top_k, hidden=width, shared=model.shared * width)
    return GPTConfig(
        vocab=model.vocabulary, context=model.sequence, layers=model.layers, heads=model.heads, width=model.hidden,
        expansion=max(1, model.inside // model.hidden), tied=model.tied, moe=moe, rotary=not model.positions,
        kv_heads=None if model.kv_heads == model.heads else model.kv_heads,
    )  # fmt: skip


def network_of(cluster: Cluster) -> Network:
    """The cluster's links, as software reaches them: those in a domain and those between domains."""
    inner, *outer = cluster.reached.levels
    if len(outer) > 1:
        raise RefusedError(f"{cluster.topology.name} has {len(outer) + 1} levels; links are emulated on two")
    across = outer[0] if outer else inner
    return Network(
        across.holds if outer else 1, cluster.domain, Link(inner.bandwidth, inner.latency),
        Link(across.share, across.latency),
    )  # fmt: skip


def speeds_of(cluster: Cluster) -> Speeds:
    """Of one GPU, as software reaches them."""
    reached = cluster.efficiency
    return Speeds(
        cluster.peak * reached.products, cluster.peak * reached.attention,
        cluster.gpu.memory_bandwidth * reached.memory,
    )  # fmt: skip


def emulated(hybrid: Hybrid, speeds: Speeds, batch: int) -> EmulatedGpu:
    """`with emulated(hybrid, speeds, batch):` its operations take time. batch: sequences of a step."""
    if hybrid.context is not None:  # attention around the ring is one kernel for each block
        model, config = hybrid.model, hybrid.config
        heads = model.heads // config.tp // config.ulysses
        each = batch // config.dp // config.microbatches * heads * 4 * (model.width // model.heads)
        hybrid.context.pair_seconds = each / speeds.attention
    return EmulatedGpu(hybrid.group, speeds)


def _train(
    group: Group, model: GPTConfig, config: HybridConfig, speeds: Speeds, batch: int, steps: int, seed: int
) -> tuple[list[float], float, dict[str, int], list[float]]:
    """(when each step ended, the last loss, bytes held, skew of each layer) on this rank."""
    torch.set_num_threads(1)
    hybrid = Hybrid(group, model, config, seed=seed, dtype=DTYPE)
    drawn = torch.randint(model.vocab, (batch, model.context + 1), generator=torch.Generator().manual_seed(seed))
    ends, held = [], {}
    with emulated(hybrid, speeds, batch):
        for step in range(steps + 1):
            group.step(step)
            hybrid.zero_grad()
            loss = hybrid.forward_backward(drawn[:, :-1], drawn[:, 1:])
            held = hybrid.nbytes()
            hybrid.optimizer_step()
            ends.append(group.context.clock_here().now() / 1e9)
    loads = [load.view(config.ep, -1).sum(1) for part in hybrid.parts for load in part.loads if load is not None]
    return ends, loss.item(), held, [float(load.max() / load.double().mean()) for load in loads]
