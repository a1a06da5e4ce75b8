"""Pipelines of labkit and of `torch.distributed.pipelining`: a step of the same GPT by the same schedule."""

from __future__ import annotations

import copy
from typing import Any

import torch

import labkit
from labkit.models import GPTConfig, next_token_loss
from labkit.parallel.pipeline import Pipeline, interleaved, one_f_one_b
from labkit.parallel.pipeline.running.stages import gpt_stages
from labkit.parallel.pipeline.schedule import Schedule

from .in_turn import Step, in_turn, row
from .model_parallel_tensor import tokens

CONFIG = GPTConfig(context=64, layers=8, heads=4, width=128, tied=False)
SCHEDULES = {"1F1B": 1, "interleaved": 2}  # chunks on a rank


def cell(name: str, size: int, microbatches: int, batch: int, pairs: int, transport: str) -> dict[str, Any]:
    """One row. batch: sequences in a microbatch."""
    arguments = name, microbatches, batch, pairs
    run = labkit.launch(compare, size, *arguments, transport=transport, timeout=300)
    return row(run.results, ranks=size, batch=batch)


def compare(group: labkit.Group, name: str, microbatches: int, batch: int, pairs: int) -> Any:
    """Both pipelines on this rank, step after step."""
    chunks = SCHEDULES[name]
    schedule = (
        interleaved(group.size, microbatches, chunks) if chunks > 1 else one_f_one_b(group.size, microbatches)
    )  # fmt: skip
    modules = gpt_stages(CONFIG, schedule, group)
    steps = labkit_step(group, schedule, modules, batch), torch_step(group, schedule, copy.deepcopy(modules), batch)
    return in_turn(group, steps, pairs)


def labkit_step(group: labkit.Group, schedule: Schedule, modules: list[Any], batch: int) -> Step:
    pipeline = Pipeline(modules, group, next_token_loss)
    inputs, targets = tokens(batch * schedule.microbatches)

    def step() -> float | None:
        for module in modules:
            module.zero_grad()
        loss = pipeline.execute(schedule, inputs, targets).loss
        return None if loss is None else loss.item()

    return step


def torch_step(group: labkit.Group, schedule: Schedule, modules: list[Any], batch: int) -> Step:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B

    cpu = torch.device("cpu")
    stages: list[Any] = [
        PipelineStage(module, schedule.stage(group.rank, chunk), schedule.stages, cpu)
        for chunk, module in enumerate(modules)
    ]
    runner: Any = (
        Schedule1F1B(stages[0], schedule.microbatches, next_token_loss)
        if len(stages) == 1
        else ScheduleInterleaved1F1B(stages, schedule.microbatches, next_token_loss)
    )  # fmt: skip
    inputs, targets = tokens(batch * schedule.microbatches)
    first, last = group.rank == 0, group.rank == group.size - 1

    def step() -> float | None:
        for module in modules:
            module.zero_grad()
        losses: list[torch.Tensor] = []
        runner.step(
            *([inputs] if first else []),
            target=targets if last else None,
            losses=losses if last else None,
            return_outputs=False,
        )
        return torch.stack(losses).mean().item() if last else None

    return step
