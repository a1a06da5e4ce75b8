"""Schedules with explicit messages, each a blocking one: a send returns when its receiver has taken it.

So a message is one event on two ranks, and whoever comes first waits. Two ranks that both send first wait for ever.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from labkit.parallel.pipeline.analysis.walk import FREE, Walked
from labkit.parallel.pipeline.costs import Costs
from labkit.parallel.pipeline.faulty import ScheduleError, Wait, deadlock
from labkit.parallel.pipeline.instructions import (
    Instruction,
    Message,
    RecvActivation,
    RecvGradient,
    SendActivation,
    SendGradient,
)
from labkit.parallel.pipeline.schedule import Schedule, label
from labkit.parallel.pipeline.traffic import (
    Payload,
    carried,
    made_by,
    messages_of,
    needed_by,
    sends,
)
from labkit.wire.network import Link


def check_messages(schedule: Schedule) -> None:
    """Raise ScheduleError for a message that is missing, too early, too late, or has nothing to carry."""
    for rank, steps in enumerate(schedule.ranks):
        positions = {step: position for position, step in enumerate(steps)}
        wanted: set[Instruction] = set()
        for step in steps:
            for message in messages_of(schedule, rank, step):
                wanted.add(message)
                name, compute = label(schedule, rank, message), label(schedule, rank, step)
                if message not in positions:
                    raise ScheduleError(
                        f"{name} is missing in the list of rank {rank}. A schedule that has explicit "
                        f"messages needs all of them"
                    )
                if sends(message) and positions[message] < positions[step]:
                    raise ScheduleError(f"rank {rank} sends {name} before {compute}, which computes it")
                if not sends(message) and positions[message] > positions[step]:
                    raise ScheduleError(f"rank {rank} has {compute} before {name}, which brings its input")
        for step in steps:
            if isinstance(step, Message) and step not in wanted:
                raise ScheduleError(
                    f"rank {rank} has {label(schedule, rank, step)}, and there is nothing to carry: no "
                    f"stage of another rank is on that side"
                )


def walk_blocking(
    schedule: Schedule, costs: Costs, link_of: Callable[[int, int], Link] | None = None, nbytes: Sequence[int] = (),
) -> Walked:  # fmt: skip
    """`walk` for a schedule with explicit messages that `check_messages` accepts.

    On the virtual clock a send takes until its bytes have left, and a receive until they are there.
    """
    links, size = link_of or (lambda a, b: FREE), schedule.size
    walked = Walked([[] for _ in range(size)], [[] for _ in range(size)], [0] * size)
    clocks, ports = walked.finish, dict[tuple[int, str, Link], int]()
    offered, taken, made = dict[Payload, tuple[int, int]](), set[Payload](), set[Payload]()
    ready = deque(range(size))

    def transfer(link: Link, payload: Payload) -> int:
        return round((nbytes[payload.boundary] if nbytes else 0) / link.bandwidth * 1e9)

    def do(rank: int, step: Instruction) -> bool:
        """Do one instruction, or as much of it as is possible now; whether it is over."""
        now = clocks[rank]
        if len(walked.begin[rank]) == len(walked.end[rank]):
            walked.begin[rank].append(now)
        if not isinstance(step, Message):
            needs, makes = needed_by(schedule, rank, step), made_by(schedule, rank, step)
            if needs is not None and needs[1] == rank and needs[0] not in made:
                return False
            if makes is not None:
                made.add(makes[0])
            clocks[rank] += round(costs.seconds(step, schedule.stage(rank, step.chunk)) * 1e9)
            return True
        payload, stage = carried(schedule, rank, step)
        other, _ = schedule.where(stage)
        link = links(rank, other)
        if sends(step):
            if payload not in offered:
                departs = max(now, ports.get((rank, "out", link), 0))
                ports[rank, "out", link] = departs + transfer(link, payload)
                offered[payload] = departs, ports[rank, "out", link]
                ready.append(other)
            if payload not in taken:
                return False
            clocks[rank] = max(now, offered[payload][1])
            return True
        if payload not in offered:
            return False
        departs = offered[payload][0]
        arrives = max(departs + round(link.latency * 1e9), ports.get((rank, "in", link), 0)) + transfer(link, payload)
        ports[rank, "in", link] = arrives
        walked.hops += (other, rank, departs, arrives, payload.boundary)
        clocks[rank] = max(now, arrives)
        taken.add(payload)
        ready.append(other)
        return True

    while ready:
        rank = ready.popleft()
        steps, ends = schedule.ranks[rank], walked.end[rank]
        while len(ends) < len(steps) and do(rank, steps[len(ends)]):
            ends.append(clocks[rank])
    stuck = [rank for rank in range(size) if len(walked.end[rank]) < len(schedule.ranks[rank])]
    if stuck:
        raise deadlock([_wait(schedule, rank, schedule.ranks[rank][len(walked.end[rank])]) for rank in stuck])
    return walked


def _wait(schedule: Schedule, rank: int, step: Instruction) -> Wait:
    name = label(schedule, rank, step)
    if not isinstance(step, Message):  # for what another stage of this rank computes
        needs = needed_by(schedule, rank, step)
        assert needs is not None
        source = needs[0].boundary + (0 if step.action == "F" else 1)
        return Wait(rank, name, rank, f"{source}{step.action}{step.microbatch}")
    _, stage = carried(schedule, rank, step)
    other, chunk = schedule.where(stage)
    kind = next(r if sends(step) else s for s, r in _PAIRS if type(step) in (s, r))
    return Wait(rank, name, other, label(schedule, other, kind(step.microbatch, chunk)))


_PAIRS = ((SendActivation, RecvActivation), (SendGradient, RecvGradient))
