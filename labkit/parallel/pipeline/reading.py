"""`from_labels`: a schedule read from PyTorch's notation, the inverse of `labels`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from labkit.parallel.pipeline.faulty import ScheduleError
from labkit.parallel.pipeline.instructions import (
    Backward,
    Forward,
    InputGradient,
    Instruction,
    RecvActivation,
    RecvGradient,
    SendActivation,
    SendGradient,
    Update,
    WeightGradient,
)
from labkit.parallel.pipeline.schedule import PLACEMENTS, Schedule

KINDS = {
    kind.action: kind
    for kind in (Forward, Backward, InputGradient, WeightGradient, Update, SendActivation, RecvActivation, SendGradient,
                 RecvGradient)
}  # fmt: skip
ELSEWHERE = ("REDUCE_GRAD", "UNSHARD", "RESHARD")  # of data parallelism: they belong to no microbatch
LABEL = re.compile(rf"(\d+)({'|'.join(sorted(KINDS, key=len, reverse=True))})(\d+)")


def from_labels(
    rows: Iterable[Iterable[object]] | Mapping[int, Iterable[object]], *, microbatches: int | None = None,
    placement: str | None = None, name: str = "",
) -> Schedule:  # fmt: skip
    """The schedule of which `rows` are the labels, a list per rank: `["0F0", "0F1", "0B0", "0B1"]`.

    A row may be one string, `"0F0 0F1 0B0 0B1"`. Labels may be PyTorch's own actions, and rows a dict by rank, as it
    has them. Skipped are idle steps (None or empty), and REDUCE_GRAD, UNSHARD and RESHARD, which are not the
    pipeline's. microbatches: how many there are; by default as many as occur. placement: "loop" or "v"; by default the
    one by which the stages lie where the labels say.
    """
    lists = [rows[rank] for rank in sorted(rows)] if isinstance(rows, Mapping) else rows
    split = [row.split() if isinstance(row, str) else row for row in lists]
    read = [[found for label in row if (found := _read(label, rank)) is not None] for rank, row in enumerate(split)]
    every = [found for row in read for found in row]
    if not every:
        raise ScheduleError("from_labels: there is no label in these rows")
    size, stages = len(read), 1 + max(stage for _, stage, _ in every)
    chunks = -(-stages // size)
    count = 1 + max(microbatch for _, _, microbatch in every) if microbatches is None else microbatches
    shapes = [Schedule([[]] * size, count, chunks, style, name) for style in (
        PLACEMENTS if placement is None else (placement,))]  # fmt: skip
    for shape in shapes:
        if all(shape.where(stage)[0] == rank for rank, row in enumerate(read) for _, stage, _ in row):
            ranks = [[kind(k, shape.where(stage)[1]) for kind, stage, k in row] for row in read]
            return Schedule(ranks, count, chunks, shape.placement, name)
    kind, stage, k, rank = next((*found, rank) for rank, row in enumerate(read) for found in row
                                if shapes[0].where(found[1])[0] != rank)  # fmt: skip
    where = " or ".join(f"on rank {shape.where(stage)[0]} (placement {shape.placement!r})" for shape in shapes)
    raise ScheduleError(
        f"{stage}{kind.action}{k} is in the list of rank {rank}, and stage {stage} of {stages} stages "
        f"on {size} ranks is {where}"
    )


def _read(label: object, rank: int) -> tuple[type[Instruction], int, int] | None:
    """(kind, stage, microbatch); None for what is no instruction of the pipeline."""
    text = "" if label is None else str(label).strip()
    if not text or text.endswith(ELSEWHERE):
        return None
    match = LABEL.fullmatch(text)
    if match is None:
        raise ScheduleError(
            f"{text!r} in the list of rank {rank} is no label: those are a stage, one of "
            f"{', '.join(KINDS)}, and a microbatch, as in 2F0"
        )
    stage, action, microbatch = match.groups()
    return KINDS[action], int(stage), int(microbatch)
