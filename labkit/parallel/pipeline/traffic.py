"""Which messages a schedule makes, in which order between which ranks. Pure: every rank works it out for all.

A rank that knows in what order another one will send to it can post its receives in that order, ahead of need. That is
what makes a schedule without explicit messages free of deadlocks of its own: no rank ever waits to be allowed to send.
"""

from __future__ import annotations

from dataclasses import dataclass

from labkit.parallel.pipeline.instructions import Backward, Forward, InputGradient, Instruction, Message
from labkit.parallel.pipeline.schedule import Schedule

ACTIVATION, GRADIENT = "activation", "gradient"


@dataclass(frozen=True, slots=True)
class Parcel:
    """What crosses a boundary once: an activation forward, or its gradient back.

    boundary: the stage before it, so boundary s lies between stages s and s + 1.
    """

    kind: str
    boundary: int
    microbatch: int


def made_by(schedule: Schedule, rank: int, instruction: Instruction) -> tuple[Parcel, int] | None:
    """(what the instruction makes for a neighbouring stage, the rank of that stage); None if nothing."""
    stage = schedule.stage(rank, instruction.chunk)
    if isinstance(instruction, Forward) and stage + 1 < schedule.stages:
        return Parcel(ACTIVATION, stage, instruction.microbatch), schedule.where(stage + 1)[0]
    if isinstance(instruction, (Backward, InputGradient)) and stage > 0:
        return Parcel(GRADIENT, stage - 1, instruction.microbatch), schedule.where(stage - 1)[0]
    return None


def needed_by(schedule: Schedule, rank: int, instruction: Instruction) -> tuple[Parcel, int] | None:
    """(what the instruction needs from a neighbouring stage, the rank of that stage); None if nothing."""
    stage = schedule.stage(rank, instruction.chunk)
    if isinstance(instruction, Forward) and stage > 0:
        return Parcel(ACTIVATION, stage - 1, instruction.microbatch), schedule.where(stage - 1)[0]
    if isinstance(instruction, (Backward, InputGradient)) and stage + 1 < schedule.stages:
        return Parcel(GRADIENT, stage, instruction.microbatch), schedule.where(stage + 1)[0]
    return None


def incoming(schedule: Schedule, rank: int) -> dict[int, list[Parcel]]:
    """What each other rank will send to `rank`, in the order in which it will be sent."""
    found: dict[int, list[Parcel]] = {}
    for source, instructions in enumerate(schedule.ranks):
        if source != rank:
            for instruction in instructions:
                made = made_by(schedule, source, instruction)
                if made is not None and made[1] == rank:
                    found.setdefault(source, []).append(made[0])
    return found


def is_explicit(schedule: Schedule) -> bool:
    """Whether the schedule says itself when messages are sent and received."""
    return any(isinstance(i, Message) for instructions in schedule.ranks for i in instructions)
