"""Which messages a schedule makes, in which order between which ranks. Pure: every rank works it out for all.

A rank that knows in what order another one will send to it can post its receives in that order, ahead of need. That is
what makes a schedule without explicit messages free of deadlocks of its own: no rank ever waits to be allowed to send.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

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
)
from labkit.parallel.pipeline.schedule import Schedule

ACTIVATION, GRADIENT = "activation", "gradient"
# The message that takes away what a computation has made, and the one that brings what it needs.
SENDS: dict[type[Instruction], type[Message]] = {
    Forward: SendActivation, Backward: SendGradient, InputGradient: SendGradient,
}  # fmt: skip
RECEIVES: dict[type[Instruction], type[Message]] = {
    Forward: RecvActivation, Backward: RecvGradient, InputGradient: RecvGradient,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Payload:
    """What crosses a boundary once: an activation forward, or its gradient back.

    boundary: the stage before it, so boundary s lies between stages s and s + 1.
    """

    kind: str
    boundary: int
    microbatch: int


def made_by(schedule: Schedule, rank: int, instruction: Instruction) -> tuple[Payload, int] | None:
    """(what the instruction makes for a neighbouring stage, the rank of that stage); None if nothing."""
    stage = schedule.stage(rank, instruction.chunk)
    if isinstance(instruction, Forward) and stage + 1 < schedule.stages:
        return Payload(ACTIVATION, stage, instruction.microbatch), schedule.where(stage + 1)[0]
    if isinstance(instruction, (Backward, InputGradient)) and stage > 0:
        return Payload(GRADIENT, stage - 1, instruction.microbatch), schedule.where(stage - 1)[0]
    return None


def needed_by(schedule: Schedule, rank: int, instruction: Instruction) -> tuple[Payload, int] | None:
    """(what the instruction needs from a neighbouring stage, the rank of that stage); None if nothing."""
    stage = schedule.stage(rank, instruction.chunk)
    if isinstance(instruction, Forward) and stage > 0:
        return Payload(ACTIVATION, stage - 1, instruction.microbatch), schedule.where(stage - 1)[0]
    if isinstance(instruction, (Backward, InputGradient)) and stage + 1 < schedule.stages:
        return Payload(GRADIENT, stage, instruction.microbatch), schedule.where(stage + 1)[0]
    return None


def messages_of(schedule: Schedule, rank: int, step: Instruction) -> Iterator[Message]:
    """The receive that a computation needs, and the send that it makes possible; none where a stage is on the rank."""
    needs, makes = needed_by(schedule, rank, step), made_by(schedule, rank, step)
    if needs is not None and needs[1] != rank:
        yield RECEIVES[type(step)](step.microbatch, step.chunk)
    if makes is not None and makes[1] != rank:
        yield SENDS[type(step)](step.microbatch, step.chunk)


def sends(message: Instruction) -> bool:
    """Whether it sends, and does not receive."""
    return isinstance(message, (SendActivation, SendGradient))


def carried(schedule: Schedule, rank: int, message: Message) -> tuple[Payload, int]:
    """(what a message of `rank` carries, the stage at its other end)."""
    stage = schedule.stage(rank, message.chunk)
    forward = isinstance(message, (SendActivation, RecvActivation))
    other = stage + (1 if forward == sends(message) else -1)
    return Payload(ACTIVATION if forward else GRADIENT, min(stage, other), message.microbatch), other


def incoming(schedule: Schedule, rank: int) -> dict[int, list[Payload]]:
    """What each other rank will send to `rank`, in the order in which it will be sent."""
    found: dict[int, list[Payload]] = {}
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
