"""Activations and gradients between the ranks of a pipeline: sent without waiting, or as the schedule says.

What crosses a boundary for one microbatch may be several tensors: each is a message, in their order.

`AsyncPointToPoint` is for schedules of computations only. A send is begun as soon as there is something to send, and
the tensor is kept until its receiver has it. Receives are posted in the order in which the other rank will send,
`ahead` of the one that is needed. So a rank only ever waits for something that it needs, and no order of arrival can
deadlock.

`BlockingPointToPoint` is for schedules with explicit messages: each is a blocking send or receive, where the schedule
has it. A send returns when the receiver has taken it (a rendezvous, as in gloo), and two ranks that both send first
wait for ever: labkit's own report then names them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

import torch

from labkit.parallel.pipeline.instructions import Message
from labkit.parallel.pipeline.running.stage import Tensors
from labkit.parallel.pipeline.schedule import Schedule
from labkit.parallel.pipeline.traffic import Payload, carried, incoming, sends
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group
from labkit.wire.handle import MessageHandle

Room = Callable[[Payload], Tensors]  # empty tensors for what comes


class AsyncPointToPoint:
    """The messages of one step of one rank, asynchronous."""

    def __init__(self, schedule: Schedule, group: Group, room: Room, ahead: int = 2) -> None:
        self.group, self._room, self._ahead = group, room, ahead
        self._due = {source: deque(payloads) for source, payloads in incoming(schedule, group.rank).items()}
        self._posted: dict[int, dict[Payload, list[MessageHandle]]] = {source: {} for source in self._due}
        self._here: dict[Payload, Tensors] = {}  # from a stage on this same rank
        self._leaving: list[MessageHandle] = []
        self._sent: list[MessageHandle] = []
        for source in self._due:
            self._post(source, self._ahead)

    def give(self, payload: Payload, tensors: Tensors, to: int) -> None:
        """Begin to send what is not changed any more; a stage on this rank gets it without a message."""
        if to == self.group.rank:
            self._here[payload] = tensors
            return
        self._leaving += [self.group.isend(x.detach().contiguous(), to) for x in tensors]
        self._let_go()

    def take(self, payload: Payload, source: int) -> Tensors:
        """Wait for `payload` and return it."""
        if source == self.group.rank:
            return self._here.pop(payload)
        posted = self._posted[source]
        while payload not in posted:
            self._post(source, len(posted) + 1)
        handles = posted.pop(payload)
        self._post(source, self._ahead)  # before the wait: the next one may arrive meanwhile
        return tuple(handle.wait() for handle in handles)

    def _post(self, source: int, count: int) -> None:
        """Have `count` receives from `source` under way, if so many are left."""
        due, posted = self._due[source], self._posted[source]
        while due and len(posted) < count:
            payload = due.popleft()
            posted[payload] = [self.group.irecv(x, source) for x in self._room(payload)]

    def _let_go(self) -> None:
        """Free the tensors that have been taken. Nothing is waited for: that would take time on the virtual clock."""
        still: list[MessageHandle] = []
        for handle in self._leaving:
            if handle.done():
                handle.release()
                self._sent.append(handle)
            else:
                still.append(handle)
        self._leaving = still

    def finish(self) -> None:
        """Return when everything has been taken."""
        for handle in (*self._sent, *self._leaving):
            handle.wait()
        self._sent, self._leaving = [], []


class BlockingPointToPoint:
    """The messages of one step of one rank, sent and received where the schedule says so."""

    def __init__(self, schedule: Schedule, group: Group, room: Room) -> None:
        self.schedule, self.group, self._room = schedule, group, room
        self._out: dict[Payload, Tensors] = {}
        self._in: dict[Payload, Tensors] = {}

    def give(self, payload: Payload, tensors: Tensors, to: int) -> None:
        """Put it where the send that the schedule has for it finds it."""
        (self._in if to == self.group.rank else self._out)[payload] = tuple(x.detach().contiguous() for x in tensors)

    def take(self, payload: Payload, source: int) -> Tensors:
        """What an earlier receive has brought."""
        return _found(self._in, payload, "is used before the schedule receives it")

    def do(self, message: Message) -> None:
        """Carry out one message; returns when it is over."""
        group = self.group
        payload, stage = carried(self.schedule, group.rank, message)
        other, _ = self.schedule.where(stage)
        if other == group.rank:
            return  # both stages are here
        if sends(message):
            for x in _found(self._out, payload, "is sent before the schedule computes it"):
                group.send(x, other)
        else:
            self._in[payload] = tuple(group.recv(x, other) for x in self._room(payload))

    def finish(self) -> None:
        """Nothing is under way between two instructions."""


def _found(tensors: dict[Payload, Tensors], payload: Payload, wrong: str) -> Tensors:
    if payload not in tensors:
        raise RefusedError(
            f"the {payload.kind} between stages {payload.boundary} and {payload.boundary + 1} of microbatch "
            f"{payload.microbatch} {wrong}"
        )
    return tensors.pop(payload)


def room_for(shapes: Callable[[Payload], Iterable[tuple[tuple[int, ...], torch.dtype]]], device: torch.device) -> Room:
    """Makes empty tensors of the shapes that a payload has."""

    def room(payload: Payload) -> Tensors:
        return tuple(torch.empty(shape, dtype=dtype, device=device) for shape, dtype in shapes(payload))

    return room
