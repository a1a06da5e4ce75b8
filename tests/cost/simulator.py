"""A message-level simulator: runs one small program a rank, and counts what it sends.

A program is a generator. It yields `Step`s (send, receive, or both at once), and gets back what it received.
A transfer starts when both ends are ready for it and takes as long as `link` says; a step ends when its
transfers have.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

Payload = Sequence[Any]  # a message is a list of elements, whatever they are


@dataclass
class Step:
    to: int | None = None
    payload: Payload = ()
    source: int | None = None


def send(payload: Payload, to: int) -> Step:
    return Step(to=to, payload=payload)


def recv(source: int) -> Step:
    return Step(source=source)


def exchange(payload: Payload, to: int, source: int) -> Step:
    return Step(to=to, payload=payload, source=source)


Program = Generator[Step, Payload, Any]


@dataclass
class Outcome:
    results: list[Any]
    elements: list[int]  # sent by each rank
    messages: list[int]
    seconds: float
    elements_between: dict[tuple[int, int], int] = field(default_factory=dict)


def simulate(
    programs: Sequence[Program], link: Callable[[int, int, int], float] = lambda src, dst, elements: 0.0
) -> Outcome:
    """Run `programs` to their ends; `link(src, dst, elements)` is the time of one message."""
    size = len(programs)
    clock = [0.0] * size
    out = Outcome([None] * size, [0] * size, [0] * size, 0.0)
    doing: list[Step | None] = [None] * size
    until: list[list[float]] = [[] for _ in range(size)]  # ends of the transfers of the present step
    inbox: list[Payload] = [()] * size
    sent, got = [False] * size, [False] * size

    def advance(rank: int, first: bool = False) -> None:
        try:
            doing[rank] = next(programs[rank]) if first else programs[rank].send(inbox[rank])
        except StopIteration as stop:
            doing[rank], out.results[rank] = None, stop.value
            return
        step = doing[rank]
        assert step is not None and (step.to is not None or step.source is not None)
        assert rank not in (step.to, step.source), f"rank {rank} sends to itself"
        until[rank], sent[rank], got[rank] = [], step.to is None, step.source is None

    for rank in range(size):
        advance(rank, first=True)
    while any(doing):
        moved = False
        for src in range(size):
            step = doing[src]
            if step is None or sent[src]:
                continue
            dst = step.to
            assert dst is not None
            other = doing[dst]
            if other is None or got[dst] or other.source != src:
                continue
            end = max(clock[src], clock[dst]) + link(src, dst, len(step.payload))
            inbox[dst], sent[src], got[dst], moved = step.payload, True, True, True
            until[src].append(end)
            until[dst].append(end)
            out.elements[src] += len(step.payload)
            out.messages[src] += 1
            pair = src, dst
            out.elements_between[pair] = out.elements_between.get(pair, 0) + len(step.payload)
        for rank in range(size):
            if doing[rank] is not None and sent[rank] and got[rank]:
                clock[rank] = max(until[rank])
                advance(rank)
        assert moved, f"deadlock: {doing}"
    out.seconds = max(clock)
    return out
