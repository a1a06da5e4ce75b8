"""A trace as boxes on rows: what each rank did when, before anything is drawn.

A message has two ends. Each end first waits for the other, then both transfer: the sender waits from `start`, the
receiver from `recv_start`, and the transfer runs from the later of the two until that end is done.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from labkit.book.drawing.units import bytes_text, seconds_text
from labkit.book.timelines.reads import Message, Trace

Window = tuple[float, float]


@dataclass(frozen=True)
class Box:
    """One stretch of time on one rank. lane: "work", "beside", "collective", "send" or "receive"; kind: a key of
    style.KINDS."""

    rank: int
    lane: str
    kind: str
    start: float
    end: float
    label: str = ""
    hover: str = ""
    share: float = 1.0  # of several boxes drawn as one: the part of this stretch that they fill


def arrived(message: Message) -> bool:
    """Whether the message was received; a rank that died or hung leaves messages that were not."""
    return not math.isnan(message.arrived)


def work_boxes(trace: Trace, step: int | None = None) -> Iterable[Box]:
    """Named spans (of a step, if given); those called compute, or with kind="compute", count as computing."""
    for span in trace.spans():
        if step is not None and span.step != step:
            continue
        attrs = "".join(f", {key} {value}" for key, value in span.attrs.items())
        hover = f"rank {span.rank}: {span.name}{attrs}, {seconds_text(span.end - span.start)}"
        kind = "compute" if span.name == "compute" or span.attrs.get("kind") == "compute" else "span"
        yield Box(span.rank, "work", kind, span.start, span.end, span.name, hover)


def beside_boxes(beside: Iterable[tuple[int, str, float, float]]) -> Iterable[Box]:
    """What goes on beside a rank's own work: (rank, name, first second, last second)."""
    for rank, name, start, end in beside:
        yield Box(rank, "beside", "span", start, end, name, f"rank {rank}: {name}, {seconds_text(end - start)}")


def collective_boxes(trace: Trace, step: int | None = None) -> Iterable[Box]:
    """Collectives (of a step, if given), without those that others call. A native one waits for its last member."""
    calls = [c for c in trace.collectives() if not c.nested and (step is None or c.step == step)]
    last: dict[tuple[int, int], float] = {}
    for c in calls:
        if c.native:
            last[c.group, c.seq] = max(c.start, last.get((c.group, c.seq), c.start))
    labelled: dict[int, float] = {}  # until when a name stands on each rank: those of queued calls would cover it
    for c in calls:
        name = f"{c.name} {c.algorithm}".strip()
        hover = f"rank {c.rank}: {name}, shape {list(c.shape)}, {seconds_text(c.end - c.start)}"
        meet = min(last.get((c.group, c.seq), c.start), c.end)
        label = name if c.start >= labelled.get(c.rank, c.start) else ""
        labelled[c.rank] = max(c.end, labelled.get(c.rank, c.end)) if label else labelled[c.rank]
        if meet > c.start:
            wait = f"{hover}, waits {seconds_text(meet - c.start)}"
            yield Box(c.rank, "collective", "waiting", c.start, meet, "", wait)
        yield Box(c.rank, "collective", "native" if c.native else "collective", meet, c.end, label, hover)


def message_boxes(trace: Trace, messages: Iterable[Message]) -> Iterable[Box]:
    """Up to four boxes a message: each end's waiting, then each end's transfer."""
    calls = trace.collectives()
    for m in filter(arrived, messages):  # `start` below is the sender's: these come from trace.sends
        inside = calls[m.collective] if 0 <= m.collective < len(calls) else None
        what = f"{inside.name} {inside.algorithm}: " if inside else ""
        size = bytes_text(m.nbytes)
        took = seconds_text(m.arrived - max(m.start, m.recv_start))
        ends = (
            (m.src, "send", m.start, m.recv_start, m.end, f"rank {m.src} sends {size} to rank {m.dst}"),
            (m.dst, "receive", m.recv_start, m.start, m.arrived, f"rank {m.dst} receives {size} from rank {m.src}"),
        )
        for rank, lane, mine, other, done, words in ends:
            meet = other if mine < other <= done else mine  # a buffered send is over before its receiver is there
            if meet > mine:
                wait = f"{what}{words}, waits {seconds_text(meet - mine)} for it"
                yield Box(rank, lane, "waiting", mine, meet, "", wait)
            yield Box(rank, lane, lane, meet, max(meet, done), "", f"{what}{words} in {took}")


def stuck_boxes(trace: Trace) -> Iterable[Box]:
    """Sends and receives that were never met: they wait until the run ends."""
    for m in trace.sends:
        if not arrived(m):
            words = f"rank {m.src} wants to send {bytes_text(m.nbytes)} to rank {m.dst}: never received"
            yield Box(m.src, "send", "waiting", m.start, trace.duration, "", words)
    for m in trace.recvs:
        if not arrived(m):
            words = f"rank {m.dst} waits for a message from rank {m.src} that never comes"
            yield Box(m.dst, "receive", "waiting", m.recv_start, trace.duration, "", words)


def clip(boxes: Iterable[Box], window: Window) -> list[Box]:
    """The boxes that touch `window`, cut at its ends."""
    first, last = window
    return [
        Box(b.rank, b.lane, b.kind, max(b.start, first), min(b.end, last), b.label, b.hover)
        for b in boxes
        if b.start < last and b.end > first or first <= b.start == b.end <= last
    ]


def merged(boxes: Iterable[Box], gap: float) -> list[Box]:
    """Neighbours of one kind on one lane that are shorter than `gap` seconds, and closer than it, as one box.

    `share` of that box is the part of its time that they fill, so that what was between them is not told as theirs.
    """
    result: list[Box] = []
    for box in sorted(boxes, key=lambda b: (b.rank, b.lane, b.kind, b.start)):
        before = result[-1] if result else box
        same = (before.rank, before.lane, before.kind) == (box.rank, box.lane, box.kind)
        if result and same and box.end - box.start < gap and box.start - before.end < gap:
            words = f"rank {box.rank}: several boxes ({box.lane}, {box.kind}) drawn as one"
            end = max(before.end, box.end)
            more = max(0.0, box.end - max(before.end, box.start))  # not what an earlier one fills already
            filled = before.share * (before.end - before.start) + more
            share = filled / (end - before.start) if end > before.start else 1.0
            result[-1] = Box(box.rank, box.lane, box.kind, before.start, end, before.label, words, share)
        else:
            result.append(box)
    return result


def covered(stretches: Iterable[Window]) -> list[Window]:
    """The union of stretches of time, in order and without overlap."""
    union: list[Window] = []
    for start, end in sorted(stretches):
        if union and start <= union[-1][1]:
            union[-1] = (union[-1][0], max(union[-1][1], end))
        else:
            union.append((start, end))
    return union


def length(stretches: Iterable[Window]) -> float:
    """Seconds covered by any of the stretches."""
    return sum(end - start for start, end in covered(stretches))


def seconds_by_rank(boxes: Sequence[Box], ranks: Sequence[int]) -> list[dict[str, float]]:
    """Per rank: seconds computing, transferring, waiting, and overlapped (as `Trace.step_breakdown` has them).

    Transferring: a message of this rank is on its way and nothing is computed. Waiting: a send or a receive waits
    for its partner, and nothing is computed or on its way. Overlapped: communication beside computing.
    """
    rows = []
    for rank in ranks:
        mine = [b for b in boxes if b.rank == rank]
        computing = [(b.start, b.end) for b in mine if b.kind == "compute"]
        moving = [(b.start, b.end) for b in mine if b.kind in ("send", "receive", "native")]
        waiting = [(b.start, b.end) for b in mine if b.kind == "waiting"]
        busy = length([*computing, *moving])
        everything = length([*computing, *moving, *waiting])
        rows.append({
            "computing": length(computing),
            "transferring": busy - length(computing),
            "waiting": everything - busy,
            "overlapped": length(computing) + length([*moving, *waiting]) - everything,
        })  # fmt: skip
    return rows
