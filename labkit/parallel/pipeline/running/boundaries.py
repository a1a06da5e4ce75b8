"""What crosses each boundary between stages: learned by running every stage once, before the first step.

Nothing is declared and nothing guessed. Stage 0 runs on its first microbatch; each later one on zeros of the shape
and dtype that the stage before has given. So a stage that does not take what it will be sent is found before the
schedule begins, and every rank hears of it. No gradients, no random numbers and no buffers change by it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from labkit.collectives import broadcast
from labkit.parallel.pipeline.running.agreement import refuse_together
from labkit.parallel.pipeline.running.stage import Head
from labkit.parallel.pipeline.schedule import Schedule
from labkit.wire.dtypes import CODES, DTYPES, describe
from labkit.wire.errors import Refused
from labkit.wire.group import Group

Shape = tuple[tuple[int, ...], torch.dtype]
DIMENSIONS = 14


def learn(
    schedule: Schedule, modules: Sequence[nn.Module], group: Group, samples: dict[int, tuple[int, Tensor | None]],
    head: Head,
) -> list[dict[int, Shape]]:  # fmt: skip
    """For each boundary of the model: {examples in a microbatch: (shape, dtype) of what crosses it}.

    samples: {examples: (a microbatch of so many, its inputs on the rank of the first stage)}, on every rank.
    head: the loss, for the last stage. Every rank calls it, with the same schedule and the same keys.
    Raises Refused on every rank for a stage that fails, or that gives anything but one tensor of real numbers.
    """
    last = schedule.stages - 1
    found: list[dict[int, Shape]] = [{} for _ in range(last)]
    for examples, (microbatch, sample) in samples.items():
        shape: Shape | None = None
        for stage in range(last + 1):
            rank, chunk = schedule.where(stage)
            problem: Exception | None = None
            row = torch.zeros(DIMENSIONS + 2, dtype=torch.int64, device=group.device)
            if rank == group.rank:
                if stage == 0:
                    assert sample is not None
                    x = sample
                else:
                    assert shape is not None
                    x = torch.zeros(shape[0], dtype=shape[1], device=group.device)
                try:
                    y = _try(modules[chunk], x, stage, None if stage < last else head, microbatch, shape)
                    if stage < last:
                        row[: 2 + y.dim()] = torch.tensor([CODES[y.dtype], y.dim(), *y.shape])
                except Exception as why:
                    problem = why
                row[0] = -1 if problem is not None else row[0]
            if group.size > 1:
                broadcast(row, group, rank)
            code, dims, *sizes = row.tolist()
            if code < 0:
                refuse_together(group, problem)
            if stage < last:
                shape = tuple(sizes[:dims]), DTYPES[code - 1]
                found[stage][examples] = shape
    return found


def _try(
    module: nn.Module, x: Tensor, stage: int, head: Head | None, microbatch: int, came: Shape | None
) -> Tensor:  # fmt: skip
    """One forward without traces; Refused in words that name the stage."""
    takes = describe(CODES[x.dtype], tuple(x.shape))
    buffers = [(b, b.clone()) for b in module.buffers()]
    devices = [x.device] if x.device.type == "cuda" else []
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=devices):
            y = module(x)
            if isinstance(y, Tensor) and head is not None:
                loss = head(y, microbatch)
                if not isinstance(loss, Tensor) or loss.dim():
                    got = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
                    raise Refused(f"the loss of a microbatch must be one number, and this one is {got}: take its mean")
    except Refused:
        raise
    except Exception as why:
        said = str(why).strip().splitlines()[0] if str(why).strip() else ""
        error = f"{type(why).__name__}: {said}"
        if came is None:
            raise Refused(f"stage {stage} raised on a microbatch of {takes}: {error}") from why
        what = "or the loss of it " if head is not None else ""
        raise Refused(f"what stage {stage - 1} sends is not what stage {stage} takes: it sends {takes}, and stage "
                      f"{stage} {what}raised {error}. Cut the model so that the two fit") from why  # fmt: skip
    finally:
        for b, value in buffers:
            b.copy_(value)
    if not isinstance(y, Tensor):
        raise Refused(f"stage {stage} returns {_name(y)}: a stage of a pipeline takes one tensor and returns one. "
                      "Join them, or cut the model elsewhere")  # fmt: skip
    if head is None and not y.is_floating_point():
        raise Refused(f"stage {stage} returns {describe(CODES[y.dtype], tuple(y.shape))}: a gradient comes back for "
                      "what it sends, so it must be floating-point numbers")  # fmt: skip
    if y.dim() > DIMENSIONS:
        raise Refused(f"stage {stage} returns a tensor of {y.dim()} dimensions: at most {DIMENSIONS} can be sent")
    return y


def _name(y: object) -> str:
    if isinstance(y, (list, tuple)):
        return f"a {type(y).__name__} of {len(y)}"
    return "None" if y is None else f"a {type(y).__name__}"
