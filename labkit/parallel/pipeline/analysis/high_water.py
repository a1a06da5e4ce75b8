"""What a schedule keeps in memory: activations in flight, by rank and by stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from labkit.parallel.pipeline.analysis.complete import nth
from labkit.parallel.pipeline.faulty import ScheduleError
from labkit.parallel.pipeline.instructions import Backward, Forward, InputGradient, WeightGradient
from labkit.parallel.pipeline.schedule import Schedule, label
from labkit.wire.errors import RefusedError


@dataclass(frozen=True)
class Report:
    """What a valid schedule keeps, as numbers of microbatches: the high water over the step.

    A microbatch is in flight at a stage from its forward to the end of its backward: of `Backward`, or of
    `WeightGradient` where the two halves are apart.

    peak: in flight by rank, all its chunks together; each counts one stage of the model, 1 / chunks of the rank's
    layers. by_stage: the same of each stage of the model alone. unfinished: by rank, those whose input gradient is done
    and whose weight gradient is not: they keep less than a whole activation (M_W in Qi et al. 2023).
    """

    peak: tuple[int, ...]
    by_stage: tuple[int, ...]
    unfinished: tuple[int, ...]


def high_water(schedule: Schedule, limit: int | Sequence[int] | None = None) -> Report:
    """The report of a complete schedule. Raises ScheduleError where a rank would keep more than `limit`."""
    limits = _limits(schedule, limit)
    peaks, halves, stages = [], [], [0] * schedule.stages
    for rank, steps in enumerate(schedule.ranks):
        kept, peak, half, most = 0, 0, 0, 0
        each, tops = [0] * schedule.chunks, [0] * schedule.chunks
        for position, step in enumerate(steps):
            kind = type(step)
            if kind is Forward:
                kept += 1
                here = each[step.chunk] = each[step.chunk] + 1
                if kept > peak:
                    peak = kept
                    if limits is not None and kept > limits[rank]:
                        raise ScheduleError(
                            f"with {label(schedule, rank, step)}, the {nth(position)} instruction of rank {rank}, the "
                            f"rank keeps the activations of {kept} microbatches, and the limit is {limits[rank]}: a "
                            f"backward has to come before it"
                        )
                if here > tops[step.chunk]:
                    tops[step.chunk] = here
            elif kind is Backward or kind is WeightGradient:
                kept -= 1
                each[step.chunk] -= 1
                half -= kind is WeightGradient
            elif kind is InputGradient:
                half += 1
                most = max(most, half)
        peaks.append(peak)
        halves.append(most)
        for chunk, top in enumerate(tops):
            stages[schedule.stage(rank, chunk)] = top
    return Report(tuple(peaks), tuple(stages), tuple(halves))


def _limits(schedule: Schedule, limit: int | Sequence[int] | None) -> list[int] | None:
    if limit is None:
        return None
    limits = [limit] * schedule.size if isinstance(limit, int) else list(limit)
    if len(limits) != schedule.size or not all(isinstance(n, int) and n >= 1 for n in limits):
        raise RefusedError(
            f"validate(limit={limit!r}): a whole number of activations, 1 or more, for all ranks or one for "
            f"each of the {schedule.size}"
        )
    return limits
