"""What crosses each boundary between stages: learned by running every stage once, before the first step.

Nothing is declared and nothing guessed. Stage 0 runs on its first microbatch; each later one on zeros of the shapes
and dtypes that the stage before has given. So a stage that does not take what it will be sent is found before the
schedule begins, and every rank hears of it. No gradients, no random numbers and no buffers change by it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from labkit.collectives import broadcast
from labkit.parallel.pipeline.running.agreement import refuse_together
from labkit.parallel.pipeline.running.stage import LossFn, Tensors, have_gradients
from labkit.parallel.pipeline.schedule import Schedule
from labkit.wire.dtypes import CODES, DTYPES, describe
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group

Shapes = tuple[tuple[tuple[int, ...], torch.dtype], ...]  # of each tensor that crosses
DIMENSIONS, TENSORS = 14, 16


def learn(
    schedule: Schedule, modules: Sequence[nn.Module], group: Group, samples: dict[int, tuple[int, Tensors | None]],
    loss_fn: LossFn,
) -> list[dict[int, Shapes]]:  # fmt: skip
    """For each boundary of the model: {examples in a microbatch: (shape, dtype) of each tensor that crosses it}.

    samples: {examples: (a microbatch of so many, its inputs on the rank of the first stage)}, on every rank.
    head: the loss, for the last stage. Every rank calls it, with the same schedule and the same keys.
    Raises RefusedError on every rank for a stage that fails, or returns anything but tensors, one of them of floats.
    """
    last = schedule.stages - 1
    found: list[dict[int, Shapes]] = [{} for _ in range(last)]
    for examples, (microbatch, sample) in samples.items():
        shapes: Shapes = ()
        for stage in range(last + 1):
            rank, chunk = schedule.where(stage)
            problem: Exception | None = None
            rows = torch.zeros(TENSORS, DIMENSIONS + 2, dtype=torch.int64, device=group.device)
            if rank == group.rank:
                if stage == 0:
                    assert sample is not None
                    inputs = sample
                else:
                    inputs = tuple(torch.zeros(shape, dtype=dtype, device=group.device) for shape, dtype in shapes)
                try:
                    outputs = _try(modules[chunk], inputs, stage, None if stage < last else loss_fn, microbatch)
                    for row, y in zip(rows, outputs, strict=False):
                        row[: 2 + y.dim()] = torch.tensor([CODES[y.dtype], y.dim(), *y.shape])
                except Exception as why:
                    problem = why
                    rows[0, 0] = -1
            if group.size > 1:
                broadcast(rows, group, rank)
            told = rows.tolist()
            if told[0][0] < 0:
                refuse_together(group, problem)
            if stage < last:
                shapes = tuple((tuple(sizes[:dims]), DTYPES[code - 1]) for code, dims, *sizes in told if code)
                found[stage][examples] = shapes
    return found


def _try(module: nn.Module, inputs: Tensors, stage: int, loss_fn: LossFn | None, microbatch: int) -> Tensors:
    """One forward without traces; what goes on to the next stage. Refused in words that name the stage."""
    takes = _named(inputs)
    buffers = [(b, b.clone()) for b in module.buffers()]
    devices = [inputs[0].device] if inputs[0].device.type == "cuda" else []
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=devices):
            y = module(*inputs)
            if y is None:
                raise RefusedError(f"stage {stage} returns None, where the next stage, or the loss, needs a tensor")
            if loss_fn is not None:
                loss = loss_fn(y, microbatch)
                if not isinstance(loss, Tensor) or loss.dim():
                    got = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
                    raise RefusedError(
                        f"the loss of a microbatch must be one number, and this one is {got}: take its mean"
                    )
    except RefusedError:
        raise
    except Exception as why:
        said = str(why).strip().splitlines()[0] if str(why).strip() else ""
        error = f"{type(why).__name__}: {said}"
        if stage == 0:
            raise RefusedError(f"stage {stage} raised on a microbatch of {takes}: {error}") from why
        what = "or the loss of it " if loss_fn is not None else ""
        raise RefusedError(
            f"what stage {stage - 1} sends is not what stage {stage} takes: it sends {takes}, and stage "
            f"{stage} {what}raised {error}. Cut the model so that the two fit"
        ) from why
    finally:
        for b, value in buffers:
            b.copy_(value)
    if loss_fn is not None:
        return ()
    outputs = y if isinstance(y, tuple) else (y,)
    if not outputs or not all(isinstance(x, Tensor) for x in outputs):
        kinds = ", ".join(type(x).__name__ for x in outputs)
        raise RefusedError(
            f"stage {stage} returns {f'a tuple of ({kinds})' if isinstance(y, tuple) else kinds}: a stage of "
            "a pipeline returns a tensor, or a tuple of tensors, which the next one takes in that "
            "order"
        )
    if not have_gradients(outputs):
        raise RefusedError(
            f"stage {stage} returns {_named(outputs)}: a gradient comes back for what it sends, so one of "
            "them must be floating-point numbers"
        )
    most = max(x.dim() for x in outputs)
    if most > DIMENSIONS or len(outputs) > TENSORS:
        what = f"a tensor of {most} dimensions" if most > DIMENSIONS else f"{len(outputs)} tensors"
        raise RefusedError(
            f"stage {stage} returns {what}: at most {TENSORS} tensors of {DIMENSIONS} dimensions can be sent"
        )
    return outputs


def _named(tensors: Tensors) -> str:
    return " and ".join(describe(CODES[x.dtype], tuple(x.shape)) for x in tensors)
