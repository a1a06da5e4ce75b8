"""A step along all axes, and its parts by themselves: the step of one replica, and the exchange of the gradients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

import labkit
from labkit.collectives import all_reduce
from labkit.cost.planner import Plan
from labkit.parallel import Mesh, try_plan
from labkit.parallel.hybrid.trial import DTYPE, network_of
from labkit.parallel.hybrid.trials import SMALL, TRUE, WIDE, emulated_cluster

THREE = Plan(2, 2, 1, 1, 2, 4, 4, recompute="all", sequence_parallel=False, gradient_bytes=2)
TWO = replace(THREE, pipeline=1, data=4, microbatches=1)


def rows() -> list[dict[str, Any]]:
    """TP x PP x DP on two nodes of four, whose stages are on different nodes; TP x DP, whose replicas are."""
    return [_row(SMALL, THREE, 2), _row(WIDE, TWO, 2)]


def _row(model: Any, plan: Plan, domain: int) -> dict[str, Any]:
    """domain: ranks of one replica on a node. Gradients are summed up over all groups at once, by ring."""
    whole = emulated_cluster(plan.gpus, 4, TRUE)
    step = try_plan(model, whole, plan)
    replica = try_plan(model, emulated_cluster(plan.gpus // plan.data, domain, TRUE), replace(plan, data=1))
    run = labkit.launch(
        _exchange, plan.gpus, step.nbytes["gradients"] // DTYPE.itemsize,
        {"pp": plan.pipeline, "dp": plan.data, "tp": plan.tensor},
        transport="local", clock="virtual", network=network_of(whole),
    )  # fmt: skip
    exchange = max(run.results)
    return {
        "plan": str(plan), "step ms": 1e3 * step.seconds, "one replica ms": 1e3 * replica.seconds,
        "gradients ms": 1e3 * exchange, "step / parts": step.seconds / (replica.seconds + exchange),
    }  # fmt: skip


def _exchange(group: labkit.Group, numbers: int, sizes: dict[str, int]) -> float:
    data, clock = Mesh(group, sizes)["dp"], group.context.clock_here()
    gradients = torch.zeros(numbers, dtype=DTYPE)
    labkit.collectives.barrier(group)
    begin = clock.now()
    all_reduce(gradients, data, algorithm="ring")
    return (clock.now() - begin) / 1e9
