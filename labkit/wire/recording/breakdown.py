"""Where the time of a run went: computing, moving bytes, waiting for somebody; and which chain decided its end.

A receive *waits* until its sender begins and *transfers* from then on; a blocking send waits until its receiver
is there, and a buffered one, which is over before, for nobody. A native collective waits until its last member has
called it. Compute is what lies in spans called "compute" (as `group.compute` makes them) or in spans with the
attribute kind="compute".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from labkit.wire.recording.trace import Message, Trace

Interval = tuple[float, float]
TICK = 1e-9  # seconds: what clocks count in. A difference of sums is not known better


@dataclass(frozen=True)
class Segment:
    """A piece of the critical path. kind: "work" on a rank, or "message" from the rank before it."""

    rank: int
    kind: str
    name: str
    start: float
    end: float


def step_breakdown(trace: Trace, step: int | None = None) -> list[dict[str, float]]:
    """By rank, in seconds: compute, transfer, waiting, overlapped, other, total.

    total is the rank's time from its first record to its last (of `step`, if one is named). overlapped is the
    communication that went on while the rank computed; transfer and waiting are what was left exposed. So
    compute + transfer + waiting + other = total.
    """
    rows = []
    for rank in range(trace.world_size):
        compute, transfer, waiting, whole = _intervals(trace, rank, step)
        communication = union(transfer + waiting)
        exposed_transfer = subtract(union(transfer), compute)
        exposed_waiting = subtract(subtract(union(waiting), compute), exposed_transfer)
        total = whole[1] - whole[0]
        row = {
            "compute": length(compute),
            "transfer": length(exposed_transfer),
            "waiting": length(exposed_waiting),
            "overlapped": length(communication) - length(subtract(communication, compute)),
        }
        other = total - row["compute"] - row["transfer"] - row["waiting"]
        row["other"] = other if other > TICK else 0.0
        row["total"] = total
        rows.append(row)
    return rows


def overlap(trace: Trace, a: str, b: str) -> list[float]:
    """By rank: seconds in which an `a` and a `b` ran at once (names of spans or collectives, see Trace.overlap)."""
    rows = []
    for rank in range(trace.world_size):
        first, second = _named(trace, rank, a), _named(trace, rank, b)
        rows.append(length(first) - length(subtract(first, second)))
    return rows


def critical_path(trace: Trace) -> list[Segment]:
    """From the rank that ended last, back to the start: its work, the message it waited for, that sender's work, ..."""
    ends = [max((e["t1"] for e in trace.events[trace.events["rank"] == r]), default=0) for r in range(trace.world_size)]
    if not any(ends):
        return []
    rank = max(range(trace.world_size), key=lambda r: ends[r])
    now = trace._entries.seconds(ends[rank])
    waited: dict[int, list[tuple[float, float, Message]]] = {r: [] for r in range(trace.world_size)}
    for m in trace.recvs:
        sent = _sent(trace, m)
        if m.arrived == m.arrived and sent > m.recv_start:
            waited[m.dst].append((m.arrived, sent, m))
    path: list[Segment] = []
    while True:
        before = [w for w in waited[rank] if w[0] <= now and w[1] < now]
        if not before:
            path.append(Segment(rank, "work", "", 0.0, now))
            return path[::-1]
        arrived, sent, m = max(before, key=lambda w: w[0])
        if now > arrived:
            path.append(Segment(rank, "work", "", arrived, now))
        path.append(Segment(rank, "message", f"{m.nbytes} bytes from rank {m.src}", sent, arrived))
        rank, now = m.src, sent


def _sent(trace: Trace, m: Message) -> float:
    return trace.sent_at.get((m.src, m.dst, m.group, m.lane, m.seq), float("-inf"))


def _intervals(
    trace: Trace, rank: int, step: int | None
) -> tuple[list[Interval], list[Interval], list[Interval], Interval]:
    """(compute, transfer, waiting, whole) of one rank."""
    compute, transfer, waiting, marks = [], [], [], []
    for s in trace.spans():
        if s.rank == rank and (step is None or s.step == step):
            marks += [s.start, s.end]
            if s.name == "compute" or s.attrs.get("kind") == "compute":
                compute.append((s.start, s.end))
    for m in trace.recvs:
        if m.dst == rank and (step is None or m.step == step):
            marks += [m.start, m.end]
            begin = min(max(m.start, _sent(trace, m)), m.end)
            waiting.append((m.start, begin))
            transfer.append((begin, m.end))
    for m in trace.sends:
        if m.src == rank and (step is None or m.step == step):
            marks += [m.start, m.end]
            begin = m.recv_start if m.start < m.recv_start <= m.end else m.start
            waiting.append((m.start, begin))
            transfer.append((begin, m.end))
    started = _native_starts(trace)
    for c in trace.collectives():
        if c.rank == rank and (step is None or c.step == step):
            marks += [c.start, c.end]
            if c.native:
                begin = min(max(c.start, started[c.group, c.seq]), c.end)
                waiting.append((c.start, begin))
                transfer.append((begin, c.end))
    return union(compute), transfer, waiting, (min(marks, default=0.0), max(marks, default=0.0))


def _native_starts(trace: Trace) -> dict[tuple[int, int], float]:
    """When the last member called each native collective."""
    last: dict[tuple[int, int], float] = {}
    for c in trace.collectives():
        if c.native:
            last[c.group, c.seq] = max(last.get((c.group, c.seq), 0.0), c.start)
    return last


def _named(trace: Trace, rank: int, name: str) -> list[Interval]:
    if name == "communication":
        _, transfer, waiting, _ = _intervals(trace, rank, None)
        return union(transfer + waiting)
    if name == "compute":
        return _intervals(trace, rank, None)[0]
    found = [(s.start, s.end) for s in trace.spans(name) if s.rank == rank]
    return union(found + [(c.start, c.end) for c in trace.collectives(name) if c.rank == rank])


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same time without overlaps, in order."""
    merged: list[Interval] = []
    for a, b in sorted(i for i in intervals if i[1] > i[0]):
        if merged and a <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(b, merged[-1][1]))
        else:
            merged.append((a, b))
    return merged


def subtract(intervals: list[Interval], minus: list[Interval]) -> list[Interval]:
    """The time of `intervals` that is not in `minus` (both without overlaps)."""
    left = []
    for a, b in intervals:
        for c, d in minus:
            if d <= a or c >= b:
                continue
            if c > a:
                left.append((a, c))
            a = max(a, d)
        if a < b:
            left.append((a, b))
    return left


def length(intervals: Iterable[Interval]) -> float:
    """Seconds in all."""
    return sum(b - a for a, b in intervals)
