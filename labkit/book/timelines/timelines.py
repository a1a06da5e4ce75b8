"""The timeline of a run: a row per rank, computing above, communication below.

Boxes are stretches of time, arrows are messages. A send or receive that waits for its partner is hatched: where
the hatching is, time is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from labkit.book.drawing.boxes import (
    Box,
    Window,
    arrived,
    beside_boxes,
    clip,
    collective_boxes,
    length,
    merged,
    message_boxes,
    seconds_by_rank,
    stuck_boxes,
    work_boxes,
)
from labkit.book.drawing.figure import Figure
from labkit.book.drawing.units import bytes_text, plural, seconds_text
from labkit.book.timelines.reads import Message, Trace, longest_waits
from labkit.book.timelines.timelines_plotly import spec
from labkit.book.timelines.timelines_svg import picture

MOST_ARROWS = 12  # more of them are a net that nobody can read
TICK = 1e-9  # seconds: what clocks count in. A sum of stretches is not known better, so less is shown as 0
CROWDED = 150  # boxes; beyond this those that are too narrow to be told apart are drawn as one
MOST_BOXES = 1500  # beyond this a notebook grows by megabytes, and nobody can tell the boxes apart
NAMES = {
    "span": "named span", "compute": "computing", "collective": "collective", "native": "native collective",
    "send": "sending", "receive": "receiving", "waiting": "waiting for its partner",
}  # fmt: skip


@dataclass(frozen=True)
class Scene:
    """What both forms of the timeline draw: boxes and arrows on rows, and where each lane sits in its row."""

    ranks: Sequence[int]
    window: Window
    boxes: Sequence[Box]
    arrows: Sequence[Message]
    lanes: dict[str, tuple[float, float]]  # lane -> (top, height) as parts of a row, from the top down
    row_height: float  # pixels
    roomy: bool  # rows have a line for the names of their collectives
    zero: float = 0.0  # the second at which the axis of time begins to count
    initials: bool = False  # a box of work that is too narrow for its name has the first letter of it

    @property
    def kinds(self) -> list[str]:
        """The kinds of boxes that occur, in the order of the legend."""
        present = {b.kind for b in self.boxes}
        return [kind for kind in NAMES if kind in present]

    def arrow(self, m: Message) -> tuple[float, float, float, float]:
        """From (seconds, row) to (seconds, row): the edge of the send's box to the facing edge of the receive's."""
        src, dst = self.ranks.index(m.src), self.ranks.index(m.dst)
        (out, thick), (into, tall) = self.lanes["send"], self.lanes["receive"]
        down = src < dst
        tail, tip = src + out + (thick if down else 0), dst + into + (0 if down else tall)
        return max(m.start, m.recv_start), tail, m.arrived, tip


def timeline(
    trace: Trace,
    *,
    step: int | None = None,
    window: Window | None = None,
    ranks: Sequence[int] | None = None,
    arrows: bool | None = None,
    title: str = "Timeline",
    beside: Sequence[tuple[int, str, float, float]] = (),
    sentence: str | None = None,
    initials: bool = False,
) -> Figure:
    """The timeline of a run.

    step: show what belongs to this training step alone (`group.step`), on each rank.
    window: (first, last) second to show; by default from the first thing that happened to the last.
    ranks: which world ranks; all by default.
    arrows: draw an arrow for each message; by default when at most a dozen messages are shown.
    beside: (rank, name, first second, last second) of what goes on beside a rank's own work, as a thread that writes;
        it gets a lane of its own.
    sentence: said in place of the usual one.
    initials: a box of work that is too narrow for its name has the first letter of it.

    Text equivalent: per rank, milliseconds computing, transferring and waiting inside the window, as
    `Trace.step_breakdown` defines them, and the messages and bytes it sent; with `beside`, the milliseconds of that.
    """
    shown = list(range(trace.world_size)) if ranks is None else list(ranks)
    if not shown or not all(0 <= r < trace.world_size for r in shown):
        raise ValueError(f"ranks={ranks!r}: this run has ranks 0 to {trace.world_size - 1}")
    if window is not None and not window[0] < window[1]:
        raise ValueError(f"window={window!r}: give the first and the last second to show, the first one smaller")
    for what in beside:
        if what[0] not in range(trace.world_size) or not what[2] <= what[3]:
            raise ValueError(
                f"beside has {what!r}: give (rank, name, first second, last second), a rank from 0 to "
                f"{trace.world_size - 1} and the first second before the last"
            )

    met = [m for m in trace.sends if arrived(m) and (m.src in shown or m.dst in shown)]
    met = [m for m in met if step is None or m.step == step]
    every = [*work_boxes(trace, step), *collective_boxes(trace, step), *message_boxes(trace, met)]
    every += stuck_boxes(trace) if step is None else []
    every += beside_boxes(beside)
    first, last = window if window is not None else whole(every)
    inside = [m for m in met if m.start <= last and m.arrived >= first]
    boxes = [b for b in clip(every, (first, last)) if b.rank in shown]
    numbers = seconds_by_rank(boxes, shown)
    few = len(inside) <= MOST_ARROWS if arrows is None else arrows

    rows: list[dict[str, object]] = [
        {
            "rank": rank,
            **{f"{name} (ms)": _milliseconds(seconds) for name, seconds in n.items()},
            "messages sent": sum(m.src == rank for m in inside),
            "bytes sent": sum(int(m.nbytes) for m in inside if m.src == rank),
        }
        for rank, n in zip(shown, numbers, strict=True)
    ]
    if beside:
        for row in rows:
            row["beside it (ms)"] = 1e3 * length(
                (b.start, b.end) for b in boxes if b.rank == row["rank"] and b.lane == "beside"
            )
    sentence = _sentence(shown, numbers, inside, last - first, window) if sentence is None else sentence
    if len(boxes) > CROWDED:
        each = len(boxes)
        sizes = ((last - first) / parts for parts in (250, 100, 50, 20, 5, 1))  # 250: three pixels
        boxes = next(b for gap in sizes if len(b := merged(boxes, gap)) <= MOST_BOXES or gap == last - first)
        if len(boxes) < each:
            sentence += " Short boxes in a row are drawn as one, as tall as the part of its time that they fill."
    both = [m for m in inside if m.src in shown and m.dst in shown and first <= max(m.start, m.recv_start)
            and m.arrived <= last] if few else []  # fmt: skip
    with_work = any(b.lane == "work" for b in boxes)
    room = (84 if with_work else 60) if len(shown) <= 8 else max(18, 560 / len(shown))
    room += 16 if beside and room > 45 else 0
    lanes = _lanes(with_work, room > 45, bool(beside))
    zero = first if step is not None else 0.0  # when a step began says nothing about it
    scene = Scene(shown, (first, last), boxes, both, lanes, room, room > 45, zero, initials)
    return Figure(
        title, trace.badge, sentence, list(rows),
        svg=picture(scene, title, trace.badge, sentence, NAMES),
        spec=spec(scene, title, trace.badge, NAMES),
    )  # fmt: skip


def _milliseconds(seconds: float) -> float:
    """For the table: 0.0 for what is no longer than the rounding of a clock."""
    return 1e3 * seconds if seconds > 1.5 * TICK else 0.0


def whole(boxes: Sequence[Box]) -> Window:
    """From the beginning of the first box to the end of the last one."""
    if not boxes:
        return 0.0, 1e-9
    first = min(b.start for b in boxes)
    return first, max(*(b.end for b in boxes), first + 1e-9)


def _sentence(
    ranks: Sequence[int], numbers: list[dict[str, float]], messages: list[Message], seconds: float,
    window: Window | None,
) -> str:  # fmt: skip
    total = sum(int(m.nbytes) for m in messages)
    text = f"{plural(len(ranks), 'rank')} over {seconds_text(seconds)}"
    text += f" (from {seconds_text(window[0])} to {seconds_text(window[1])})" if window else ""
    text += f": {plural(len(messages), 'message')}, {bytes_text(total)}."
    worst = max(range(len(ranks)), key=lambda i: numbers[i]["waiting"])
    lost = numbers[worst]["waiting"]
    if lost > 0:
        alike = len(ranks) > 1 and min(row["waiting"] for row in numbers) > 0.99 * lost
        who = longest_waits(ranks, [row["waiting"] for row in numbers])
        text += " Each rank waits" if alike else f" {who} longest:"
        text += f" {seconds_text(lost)}, {100 * lost / seconds:.0f} % of the time."
    return text


def _lanes(with_work: bool, roomy: bool, beside: bool = False) -> dict[str, tuple[float, float]]:
    """Where each lane sits in its row."""
    if beside and roomy:
        return {
            "work": (0.05, 0.24), "beside": (0.31, 0.17), "collective": (0.51, 0.46), "send": (0.67, 0.12),
            "receive": (0.81, 0.12),
        }  # fmt: skip
    if beside:
        return {"beside": (0.17, 0.11)} | _lanes(True, False) | {"work": (0.04, 0.12)}
    if not roomy:
        return {"work": (0.04, 0.24), "collective": (0.3, 0.66), "send": (0.35, 0.26), "receive": (0.65, 0.26)}
    if with_work:
        return {"work": (0.05, 0.27), "collective": (0.36, 0.60), "send": (0.57, 0.16), "receive": (0.76, 0.16)}
    return {"work": (0, 0), "collective": (0.06, 0.88), "send": (0.36, 0.24), "receive": (0.65, 0.24)}
