"""Follow the data of messages through the ranks' tensors, in the order in which things happened.

Each message is two events: it is sent (what its chunks hold is noted) and it arrives (its chunks change). On a rank
events follow its clock; between ranks a message cannot arrive before it was sent. So the clocks of two machines
need not agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from labkit.book.drawing.boxes import arrived
from labkit.book.stepping.goals import REDUCTIONS, Held
from labkit.book.timelines.reads import Collective, Message

SEND, ARRIVE = 0, 1
RESOLUTION = 1.5e-9  # seconds: a record that took no time at all is noted with an end one nanosecond later


@dataclass
class Carried:
    """A message whose place in the tensor is known: from which chunks to which chunks, and what it carries."""

    message: Message
    source: int  # indices of ranks in the replay
    target: int
    origin: tuple[int, ...]
    chunks: tuple[int, ...]
    combine: bool
    spare: bool  # received into a buffer outside the tensor: what became of it no message tells
    content: tuple[Held, ...] = ()
    level: int = 0

    def hits(self, other: Carried) -> bool:
        """Whether both change the same chunk."""
        return self.target == other.target and bool(set(self.chunks) & set(other.chunks))

    def load(self, held: Sequence[Sequence[Held]]) -> None:
        """Note what the chunks hold at the sender, now."""
        self.content = tuple(held[self.source][c] for c in self.origin)

    def deliver(self, held: list[list[Held]]) -> None:
        """Change the receiver's chunks."""
        row = held[self.target]
        for chunk, content in zip(self.chunks, self.content, strict=True):
            row[chunk] = tuple(sorted(row[chunk] + content)) if self.combine else content


@dataclass
class Path:
    """The messages of one collective, placed. unseen: as in `Replay`."""

    bounds: tuple[int, ...]
    carried: dict[int, Carried]
    order: dict[int, list[tuple[int, int]]]  # rank -> its events (SEND or ARRIVE, number of the message), in order
    unseen: int
    late: bool = False  # what went into spare buffers is combined at the end, not at once

    @property
    def assumed(self) -> int:
        return sum(one.spare for one in self.carried.values())

    def deliver(self, number: int, held: list[list[Held]]) -> None:
        """What the arrival of a message changes."""
        if not (self.late and self.carried[number].spare):
            self.carried[number].deliver(held)

    def settle(self, held: list[list[Held]]) -> bool:
        """At the end: combine what is still set aside. Returns whether there was any."""
        waiting = [one for one in self.carried.values() if self.late and one.spare]
        for one in waiting:
            one.deliver(held)
        return bool(waiting)

    def run(self, held: Sequence[Sequence[Held]]) -> list[int]:
        """Let everything happen, from the state `held`; each message notes its content. Returns the numbers of the
        messages in the order in which they arrived."""
        state = [list(row) for row in held]
        queues = {rank: list(reversed(events)) for rank, events in self.order.items()}
        reached = dict.fromkeys(queues, 0)  # the longest chain of messages that ends at each rank
        sending: dict[int, int] = {}  # rank -> the round of its last message; it sends one message at a time
        receiving: dict[int, int] = {}  # and receives one at a time
        sent: set[int] = set()
        arrivals = []
        while any(queues.values()):
            # Of the events that can happen now take the earliest; if the record has none, the earliest of all.
            heads = [(self._time(*q[-1]), self._level(*q[-1], reached), rank) for rank, q in queues.items() if q]
            able = [h for h in heads if queues[h[-1]][-1][0] == SEND or queues[h[-1]][-1][1] in sent]
            rank = min(able or heads)[-1]
            what, number = queues[rank].pop()
            one = self.carried[number]
            if what == SEND or number not in sent:
                one.load(state)
                src = one.message.src
                one.level = sending[src] = max(reached[src], sending.get(src, 0)) + 1
                sent.add(number)
            if what == ARRIVE:
                self.deliver(number, state)
                one.level = max(reached[rank], one.level, receiving.get(rank, 0) + 1)
                reached[rank] = receiving[rank] = one.level
                arrivals.append(number)
        return arrivals

    def _time(self, what: int, number: int) -> float:
        message = self.carried[number].message
        return message.start if what == SEND else message.arrived

    def _level(self, what: int, number: int, reached: dict[int, int]) -> int:
        """Decides between events of the same time: what depends on less comes first."""
        return self.carried[number].level if what == ARRIVE else reached[self.carried[number].message.src]

    def levels(self, arrivals: list[int]) -> Iterator[list[int]]:
        """Arrivals in rounds: each waits for what its sender had received; a rank sends and receives one a round."""
        for level in sorted({self.carried[n].level for n in arrivals}):
            yield [n for n in arrivals if self.carried[n].level == level]

    def moments(self, arrivals: list[int]) -> Iterator[list[int]]:
        """Arrivals grouped by time. What depends on an arrival, or hits the same chunk again, comes later."""
        group: list[int] = []
        for n in arrivals:
            one = self.carried[n]
            if group and (
                one.message.arrived != self.carried[group[0]].message.arrived
                or any(one.level > self.carried[g].level for g in group)
                or any(one.hits(self.carried[g]) for g in group)
            ):
                yield group
                group = []
            group.append(n)
        if group:
            yield group


def follow(first: Collective, ranks: tuple[int, ...], total: int, messages: Sequence[Message]) -> Path:
    """Place the messages of the collective `first` in its tensor of `total` elements.

    Chunks are the pieces between all the places where some message begins or ends. Where only one side of a message
    lies in the tensor, the other is taken to be a copy of the same elements: that is what a reduction combines.
    """
    placed: list[tuple[Message, int, int, bool]] = []
    unseen = 0
    for m in messages:
        if not arrived(m) or not prod(m.shape) or m.src not in ranks or m.dst not in ranks:
            continue
        read = int(m.offset if m.offset >= 0 else m.recv_offset)
        write = int(m.recv_offset if m.recv_offset >= 0 else m.offset)
        if read < 0 or max(read, write) >= total:
            unseen += 1
        else:
            spare = first.name in REDUCTIONS and m.recv_offset < 0 and not m.combine
            placed.append((m, read, write, spare))
    if unseen and not placed:
        raise ValueError(
            f"{first.name} {first.algorithm} moves copies that lie outside its tensor, so a replay cannot follow them: "
            "say in the algorithm what they hold, with group.copy_of or group.work_on; or use timeline, byte_matrix"
        )
    cuts = {0, total}
    for m, read, write, _ in placed:
        cuts |= {read, _around(read + prod(m.shape), total), write, _around(write + prod(m.shape), total)}
    bounds = tuple(sorted(cuts))
    bounds = bounds if len(bounds) > 1 else (0, 0)
    carried = {}
    for number, (m, read, write, spare) in enumerate(placed):
        origin, chunks = (_chunks(bounds, at, prod(m.shape)) for at in (read, write))
        if len(origin) != len(chunks):  # the two ranks cut differently: fall back on the receiver's cut
            origin = chunks
        source, target = ranks.index(m.src), ranks.index(m.dst)
        carried[number] = Carried(m, source, target, origin, chunks, m.combine or spare, spare)
    return Path(bounds, carried, _order(ranks, carried), unseen)


def _around(end: int, total: int) -> int:
    """Where a message ends: one that goes beyond the last element goes on with the first."""
    return end if end <= total else end - total


def _chunks(bounds: tuple[int, ...], first: int, count: int) -> tuple[int, ...]:
    """The chunks that `count` elements from `first` on fill, in the order in which they lie in the message."""
    end, total = first + count, bounds[-1]
    pieces = ((first, min(end, total)), (0, end - total))
    return tuple(c for a, b in pieces for c in range(len(bounds) - 1) if a <= bounds[c] and bounds[c + 1] <= b)


def _order(ranks: tuple[int, ...], carried: dict[int, Carried]) -> dict[int, list[tuple[int, int]]]:
    """Each rank's events, in the order of its records; a message that arrives goes before the first operation that
    was recorded later than its receive and began when it had arrived.

    Times alone would not do: on a virtual clock many operations may begin and end at the same time.
    """
    sends: dict[int, list[tuple[int, float]]] = {rank: [] for rank in ranks}
    for one in carried.values():
        sends[one.message.src].append((int(one.message.index), one.message.start))
    keyed: dict[int, list[tuple[float, float, int, int, int]]] = {rank: [] for rank in ranks}
    for number, one in carried.items():
        m = one.message
        keyed[m.src].append((m.index, m.start, 0, SEND, number))
        later = [i for i, start in sends[m.dst] if i > m.recv_index and start >= m.arrived - RESOLUTION]
        keyed[m.dst].append((min(later, default=float("inf")) - 0.5, m.arrived, m.recv_index, ARRIVE, number))
    return {rank: [(what, number) for *_, what, number in sorted(events)] for rank, events in keyed.items()}
