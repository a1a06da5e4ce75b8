"""Is every computation of a schedule there, once, and after what it needs on its own rank?"""

from __future__ import annotations

from operator import lt

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
from labkit.parallel.pipeline.schedule import Schedule, label
from labkit.wire.errors import RefusedError

MESSAGES = frozenset((SendActivation, RecvActivation, SendGradient, RecvGradient))
KINDS = MESSAGES | {Forward, Backward, InputGradient, WeightGradient, Update}
Places = dict[type[Instruction], list[int]]  # by kind: the position of chunk * microbatches + microbatch, or -1


def complete(schedule: Schedule) -> bool:
    """Raise ScheduleError for the first thing that is wrong; else say whether the schedule has explicit messages.

    Looked at: instructions that are not known, have no such chunk or microbatch, or are there twice; a forward or a
    backward that is missing; an order on one rank that no message can help.
    """
    if not isinstance(schedule, Schedule):
        raise RefusedError(
            f"this is a {type(schedule).__name__}, and no Schedule: from_labels reads lists of labels as one"
        )
    explicit, count, chunks = False, schedule.microbatches, schedule.chunks
    for rank, steps in enumerate(schedule.ranks):
        places: Places = {kind: [-1] * (count * chunks) for kind in KINDS}
        for position, step in enumerate(steps):
            row = places.get(type(step))
            if row is None or not (0 <= step.microbatch < count and 0 <= step.chunk < chunks):
                raise _unknown(schedule, rank, position)
            which = step.chunk * count + step.microbatch
            if row[which] >= 0:
                raise ScheduleError(
                    f"{label(schedule, rank, step)} is twice in the list of rank {rank}: as its "
                    f"{nth(row[which])} and its {nth(position)} instruction"
                )
            row[which] = position
        if not _simple(places):
            for which in range(count * chunks):
                problem = _microbatch(places, which)
                if problem is not None:
                    raise _explained(schedule, rank, *divmod(which, count), *problem)
        explicit = explicit or any(max(places[kind]) >= 0 for kind in MESSAGES)
    return explicit


def _simple(places: Places) -> bool:
    """Whether each forward is followed by a whole backward, and there is nothing else: the common case, told fast."""
    forwards = places[Forward]
    others = (InputGradient, WeightGradient, Update)
    return min(forwards) >= 0 and all(map(lt, forwards, places[Backward])) and all(max(places[o]) < 0 for o in others)


Problem = tuple[type[Instruction], type[Instruction] | None]


def _microbatch(places: Places, which: int) -> Problem | None:
    """What is wrong with one microbatch of one chunk: (missing, None), or (early, what must come before it)."""
    forward, whole = places[Forward][which], places[Backward][which]
    inputs, weights = places[InputGradient][which], places[WeightGradient][which]
    if forward < 0:
        return Forward, None
    if whole >= 0:
        if inputs >= 0 or weights >= 0:
            return Backward, InputGradient if inputs >= 0 else WeightGradient
        if whole < forward:
            return Backward, Forward
    else:
        if inputs < 0:
            return (Backward if weights < 0 else InputGradient), None
        if weights < 0:
            return WeightGradient, None
        if inputs < forward:
            return InputGradient, Forward
        if weights < inputs:
            return WeightGradient, InputGradient
    if 0 <= places[Update][which] < max(whole, weights):
        return Update, Backward if whole >= 0 else WeightGradient
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
