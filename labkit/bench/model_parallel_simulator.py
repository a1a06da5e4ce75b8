"""The simulator of pipelines against runs on the wall clock, and how long it takes for a large one."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import labkit
from labkit import collectives
from labkit.parallel.pipeline import (
    Costs,
    Pipeline,
    Schedule,
    Timeline,
    gpipe,
    interleaved,
    naive,
    one_f_one_b,
    simulate,
    zb_h1,
    zb_h2,
    zb_v,
)

WIDTH = 64
SCHEDULES: dict[str, Callable[[int, int], Schedule]] = {
    "naive": naive, "gpipe": gpipe, "one_f_one_b": one_f_one_b, "interleaved": interleaved, "zb_h1": zb_h1,
    "zb_h2": zb_h2, "zb_v": zb_v,
}  # fmt: skip


def agreement(size: int, microbatches: int, unit: float, transport: str) -> list[dict[str, Any]]:
    """One row for each schedule: a step of stand-in kernels, and the simulator's, given the measured hop.

    unit: seconds of each F, B and W of a stage, so that a rank with two chunks has twice the work. All in one world, so
    that the hop is that of these ranks at this time.
    """
    run = labkit.launch(run_all, size, microbatches, unit, transport=transport, timeout=300)
    hop = statistics.median(found[0] for found in run.results)
    rows = []
    for name, make in SCHEDULES.items():
        schedule = make(size, microbatches)
        link = labkit.Link(latency=hop)
        simulated = simulate(schedule, Costs(unit, unit, unit), link).seconds
        wall = min(map(max, zip(*(found[1][name] for found in run.results), strict=True)))
        rows.append({
            "schedule": name, "ranks": size, "microbatches": microbatches, "hop us": 1e6 * hop,
            "wall ms": 1e3 * wall, "simulated ms": 1e3 * simulated, "wall / simulated": wall / simulated,
        })  # fmt: skip
    return rows


def run_all(group: labkit.Group, microbatches: int, unit: float) -> tuple[float, dict[str, list[float]]]:
    """(seconds of a hop, seconds of three steps of every schedule) on this rank."""
    x = torch.zeros(microbatches, WIDTH)
    seconds = {}
    for name, make in SCHEDULES.items():
        schedule = make(group.size, microbatches)
        pipeline = Pipeline([nn.Linear(WIDTH, WIDTH) for _ in range(schedule.chunks)], group, nn.MSELoss())
        pipeline.execute(schedule, x, x)  # what is learned about a schedule is learned once
        seconds[name] = [step(group, pipeline, schedule, x, Costs(unit, unit, unit)) for _ in range(3)]
    return hop(group), seconds


def step(group: labkit.Group, pipeline: Pipeline, schedule: Schedule, x: torch.Tensor, seconds: Costs) -> float:
    """Seconds of one step on this rank, from when all have begun."""
    collectives.barrier(group, algorithm="dissemination")
    begin = time.perf_counter()
    pipeline.execute(schedule, x, x, seconds=seconds)
    return time.perf_counter() - begin


def hop(group: labkit.Group, times: int = 50) -> float:
    """Median seconds of one message of a boundary's size between ranks 0 and 1: half of there and back."""
    x, measured = torch.zeros(1, WIDTH), []
    for _ in range(times):
        begin = time.perf_counter()
        if group.rank == 0:
            group.send(x, 1)
            group.recv(x, 1)
        elif group.rank == 1:
            group.recv(x, 0)
            group.send(x, 0)
        measured.append((time.perf_counter() - begin) / 2)
    found = torch.tensor([statistics.median(measured)])
    collectives.broadcast(found, group)
    return found.item()


def speed(stages: int = 64, microbatches: int = 1024) -> list[dict[str, Any]]:
    """Seconds to make, simulate and draw each schedule at a large size, best of three."""
    costs, link, rows = Costs(1.0, 1.0, 1.0), labkit.Link(latency=0.01), []
    for name, make in SCHEDULES.items():
        schedule, making = best(make, stages, microbatches)
        timeline, simulating = best(simulate, schedule, costs, link)
        rows.append({
            "schedule": name, "instructions": sum(map(len, schedule.ranks)), "make s": making,
            "simulate s": simulating, "draw s": best(Timeline.draw, timeline)[1],
        })  # fmt: skip
    return rows


def best(call: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    """What a function returns, and the seconds of the fastest of three calls."""
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        result = call(*arguments)
        times.append(time.perf_counter() - begin)
    return result, min(times)
