"""Is every computation of a schedule there, once, and after what it needs on its own rank?"""

from __future__ import annotations

from labkit.parallel.pipeline.faulty import ScheduleError
from labkit.parallel.pipeline.instructions import (
    Backward,
    Forward,
    InputGradient,
    Instruction,
    Message,
    RecvActivation,
    RecvGradient,
    SendActivation,
    SendGradient,
    Update,
    WeightGradient,
)
from labkit.parallel.pipeline.schedule import Schedule, label

Place = tuple[type[Instruction], int, int]  # kind, chunk, microbatch
MESSAGES = frozenset((SendActivation, RecvActivation, SendGradient, RecvGradient))
KINDS = MESSAGES | {Forward, Backward, InputGradient, WeightGradient, Update}


def complete(schedule: Schedule) -> bool:
    """Raise ScheduleError for the first thing that is wrong; else say whether the schedule has explicit messages.

    Looked at: instructions that are not known, have no such chunk or microbatch, or are there twice; a forward or a
    backward that is missing; an order on one rank that no message can help.
    """
    explicit = False
    for rank, steps in enumerate(schedule.ranks):
        seen: dict[Place, int] = {}
        for position, step in enumerate(steps):
            kind = type(step)
            if kind not in KINDS or not 0 <= step.microbatch < schedule.microbatches \
                    or not 0 <= step.chunk < schedule.chunks:  # fmt: skip
                raise _unknown(schedule, rank, position)
            place = (kind, step.chunk, step.microbatch)
            if place in seen:
                raise ScheduleError(f"{label(schedule, rank, step)} is twice in the list of rank {rank}: as its "
                                    f"{nth(seen[place])} and its {nth(position)} instruction")  # fmt: skip
            seen[place] = position
            explicit = explicit or issubclass(kind, Message)
        for chunk in range(schedule.chunks):
            for microbatch in range(schedule.microbatches):
                problem = _microbatch(seen, chunk, microbatch)
                if problem is not None:
                    raise _explained(schedule, rank, chunk, microbatch, *problem)
    return explicit


Problem = tuple[type[Instruction], type[Instruction] | None]


def _microbatch(seen: dict[Place, int], chunk: int, microbatch: int) -> Problem | None:
    """What is wrong with one microbatch of one chunk: (missing, None), or (early, what must come before it)."""
    forward = seen.get((Forward, chunk, microbatch))
    if forward is None:
        return Forward, None
    whole = seen.get((Backward, chunk, microbatch))
    inputs, weights = seen.get((InputGradient, chunk, microbatch)), seen.get((WeightGradient, chunk, microbatch))
    last = whole
    if whole is not None:
        if inputs is not None or weights is not None:
            return Backward, InputGradient if inputs is not None else WeightGradient
        if whole < forward:
            return Backward, Forward
    else:
        if inputs is None:
            return (Backward if weights is None else InputGradient), None
        if weights is None:
            return WeightGradient, None
        if inputs < forward:
            return InputGradient, Forward
        if weights < inputs:
            return WeightGradient, InputGradient
        last = weights
    update = seen.get((Update, chunk, microbatch))
    if update is not None and last is not None and update < last:
        return Update, Backward if whole is not None else WeightGradient
    return None


def _explained(
    schedule: Schedule, rank: int, chunk: int, microbatch: int, kind: type[Instruction],
    before: type[Instruction] | None,
) -> ScheduleError:  # fmt: skip
    name = label(schedule, rank, kind(microbatch, chunk))
    where = f"in the list of rank {rank}"
    if before is None:
        other = f" (or {name.replace('B', 'I')} and {name.replace('B', 'W')})" if kind is Backward else ""
        return ScheduleError(f"{name}{other} is missing {where}: every stage needs a forward and a backward of each of "
                             f"the {schedule.microbatches} microbatches")  # fmt: skip
    first = label(schedule, rank, before(microbatch, chunk))
    if kind is Backward and before is not Forward:
        return ScheduleError(f"{name} and {first} are both {where}: B is the whole backward, I and W are its two "
                             f"halves. Give one or the other")  # fmt: skip
    return ScheduleError(f"{name} comes before {first} {where}, and needs it")


def _unknown(schedule: Schedule, rank: int, position: int) -> ScheduleError:
    step, where = schedule.ranks[rank][position], f"the {nth(position)} instruction of rank {rank}"
    if type(step) not in KINDS:
        return ScheduleError(f"{step!r} is {where}, and nothing that a pipeline can do")
    for name, value, count in (("microbatch", step.microbatch, schedule.microbatches),
                               ("chunk", step.chunk, schedule.chunks)):  # fmt: skip
        if not 0 <= value < count:
            many = f"they go from 0 to {count - 1}" if count > 1 else "there is only number 0"
            return ScheduleError(f"{step!r}, {where}: there is no {name} {value}, {many}")
    raise AssertionError(step)


def nth(position: int) -> str:
    """`3rd` for position 2 of a list."""
    n = position + 1
    ending = "th" if 10 <= n % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n}{ending}"
