"""`with_messages`: the same schedule with its sends and receives written out."""

from __future__ import annotations

from labkit.parallel.pipeline.analysis.complete import complete
from labkit.parallel.pipeline.analysis.walk import walk
from labkit.parallel.pipeline.costs import Costs
from labkit.parallel.pipeline.faulty import ScheduleError
from labkit.parallel.pipeline.instructions import Instruction
from labkit.parallel.pipeline.schedule import Schedule
from labkit.parallel.pipeline.traffic import RECEIVES, SENDS, carried, made_by, messages_of, sends
from labkit.wire.errors import RefusedError

RECEIVE = ("early", "late")
UNITS = Costs(1, 1, 1)  # of time: only the order matters


def with_messages(schedule: Schedule, *, receive: str = "early") -> Schedule:
    """`schedule` with a send after each computation whose result another rank needs, and a receive before its use.

    receive: where the receives stand. "early": each at the moment at which its send is made, if every instruction took
    the same time. All ranks then agree on one order of all messages, so that even blocking messages cannot deadlock.
    "late": each just before the computation that needs it. That is what one would write first, and with blocking
    messages it deadlocks wherever two ranks send to one another at the same time, as 1F1B's do: `validate` says where.
    """
    if receive not in RECEIVE:
        raise RefusedError(f"with_messages(receive={receive!r}): choose 'early' or 'late'")
    if complete(schedule):
        raise ScheduleError("this schedule has explicit messages already")
    ranks = _early(schedule) if receive == "early" else [
        [each for step in steps for each in _around(schedule, rank, step)] for rank, steps in enumerate(schedule.ranks)
    ]  # fmt: skip
    return Schedule(ranks, schedule.microbatches, schedule.chunks, schedule.placement, schedule.name)


def _around(schedule: Schedule, rank: int, step: Instruction) -> list[Instruction]:
    """The receive that a computation needs, itself, and the send that it makes possible."""
    around = list(messages_of(schedule, rank, step))
    return [*(m for m in around if not sends(m)), step, *(m for m in around if sends(m))]


def _early(schedule: Schedule) -> list[list[Instruction]]:
    ends = walk(schedule, UNITS).end
    order = sorted(
        (end, rank, position) for rank, times in enumerate(ends) for position, end in enumerate(times)
    )  # fmt: skip
    ranks: list[list[Instruction]] = [[] for _ in schedule.ranks]
    for _, rank, position in order:
        step = schedule.ranks[rank][position]
        ranks[rank].append(step)
        makes = made_by(schedule, rank, step)
        if makes is not None and makes[1] != rank:
            send = SENDS[type(step)](step.microbatch, step.chunk)
            other, chunk = schedule.where(carried(schedule, rank, send)[1])
            ranks[rank].append(send)
            ranks[other].append(RECEIVES[type(step)](step.microbatch, chunk))
    return ranks
