"""What a rank began and ended, one thing after the other: evidence of order, the same behind both doors.

Wall time is no evidence: whether a thread that sends is a little earlier or later than the program that computes is a
matter of luck. Two orders are not:

- In a notebook a rank's program writes a record when it calls a collective, and another when it waits for one. A call
  begins with the first and ends with the second, whenever its messages happen to travel.
- The grader's switch delivers in rounds: when no thread of any rank can go on, everything that was sent is delivered
  at once. A call begins in the round of its first message and ends with that of its last. A plain message of the same
  round was sent while the call was under way.

The two agree on what a check may ask: what had begun, and what had ended, when a rank sent a plain message for which
it waits. Between two such messages a rank must leave enough rounds for the calls before (`labkit.parallel.announce`).
They also agree on whether a plain message can have been taken when another one was sent (`Order.had`): in a notebook
its rank must have waited for it before, and behind the switch it must have been delivered in an earlier round.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from labkit.wire.message import name_operation
from labkit.wire.recording import record as rec
from labkit.wire.recording.trace import Trace

MARK = "uint8"  # the dtype of announcements; their bytes say of what


@dataclass(frozen=True)
class Call:
    """One collective call of a rank. nbytes: payload that the rank sent in it. begun, ended: places in its order."""

    name: str
    nbytes: int
    begun: tuple[int, ...]
    ended: tuple[int, ...]


@dataclass(frozen=True)
class Mark:
    """An announcement: a plain message of `number` bytes of the dtype `MARK`. at: its place in the rank's order."""

    number: int
    at: tuple[int, ...]


@dataclass(frozen=True)
class Plain:
    """A plain message of a rank, other than an announcement. peer: the rank on the other side. at: its place in the
    rank's order: where a message to the peer was sent, or where one from the peer had been taken."""

    peer: int
    nbytes: int
    at: tuple[int, ...]


@dataclass(frozen=True)
class Order:
    """What one rank did, in order: its collective calls (those in which it sent something), and its announcements.

    sent, taken: its other plain messages. Those to one peer, and those from one peer, are in the order in which they
    were sent; behind a switch, messages of one round to different peers are not.
    """

    calls: tuple[Call, ...] = ()
    marks: tuple[Mark, ...] = ()
    sent: tuple[Plain, ...] = ()
    taken: tuple[Plain, ...] = ()

    def to(self, peer: int) -> list[Plain]:
        """What was sent to `peer`, in order."""
        return [message for message in self.sent if message.peer == peer]

    def had(self, message: Plain, peer: int, number: int) -> bool:
        """Whether the rank had taken the message `number` from `peer` (from 0) when it sent `message`."""
        taken = [one for one in self.taken if one.peer == peer]
        return number < len(taken) and taken[number].at < message.at

    def begun_by(self, number: int) -> list[Call]:
        """The calls that had begun when the last announcement of `number` was made; all of them if there was none.

        An announcement may be several messages. Here the last of them counts, because behind a switch a call that waits
        in line begins only when those before it are over.
        """
        runs = self._runs(number)
        return [call for call in self.calls if not runs or call.begun < runs[-1][-1].at]

    def over_by(self, number: int) -> list[Call]:
        """The calls that were over before the last announcement of `number`, before its first message."""
        runs = self._runs(number)
        return [call for call in self.calls if not runs or call.ended < runs[-1][0].at]

    @property
    def announced(self) -> list[int]:
        """The numbers announced, in order; the messages of one announcement count as one."""
        return [number for number, _ in itertools.groupby(mark.number for mark in self.marks)]

    def _runs(self, number: int) -> list[list[Mark]]:
        """The messages of each announcement of `number`."""
        runs = [list(run) for _, run in itertools.groupby(self.marks, key=lambda mark: mark.number)]
        return [run for run in runs if run[0].number == number]


def order_of_trace(trace: Trace) -> list[Order]:
    """By rank, from the records of a run: a call begins where the program made it, and ends where it waited for it."""
    events = trace.events
    return [_of_rank(events[events["rank"] == rank], trace) for rank in range(trace.world_size)]


def _of_rank(rows: np.ndarray, trace: Trace) -> Order:
    own = {int(e["index"]): e for e in rows}
    waited: dict[int, int] = {}
    for e in rows[rows["kind"] == rec.WAIT]:
        waited.setdefault(int(e["detail"]) - 1, int(e["index"]))
    sent: dict[int, int] = {}  # bytes by the outermost collective
    marks, out, into = [], [], []
    never = 1 + max(own, default=0)
    for e in rows[rows["kind"] == rec.SEND]:
        call = _outermost(own, e)
        if call >= 0:
            sent[call] = sent.get(call, 0) + int(e["nbytes"])
        elif _is_mark(trace, e):
            marks.append(Mark(int(e["nbytes"]), (int(e["index"]),)))
        else:
            out.append(Plain(int(e["peer"]), int(e["nbytes"]), (int(e["index"]),)))
    for e in rows[rows["kind"] == rec.RECV]:
        if _outermost(own, e) < 0 and not _is_mark(trace, e):
            index = int(e["index"])
            there = waited.get(index, never) if e["flags"] & rec.ASYNC else index
            into.append(Plain(int(e["peer"]), int(e["nbytes"]), (there,)))
    calls = []
    for index, nbytes in sorted(sent.items()):
        e = own[index]
        end = waited.get(index, never) if e["flags"] & rec.ASYNC else index
        calls.append(Call(trace.names[e["name"]], nbytes, (index,), (end,)))
    return Order(tuple(calls), tuple(marks), tuple(out), tuple(into))


def _is_mark(trace: Trace, row: Any) -> bool:
    from labkit.wire.dtypes import NAMES

    return NAMES.get(int(row["dtype"])) == MARK and row["nbytes"] > 0


def _outermost(own: dict[int, Any], row: Any) -> int:
    """The index of the outermost collective that a record lies in; -1 for none."""
    found, parent = -1, int(row["parent"])
    for _ in range(rec.MAX_NESTING):
        above = own.get(parent - 1)
        if above is None:
            break
        if above["kind"] == rec.COLLECTIVE:
            found = parent - 1
        parent = int(above["parent"])
    return found


def order_of_rounds(messages: Iterable[Any], size: int) -> list[Order]:
    """By rank, from what a switch delivered in rounds: entries as `labkit.grading.sandbox.Delivery`, in its order."""
    calls: list[dict[tuple[int, int], list[Any]]] = [{} for _ in range(size)]
    marks: list[list[Mark]] = [[] for _ in range(size)]
    sent: list[list[Plain]] = [[] for _ in range(size)]
    taken: list[list[Plain]] = [[] for _ in range(size)]
    for place, m in enumerate(messages):
        if m.operation:
            calls[m.src].setdefault((m.group, m.call), []).append((m, place))
        elif m.dtype == MARK and m.nbytes > 0:
            marks[m.src].append(Mark(m.nbytes, (m.round, 1, place)))
        elif m.dtype != MARK:
            sent[m.src].append(Plain(m.dst, m.nbytes, (m.round, 1, place)))
            taken[m.dst].append(Plain(m.src, m.nbytes, (m.round, 2, place)))
    return [
        Order(
            tuple(sorted(map(_call, calls[r].values()), key=_begun)), tuple(marks[r]), tuple(sent[r]), tuple(taken[r])
        )
        for r in range(size)
    ]


def _call(parts: list[Any]) -> Call:
    (first, place), (last, end) = parts[0], parts[-1]
    name = name_operation(first.operation, 0).partition(" (")[0]
    return Call(name, sum(m.nbytes for m, _ in parts), (first.round, 0, place), (last.round, 2, end))


def _begun(call: Call) -> tuple[int, ...]:
    return call.begun
