"""A schedule as a picture: a row per rank, a box per instruction with its letter and its microbatch, gaps where idle.

F is a forward, B a whole backward, I the gradient of the input, W of the weights, U an update. The same picture for a
schedule, for what the simulator says of it, and for a run whose spans are named by labels such as `2F0`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from labkit.book.drawing.figure import Figure
from labkit.book.drawing.units import seconds_text, short
from labkit.book.timelines.schedule_runs import MIXED, Run, runs
from labkit.book.timelines.schedule_words import rows_of, sentence_of
from labkit.book.timelines.schedules_plotly import spec
from labkit.book.timelines.schedules_svg import picture

if TYPE_CHECKING:
    from labkit.parallel.pipeline import Costs

MOST_BOXES = 1500  # beyond this nobody can tell them apart, and a notebook grows by megabytes
NAMES = {
    "F": "F forward", "B": "B backward", "I": "I gradient of the input", "W": "W gradient of the weights",
    "U": "U update", MIXED: "several kinds by turns",
}  # fmt: skip
LABEL = re.compile(r"(\d+)([FBIWU])(\d+)")
Window = tuple[float, float]


class Box(NamedTuple):
    """One instruction: its letter, the stage of the model, the chunk of its rank, the microbatch, and when it is."""

    rank: int
    kind: str
    stage: int
    chunk: int
    microbatch: int
    start: float
    end: float

    @property
    def label(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"


@dataclass(frozen=True)
class Scene:
    """What both forms draw: rows for `ranks`, boxes or, where there are too many, runs of boxes."""

    ranks: Sequence[int]
    window: Window
    chunks: int
    boxes: Sequence[Box]
    runs: Sequence[Run]
    seconds: bool  # times are seconds; else units, in which a forward takes 1

    @property
    def kinds(self) -> list[str]:
        """The kinds that occur, in the order of the legend."""
        present = {each.kind for each in (self.boxes or self.runs)}
        return [kind for kind in NAMES if kind in present]

    @property
    def row_height(self) -> float:
        """Pixels."""
        return 36 if len(self.ranks) <= 10 else max(7.0, 360 / len(self.ranks))

    def time(self, value: float) -> str:
        """A time as a reader meets it."""
        return seconds_text(value) if self.seconds else f"{short(value)} units"


def schedule(
    what: Any, *, costs: Costs | None = None, window: Window | None = None, ranks: Sequence[int] | None = None,
    step: int | None = None, title: str = "",
) -> Figure:  # fmt: skip
    """The picture of a `Schedule`, of a `Timeline` that `simulate` made, or of the trace of a run.

    costs: for a schedule, seconds of its instructions. Without them F, I and W take one unit of time each, B two.
    window: (first, last) moment to show, in units for a schedule without costs and in seconds else. ranks: which rows.
    step: of a trace, which step; by default all of it.
    Beyond 1,500 boxes, boxes in a row are drawn as one stretch, as tall as the share of its time in which the rank
    computes: use window= or ranks= to see each.

    Text equivalent: per rank its instructions in order, the time it computes and is idle, and the activations that it
    keeps at most.
    """
    boxes, badge, name, seconds = _read(what, costs, step)
    by_rank: dict[int, list[Box]] = {}
    for box in sorted(boxes, key=attrgetter("rank", "start", "end")):
        by_rank.setdefault(box.rank, []).append(box)
    shown = list(by_rank) if ranks is None else list(ranks)
    if not shown or not all(rank in by_rank for rank in shown):
        raise ValueError(f"ranks={ranks!r}: this schedule has ranks {min(by_rank)} to {max(by_rank)}")
    whole = min(b[0].start for b in by_rank.values()), max(b[-1].end for b in by_rank.values())
    first, last = whole if window is None else window
    if whole[0] == whole[1]:
        raise ValueError("nothing in this schedule takes any time: simulate or run it with costs (a run: seconds=...)")
    if not first < last:
        raise ValueError(f"window={window!r}: give the first and the last moment to show, the first one smaller")
    inside = {
        rank: [b for b in by_rank[rank] if b.start < last and b.end > first or first <= b.start == b.end <= last]
        for rank in shown
    }  # fmt: skip
    crowded = sum(map(len, inside.values())) > MOST_BOXES
    scene = Scene(
        shown, (first, last), 1 + max(b.chunk for b in boxes),
        () if crowded else [box for mine in inside.values() for box in mine],
        runs(inside, (first, last)) if crowded else (), seconds,
    )  # fmt: skip
    rows = rows_of(scene, inside, by_rank)
    sentence = sentence_of(scene, name, rows, 1 + max(b.microbatch for b in boxes), window)
    title = title or "Schedule"
    return Figure(
        title, badge, sentence, rows, svg=picture(scene, title, badge, sentence, NAMES),
        spec=spec(scene, title, badge, NAMES),
    )  # fmt: skip


def _read(what: Any, costs: Costs | None, step: int | None) -> tuple[list[Box], str, str, bool]:
    """(boxes, badge, name of the schedule, whether times are seconds)."""
    from labkit.parallel.pipeline import Compute, Costs, Schedule, Timeline, simulate

    if isinstance(what, Schedule):
        units = costs is None
        line, scale = simulate(what, Costs(1e-9, 1e-9, 1e-9, 1e-9) if costs is None else costs), 1.0 if units else 1e-9
    elif isinstance(what, Timeline):
        line, scale, units = what, 1e-9, False
    elif hasattr(what, "spans"):
        return _of_run(what, step), what.badge, "", True
    else:
        kind = type(what).__name__
        raise ValueError(f"a {kind} cannot be drawn as a schedule: give a Schedule, a Timeline or a Trace")
    plan = line.schedule
    boxes = [
        Box(rank, i.action, plan.stage(rank, i.chunk), i.chunk, i.microbatch, scale * begin, scale * end)
        for rank, (steps, begins, ends) in enumerate(zip(plan.ranks, line.begin, line.end, strict=True))
        for i, begin, end in zip(steps, begins, ends, strict=True) if isinstance(i, Compute)
    ]  # fmt: skip
    if not boxes:
        raise ValueError("this schedule has no instructions to draw")
    return boxes, "simulated", plan.name, not units


def _of_run(trace: Any, step: int | None) -> list[Box]:
    found = [
        (span, match) for span in trace.spans()
        if (match := LABEL.fullmatch(span.name)) and (step is None or span.step == step)
    ]  # fmt: skip
    if not found:
        raise ValueError(
            "this trace has no spans named like 2F0: run a schedule with labkit.parallel.pipeline.execute"
            + ("" if step is None else f", or look at another step than {step}")
        )
    stages: dict[int, list[int]] = {}
    for span, match in found:
        stages.setdefault(span.rank, []).append(int(match[1]))
    order = {rank: sorted(set(each)) for rank, each in stages.items()}
    return [
        Box(span.rank, match[2], int(match[1]), order[span.rank].index(int(match[1])), int(match[3]), span.start,
            span.end)
        for span, match in found
    ]  # fmt: skip
