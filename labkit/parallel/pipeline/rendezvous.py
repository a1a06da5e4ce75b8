"""Schedules with explicit messages, each a blocking one: a send returns when its receiver has taken it.

So a message is one event on two ranks, and whoever comes first waits. Two ranks that both send first wait for ever.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from labkit.parallel.pipeline.costs import Costs
from labkit.parallel.pipeline.faulty import ScheduleError, Wait, deadlock
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
from labkit.parallel.pipeline.schedule import Schedule, label
from labkit.parallel.pipeline.walk import FREE, Walked
from labkit.wire.network import Link

SENDS: dict[type[Instruction], type[Message]] = {
    Forward: SendActivation,
    Backward: SendGradient,
    InputGradient: SendGradient,
}
RECEIVES: dict[type[Instruction], type[Message]] = {
    Forward: RecvActivation, Backward: RecvGradient, InputGradient: RecvGradient,
}  # fmt: skip
Key = tuple[bool, int, int]  # forward?, the stage that makes it, microbatch


def onward(schedule: Schedule, stage: int, step: Instruction) -> int | None:
    """The stage that needs what `step` computes at `stage`; None if no other one does."""
    if type(step) not in SENDS:
        return None
    to = stage + (1 if type(step) is Forward else -1)
    return to if 0 <= to < schedule.stages else None


def inward(schedule: Schedule, stage: int, step: Instruction) -> int | None:
    """The stage whose result `step` needs at `stage`; None if no other one's."""
    if type(step) not in SENDS:
        return None
    source = stage - (1 if type(step) is Forward else -1)
    return source if 0 <= source < schedule.stages else None


def messages(schedule: Schedule, rank: int, step: Instruction) -> Iterator[Message]:
    """The receive that a computation needs, and the send that it makes possible; none where a stage is on the rank."""
    stage = schedule.stage(rank, step.chunk)
    source, to = inward(schedule, stage, step), onward(schedule, stage, step)
    if source is not None and schedule.where(source)[0] != rank:
        yield RECEIVES[type(step)](step.microbatch, step.chunk)
    if to is not None and schedule.where(to)[0] != rank:
        yield SENDS[type(step)](step.microbatch, step.chunk)


def check_messages(schedule: Schedule) -> None:
    """Raise ScheduleError for a message that is missing, too early, too late, or has nothing to carry."""
    for rank, steps in enumerate(schedule.ranks):
        positions = {step: position for position, step in enumerate(steps)}
        wanted: set[Instruction] = set()
        for step in steps:
            for message in messages(schedule, rank, step):
                wanted.add(message)
                name, compute = label(schedule, rank, message), label(schedule, rank, step)
                if message not in positions:
                    raise ScheduleError(f"{name} is missing in the list of rank {rank}. A schedule that has explicit "
                                        f"messages needs all of them")  # fmt: skip
                sends = isinstance(message, (SendActivation, SendGradient))
                if sends and positions[message] < positions[step]:
                    raise ScheduleError(f"rank {rank} sends {name} before {compute}, which computes it")
                if not sends and positions[message] > positions[step]:
                    raise ScheduleError(f"rank {rank} has {compute} before {name}, which brings its input")
        for step in steps:
            if isinstance(step, Message) and step not in wanted:
                raise ScheduleError(f"rank {rank} has {label(schedule, rank, step)}, and there is nothing to carry: no "
                                    f"stage of another rank is on that side")  # fmt: skip


def walk_blocking(
    schedule: Schedule, costs: Costs, link_of: Callable[[int, int], Link] | None = None, nbytes: Sequence[int] = (),
) -> Walked:  # fmt: skip
    """`walk` for a schedule with explicit messages that `check_messages` accepts.

    On the virtual clock a send takes until its bytes have left, and a receive until they are there.
    """
    links, size = link_of or (lambda a, b: FREE), schedule.size
    walked = Walked([[] for _ in range(size)], [[] for _ in range(size)], [0] * size)
    clocks, ports = walked.finish, dict[tuple[int, str, Link], int]()
    offered, taken, computed = dict[Key, tuple[int, int]](), set[Key](), set[Key]()
    ready = deque(range(size))

    def transfer(link: Link, key: Key) -> int:
        boundary = key[1] if key[0] else key[1] - 1
        return round((nbytes[boundary] if nbytes else 0) / link.bandwidth * 1e9)

    def do(rank: int, step: Instruction) -> bool:
        """Do one instruction, or as much of it as is possible now; whether it is over."""
        stage, now = schedule.stage(rank, step.chunk), clocks[rank]
        if len(walked.begin[rank]) == len(walked.end[rank]):
            walked.begin[rank].append(now)
        if not isinstance(step, Message):
            source = inward(schedule, stage, step)
            if source is not None and schedule.where(source)[0] == rank \
                    and (type(step) is Forward, source, step.microbatch) not in computed:  # fmt: skip
                return False
            computed.add((type(step) is Forward, stage, step.microbatch))
            clocks[rank] += round(costs.seconds(step, stage) * 1e9)
            return True
        key, other = partner(schedule, rank, step)
        link = links(rank, other)
        if isinstance(step, (SendActivation, SendGradient)):
            if key not in offered:
                departs = max(now, ports.get((rank, "out", link), 0))
                ports[rank, "out", link] = departs + transfer(link, key)
                offered[key] = departs, ports[rank, "out", link]
                ready.append(other)
            if key not in taken:
                return False
            clocks[rank] = max(now, offered[key][1])
            return True
        if key not in offered:
            return False
        departs = offered[key][0]
        arrives = max(departs + round(link.latency * 1e9), ports.get((rank, "in", link), 0)) + transfer(link, key)
        ports[rank, "in", link] = arrives
        walked.hops += (other, rank, departs, arrives, key[1] if key[0] else key[1] - 1)
        clocks[rank] = max(now, arrives)
        taken.add(key)
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


def partner(schedule: Schedule, rank: int, step: Instruction) -> tuple[Key, int]:
    """(what a message carries, the rank at its other end)."""
    stage = schedule.stage(rank, step.chunk)
    forward = isinstance(step, (SendActivation, RecvActivation))
    sends = isinstance(step, (SendActivation, SendGradient))
    other = stage + (1 if forward == sends else -1)
    return (forward, stage if sends else other, step.microbatch), schedule.where(other)[0]


def _wait(schedule: Schedule, rank: int, step: Instruction) -> Wait:
    name = label(schedule, rank, step)
    if not isinstance(step, Message):
        source = inward(schedule, schedule.stage(rank, step.chunk), step)
        assert source is not None
        return Wait(rank, name, rank, f"{source}{step.action}{step.microbatch}")
    (forward, source, microbatch), other = partner(schedule, rank, step)
    sends = isinstance(step, (SendActivation, SendGradient))
    direction = "F" if forward else "B"
    stage = source + (1 if forward else -1) if sends else source
    return Wait(rank, name, other, f"{stage}{'RECV' if sends else 'SEND'}_{direction}{microbatch}")
