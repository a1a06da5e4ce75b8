"""Walk through a schedule on logical clocks: each rank goes on until it needs what another has not done yet.

No rank's time depends on when another one *looks*: only on when messages depart and on the order in which their
receiver waits for them, and both follow its own list. So ranks are walked one after the other, each as far as it gets,
and the result does not depend on which goes first.

What a message takes is what the virtual clock of a run counts (`labkit.wire.clock`). It departs when the computation
that made it ends and its sending port is free; it arrives after the latency and its bytes over the bandwidth, those
behind the messages that its receiver waited for before. A rank has one sending and one receiving port for each kind of
link. A receive is waited for just before the computation that needs it, a send at the end of the step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from labkit.parallel.pipeline.costs import Costs
from labkit.parallel.pipeline.faulty import Wait, deadlock
from labkit.parallel.pipeline.instructions import (
    Backward,
    Forward,
    InputGradient,
    Instruction,
    Update,
    WeightGradient,
)
from labkit.parallel.pipeline.schedule import Schedule
from labkit.wire.network import Link

FREE = Link()
Row = list[int | None]  # by microbatch: when a result departed, once it has


@dataclass
class Walked:
    """Nanoseconds: when each instruction of each rank begins and ends, and when a rank's clock stands still.

    hops: messages, five numbers for each, one after the other: from rank, to rank, departs, arrives, boundary of the
    model. (A hundred thousand tuples would keep the garbage collector busy.)
    """

    begin: list[list[int]]
    end: list[list[int]]
    finish: list[int]
    hops: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Door:
    """How one kind of computation of one stage takes its input and passes its output on."""

    ns: int
    needs: Row | None = None  # by microbatch: when the input departed (or was there), once it has
    source: int = -1  # the rank that it comes from
    crosses: bool = False  # which is another one
    latency: int = 0
    transfer: int = 0  # of the input
    port: int = 0  # that receives it
    gives: Row | None = None
    to: int = -1  # the rank that needs the output
    leaves: bool = False  # it is another rank
    outward: int = 0  # nanoseconds on the sending port
    out: int = 0  # that port
    boundary: int = 0


def walk(
    schedule: Schedule, costs: Costs, link_of: Callable[[int, int], Link] | None = None, nbytes: Sequence[int] = (),
) -> Walked:  # fmt: skip
    """Begin and end of every instruction of a schedule of `Compute` instructions, complete and without repetition.

    link_of: (rank, rank) -> Link, None for messages that take no time. nbytes: of a message, by boundary of the model.
    Raises ScheduleError for a deadlock.
    """
    doors, ports = _doors(schedule, costs, link_of or (lambda a, b: FREE), nbytes)
    size = schedule.size
    begin: list[list[int]] = [[] for _ in range(size)]
    end: list[list[int]] = [[] for _ in range(size)]
    clocks, hops = [0] * size, list[int]()
    receiving, sending = ([[0] * ports for _ in range(size)] for _ in range(2))
    blocked: list[tuple[Row, int] | None] = [None] * size
    ready = deque(range(size))
    while ready:
        rank = ready.popleft()
        table, now, into, out = doors[rank], clocks[rank], receiving[rank], sending[rank]
        begins, ends = begin[rank], end[rank]
        todo = schedule.ranks[rank]
        for position in range(len(ends), len(todo)):
            step = todo[position]
            k = step.microbatch
            door = table[type(step), step.chunk]
            if door.needs is not None:
                departed = door.needs[k]
                if departed is None:
                    blocked[rank] = (door.needs, k)
                    break
                if door.crosses:
                    arrives = max(departed + door.latency, into[door.port]) + door.transfer
                    into[door.port] = arrives
                    hops += (door.source, rank, departed, arrives, door.boundary)
                    if arrives > now:
                        now = arrives
            begins.append(now)
            now += door.ns
            ends.append(now)
            if door.gives is not None:
                departs = now
                if door.leaves:
                    departs = max(now, out[door.out])
                    out[door.out] = departs + door.outward
                door.gives[k] = departs
                waiting = blocked[door.to]
                if waiting is not None and waiting[1] == k and waiting[0] is door.gives:
                    blocked[door.to] = None
                    ready.append(door.to)
        clocks[rank] = now
    if any(blocked):
        raise deadlock(
            [
                _wait(schedule, rank, schedule.ranks[rank][len(end[rank])])
                for rank in range(size)
                if blocked[rank] is not None
            ]
        )
    return Walked(begin, end, [max(now, *out) for now, out in zip(clocks, sending, strict=True)], hops)


def _doors(
    schedule: Schedule, costs: Costs, link_of: Callable[[int, int], Link], nbytes: Sequence[int]
) -> tuple[list[dict[tuple[type[Instruction], int], _Door]], int]:
    """For each rank the doors by (kind, chunk); and the number of different links, which is that of ports."""
    last, ports = schedule.stages - 1, dict[Link, int]()
    forwards: list[Row] = [[None] * schedule.microbatches for _ in range(last + 1)]
    backwards: list[Row] = [[None] * schedule.microbatches for _ in range(last + 1)]
    tables = []
    for rank in range(schedule.size):
        table: dict[tuple[type[Instruction], int], _Door] = {}
        for chunk in range(schedule.chunks):
            stage = schedule.stage(rank, chunk)
            for kind in (Forward, Backward, InputGradient, WeightGradient, Update):
                door = table[kind, chunk] = _Door(round(costs.seconds(kind, stage) * 1e9))
                if kind in (WeightGradient, Update):
                    continue
                rows, step = (forwards, 1) if kind is Forward else (backwards, -1)
                if 0 <= stage - step <= last:
                    door.needs, door.boundary = rows[stage - step], min(stage, stage - step)
                    door.source, _ = schedule.where(stage - step)
                    door.crosses = door.source != rank
                    if door.crosses:
                        link = link_of(rank, door.source)
                        door.port = ports.setdefault(link, len(ports))
                        door.latency = round(link.latency * 1e9)
                        door.transfer = _transfer(link, nbytes, door.boundary)
                if 0 <= stage + step <= last:
                    door.gives = rows[stage]
                    door.to, _ = schedule.where(stage + step)
                    door.leaves = door.to != rank
                    if door.leaves:
                        link = link_of(rank, door.to)
                        door.out = ports.setdefault(link, len(ports))
                        door.outward = _transfer(link, nbytes, min(stage, stage + step))
        tables.append(table)
    return tables, max(1, len(ports))


def _transfer(link: Link, nbytes: Sequence[int], boundary: int) -> int:
    return round((nbytes[boundary] if nbytes else 0) / link.bandwidth * 1e9)


def _wait(schedule: Schedule, rank: int, step: Instruction) -> Wait:
    """What `step`, which never got its input, waits for."""
    stage = schedule.stage(rank, step.chunk)
    source = stage + (-1 if type(step) is Forward else 1)
    on, chunk = schedule.where(source)
    done_by = {type(i) for i in schedule.ranks[on] if i.chunk == chunk and i.microbatch == step.microbatch}
    action = "F" if type(step) is Forward else "B" if Backward in done_by else "I"
    return Wait(rank, f"{stage}{step.action}{step.microbatch}", on, f"{source}{action}{step.microbatch}")
