"""What is checked before a step, on every rank at once: schedule, stages, batch, boundaries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.optim import Optimizer

from labkit.optim.precision.codec import Wire
from labkit.parallel.pipeline.costs import Costs
from labkit.parallel.pipeline.instructions import Update
from labkit.parallel.pipeline.running.agreement import (
    describe,
    digest,
    refuse_different_schedules,
    refuse_together,
    table,
    words,
)  # fmt: skip
from labkit.parallel.pipeline.running.boundaries import Shapes, learn
from labkit.parallel.pipeline.running.microbatches import pieces_of, shares, sizes_of
from labkit.parallel.pipeline.schedule import Schedule, labels
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group

if TYPE_CHECKING:
    from labkit.parallel.pipeline.running.pipeline import Pipeline


@dataclass
class StepShapes:
    """What the ranks agreed on: examples in each microbatch, and the shapes that cross each boundary."""

    sizes: list[int]
    boundaries: list[dict[int, Shapes]]


def agree_on_options(
    group: Group, modules: Sequence[Any], loss: Any, optimizers: Sequence[Optimizer] | None, **options: object
) -> None:
    """Raise RefusedError on every rank unless all bring as many modules and the same options."""
    problem = None
    wrong = next((m for m in modules if not isinstance(m, nn.Module)), None)
    if not modules:
        problem = "Pipeline: needs a module for each chunk of this rank, and there are none"
    elif wrong is not None:
        problem = f"Pipeline: stages are modules, a list of one for each chunk; {type(wrong).__name__} is none"
    elif not callable(loss):
        problem = f"Pipeline(loss={loss!r}): needs a function of (output, target)"
    elif optimizers is not None and len(optimizers) != len(modules):
        problem = f"Pipeline: {len(optimizers)} optimizers for {len(modules)} chunks; give one for each"
    elif type(options["ahead"]) is not int or options["ahead"] < 0:
        problem = f"Pipeline(ahead={options['ahead']!r}): a number of receives, 0 or more"
    elif not isinstance(options["wire"], Wire | None):
        problem = f"Pipeline(wire={options['wire']!r}): a Wire of labkit.optim.precision, or None"
    chosen = {"chunks": len(modules), "optimizers": optimizers is not None, **options}
    rows = table(group, [problem is not None, digest(sorted(chosen.items()))])
    if any(bad for bad, _ in rows):
        refuse_together(group, None if problem is None else RefusedError(problem))
    if any(row != rows[0] for row in rows):
        texts = words(group, "\n".join(f"{k}={v!r}" for k, v in chosen.items()))
        rank = next(r for r, text in enumerate(texts) if text != texts[0])
        pairs = zip(texts[rank].split("\n"), texts[0].split("\n"), strict=True)
        theirs, ours = next((a, b) for a, b in pairs if a != b)
        raise RefusedError(f"the ranks made different pipelines: rank {rank} has {theirs}, rank 0 has {ours}")


def agree_on_step(
    pipeline: Pipeline, schedule: Schedule, inputs: Any, targets: Any, seconds: Costs | None,
    sizes: Sequence[int] | None, check: bool,
) -> StepShapes:  # fmt: skip
    """Raise RefusedError on every rank unless the step can be run as it was asked for; else what was agreed."""
    group = pipeline.group
    problem = _problem(pipeline, schedule, inputs, targets, seconds, sizes, check)
    is_one = isinstance(schedule, Schedule)
    number = digest(_rows(pipeline, schedule), schedule.placement, seconds, check, sizes) if is_one else 0
    first, last = _ends(schedule, group) if is_one and schedule.size == group.size else (False, False)
    row = [problem is not None, number, len(inputs[0]) if first and problem is None else -1,
           len(targets) if last and problem is None else -1,
           digest([(tuple(x.shape[1:]), x.dtype) for x in inputs]) if first and problem is None else 0]  # fmt: skip
    rows = table(group, row)
    if any(r[1] != rows[0][1] for r in rows) and all(r[1] for r in rows):  # every rank has one
        refuse_different_schedules(group, schedule)
    if any(r[0] for r in rows):
        refuse_together(group, problem)
    examples, answers = max(r[2] for r in rows), max(r[3] for r in rows)
    if examples != answers:
        raise RefusedError(
            f"{examples} examples in `inputs` of the first stage's rank, and {answers} in `targets` of the "
            "last stage's: they are of one batch"
        )
    cut = sizes_of(examples, schedule.microbatches, sizes)
    key = (max(r[4] for r in rows), tuple(sorted(set(cut))), schedule.placement, schedule.size)
    if key not in pipeline.known:
        loss_fn = pipeline.loss_fn(targets.split(cut), [1.0] * len(cut), {}) if last else _no_head
        pieces = pieces_of(inputs, cut) if first else None
        samples = {n: (cut.index(n), pieces[cut.index(n)] if pieces is not None else None) for n in sorted(set(cut))}
        pipeline.known[key] = learn(schedule, pipeline.modules, group, samples, loss_fn)
    return StepShapes(cut, pipeline.known[key])


def _no_head(y: Tensor, microbatch: int) -> Tensor:
    raise AssertionError("the last stage is on another rank")


def _ends(schedule: Schedule, group: Group) -> tuple[bool, bool]:
    """Whether this rank has the first stage, and the last one."""
    return schedule.where(0)[0] == group.rank, schedule.where(schedule.stages - 1)[0] == group.rank


def _rows(pipeline: Pipeline, schedule: Schedule) -> Any:
    """A digest of a schedule's lists, made once."""
    known = pipeline.known.get(id(schedule))
    if known is None or known[0] is not schedule:
        known = pipeline.known[id(schedule)] = (schedule, digest(labels(schedule)))
    return known[1]


def _problem(
    pipeline: Pipeline, schedule: Any, inputs: Any, targets: Any, seconds: Costs | None, sizes: Sequence[int] | None,
    check: bool,
) -> Exception | None:  # fmt: skip
    """What this rank can see to be wrong by itself."""
    try:
        _look(pipeline, schedule, inputs, targets, seconds, sizes, check)
    except RefusedError as problem:
        return problem
    return None


def _look(
    pipeline: Pipeline, schedule: Any, inputs: Any, targets: Any, seconds: Costs | None, sizes: Sequence[int] | None,
    check: bool,
) -> None:  # fmt: skip
    group = pipeline.group
    if not isinstance(schedule, Schedule):
        raise RefusedError(
            f"execute: needs a Schedule, such as one_f_one_b({group.size}, 8), not {type(schedule).__name__}"
        )
    if schedule.size != group.size:
        raise RefusedError(
            f"this is {describe(schedule)}, and the pipeline's group has {group.size}: make the schedule for "
            f"{group.size} stages, or launch {schedule.size} ranks"
        )
    if schedule.chunks != len(pipeline.modules):
        raise RefusedError(
            f"this is {describe(schedule)}, and the pipeline was made with {len(pipeline.modules)} modules a "
            f"rank: give each rank one module per chunk"
        )
    if check and ("valid", id(schedule)) not in pipeline.known:
        from labkit.parallel.pipeline.analysis.validation import validate

        validate(schedule)
        pipeline.known["valid", id(schedule)] = schedule
    if seconds is not None:
        seconds.check(schedule.stages)
    if any(isinstance(i, Update) for instructions in schedule.ranks for i in instructions):
        if not pipeline.stashes:
            raise RefusedError(
                f"{schedule.name or 'this schedule'} updates weights within a step: give Pipeline(optimizers="
                "[...]), one per chunk"
            )
        if pipeline.tied.shared:
            raise RefusedError(
                f"{schedule.name or 'this schedule'} updates weights after every microbatch, and the tied "
                "weights of two ranks would no longer be equal: use a model with tied=False"
            )
    first, last = _ends(schedule, group)
    if first:
        if not isinstance(inputs, tuple | list) or not inputs:
            raise _no_batch("inputs", inputs, "first")
        for x in inputs:
            if not isinstance(x, Tensor) or not x.dim():
                raise _no_batch("inputs", x, "first")
        counts = [len(x) for x in inputs]
        if len(set(counts)) > 1:
            raise RefusedError(
                f"execute(inputs=...): tensors of {' and '.join(map(str, counts))} examples: the first "
                "dimension of each is the examples of the batch. Expand one that is the same for "
                "all"
            )
        sizes_of(counts[0], schedule.microbatches, sizes)
    if last:
        if not isinstance(targets, Tensor) or not targets.dim():
            raise _no_batch("targets", targets, "last")
        shares(targets.split(sizes_of(len(targets), schedule.microbatches, sizes)), pipeline.count)


def _no_batch(name: str, given: object, end: str) -> RefusedError:
    return RefusedError(
        f"execute({name}={type(given).__name__}): this rank has the {end} stage, and needs the batch as a "
        "tensor, first dimension examples"
    )
