"""Steps that are late because one rank is: how long each took, and where the time of the ranks went."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from itertools import pairwise
from typing import Any

from labkit import book, cost
from labkit.book.drawing.figure import WIDTH, heading, legend
from labkit.book.drawing.style import BLUE, GREY, ON_COLOUR, ORANGE
from labkit.book.drawing.svg import Svg
from labkit.book.drawing.tables import Row
from labkit.book.drawing.units import listing
from labkit.book.frontend import INSIDE, Panel, live
from labkit.chapters.c04_data_parallelism.machine import CAUSES, Trouble
from labkit.chapters.c04_data_parallelism.steps import box, ticks


def late_steps(runs: Mapping[int, Any], kernel: float, chance: float) -> book.Figure:
    """Each step of each run as a bar as long as it took; those longer than `kernel` by half are late and marked."""
    times = {ranks: step_times(run) for ranks, run in runs.items()}
    late = {ranks: [t > 1.5 * kernel for t in each] for ranks, each in times.items()}
    told = []
    for ranks, each in late.items():
        law, count = cost.RareDelay(kernel, kernel, chance).stalled_steps(ranks), len(each)
        spread = (count * law * (1 - law)) ** 0.5
        told.append(f"{sum(each)} of {count} with {ranks} ranks, where {count * law:.0f} ± {spread:.0f} are expected")
    said = f"Late steps: {'; '.join(told)} (± is one standard deviation)."
    svg = Svg(WIDTH, "How long each step took", said)
    top = heading(svg, next(iter(runs.values())).trace.badge, said)
    y = legend(svg, top, [("on time", BLUE, "", ""), ("late: somebody stalled", ORANGE, "x", "")]) + 6
    high, longest, left = 62.0, max(map(max, times.values())), 116.0
    for ranks in times:
        svg.text(8, y + high / 2, f"{ranks} ranks", bold=True)
        pitch = (WIDTH - left - 16) / len(times[ranks])
        for seconds in (0, kernel, 2 * kernel):
            if seconds <= longest:
                at = y + high - high * seconds / longest
                svg.line(left - 6, at, WIDTH - 16, at, faint=True)
                svg.text(left - 9, at + 4, f"{1e3 * seconds:g} ms", 10.5, "end")
        for k, seconds in enumerate(times[ranks]):
            colour, hatch = (ORANGE, "x") if late[ranks][k] else (BLUE, "")
            tall = high * seconds / longest
            hover = f"step {k}: {1e3 * seconds:.1f} ms"
            svg.rect(left + k * pitch, y + high - tall, pitch - 1.5, tall, colour, hatch, ON_COLOUR, "", 0.4, 0, hover)
        y += high + 22
    rows: list[Row] = [
        {"ranks": ranks, "steps": len(each), "late": sum(late[ranks]), "mean step, ms": 1e3 * sum(each) / len(each)}
        for ranks, each in times.items()
    ]
    return book.Figure(svg.title, next(iter(runs.values())).trace.badge, said, rows, svg.render(y))


def share_late(run: Any, kernel: float) -> float:
    """The share of the steps that took longer than `kernel` by half."""
    times = step_times(run)
    return sum(t > 1.5 * kernel for t in times) / len(times)


def step_times(run: Any) -> list[float]:
    """How long each step took: from when the first rank begins it to when the first rank begins the next one."""
    begun: dict[int, float] = {}
    ended = 0.0
    for span in run.trace.spans("compute"):
        begun[span.step] = min(span.start, begun.get(span.step, span.start))
        ended = max(ended, span.end)
    return [b - a for a, b in pairwise([*(begun[step] for step in sorted(begun)), ended])]


Part = tuple[str, float, float]  # what, from when to when
LOOKS = {"other": (GREY, "+"), "computing": (ORANGE, ""), "waiting": ("none", "/"), "messages": (BLUE, "x")}


def profile(run: Any) -> book.Figure:
    """What each rank did in a step that ends with an all-reduce, in the order of time.

    Its words leave it to the reader to find the rank that is late; `who_is_late` names it.
    """
    times = _times(run)
    said = "All ranks but one wait for another rank. Which one does not, and what differs in its row?"
    svg = Svg(WIDTH, "What each rank did, in the order of time", said)
    y = legend(svg, heading(svg, run.trace.badge, said), [(n, c, h, "") for n, (c, h) in LOOKS.items()]) + 6
    longest = max(b for parts in times.values() for _, _, b in parts)

    def x(seconds: float) -> float:
        return 70 + (WIDTH - 90) * seconds / longest

    for rank, parts in times.items():
        svg.text(62, y + 17, f"rank {rank}", anchor="end")
        for name, a, b in parts:
            colour, hatch = LOOKS[name]
            label = name if x(b) - x(a) > 60 else ""
            box(svg, x(a), y, x(b) - x(a), 24, label, colour, f"rank {rank}, {name}: {1e3 * (b - a):.3g} ms", hatch)
        y += 30
    ticks(svg, y + 4, x, longest)
    rows: list[Row] = [
        {"rank": rank} | {f"{name}, ms": 1e3 * _sum(parts, name) for name in LOOKS}
        | {"longest computing without a pause, ms": 1e3 * max(b - a for name, a, b in parts if name == "computing")}
        for rank, parts in times.items()
    ]  # fmt: skip
    return book.Figure(svg.title, run.trace.badge, said, rows, svg.render(y + 30))


def who_is_late(run: Any) -> str:
    """Which rank the others wait for in the step of `profile`, and for how long."""
    waits, last = _waits(_times(run)), latest(run)
    others = [str(rank) for rank in waits if rank != last]
    who = f"Rank{'s' * (len(others) > 1)} {listing(others)} wait{'s' * (len(others) == 1)}"
    least, most = (1e3 * some(w for rank, w in waits.items() if rank != last) for some in (min, max))
    long = f"{least:.3g} ms" if most - least < 0.1 else f"{least:.3g} to {most:.3g} ms"
    return f"{who} {long} for rank {last}, and rank {last} waits for nobody."


def latest(run: Any) -> int:
    """The rank that the others wait for."""
    waits = _waits(_times(run))
    return min(waits, key=waits.__getitem__)


class Diagnosis(Panel):
    """Two lists, of ranks and of causes, and what is said of the reader's choice. found: whether it is the right one,
    or an earlier choice was; on a page without a reader nobody is waited for."""

    def __init__(self, run: Any, trouble: Trouble) -> None:
        super().__init__()
        self.run, self.trouble = run, trouble
        self.choice: tuple[int | None, str | None] = None, None
        self._found = False

    @property
    def found(self) -> bool:
        return not live() or self._found or self.choice == self.trouble.hidden

    def __repr__(self) -> str:
        return (
            f"late rank: {self.choice[0]}, because: {self.choice[1]}\n{suspected(self.run, self.trouble, *self.choice)}"
        )

    def _made(self) -> Any:
        from ipywidgets import HTML, Dropdown, HBox, Layout, VBox

        look = {"style": {"description_width": "initial"}, "layout": Layout(width="220px", max_width=INSIDE)}
        ranks = Dropdown(
            options=[("-", None), *((str(r), r) for r in range(self.run.trace.world_size))],
            description="late rank",
            **look,
        )
        causes = Dropdown(
            options=[("-", None), *((cause, cause) for cause in CAUSES)], description="because of", **look
        )
        answer = HTML()

        def chosen(_: object = None) -> None:
            self.choice = ranks.value, causes.value
            self._found |= self.choice == self.trouble.hidden
            said = suspected(self.run, self.trouble, *self.choice)
            answer.value = f'<p role="status" aria-live="polite">{escape(said)}</p>'

        for control in (ranks, causes):
            control.observe(chosen, "value")
        chosen()
        return VBox([HBox([ranks, causes], layout=Layout(flex_flow="row wrap")), answer])


def diagnose(run: Any, trouble: Trouble) -> Diagnosis:
    """Which rank of this step do the others wait for, and why?"""
    return Diagnosis(run, trouble)


def suspected(run: Any, trouble: Trouble, rank: int | None, because: str | None) -> str:
    """What to say to a reader who thinks that the others wait for `rank`, `because` of one of CAUSES. None: not yet."""
    (_, cause), ranks, times = trouble.hidden, run.trace.world_size, _times(run)
    if rank is None:
        return "Choose the late rank, and then the cause."
    if rank != latest(run):
        waits = 1e3 * _waits(times)[rank]
        return f"Rank {rank} itself waits for {waits:.3g} ms, so it was on time. Look for one that does not."
    mine, other = times[rank], times[(rank + 1) % ranks]
    if because == cause:
        return f"Yes, it is rank {rank}, and you have named the cause. The next cell says what helps."
    seen = {
        "disk": "Before it computes it spends {} ms, and the next rank {} ms.".format(
            *(f"{1e3 * (parts[0][2] - parts[0][1]):.3g}" for parts in (mine, other))
        ),
        "GPU": "Its computing takes {} ms in all, and that of the next rank {} ms.".format(
            *(f"{1e3 * _sum(parts, 'computing'):.3g}" for parts in (mine, other))
        ),
        "pauses": "Once it has begun to compute, it goes on without a pause, as the next rank does.",
    }
    if because is None:
        return f"Yes, rank {rank} waits for nobody. Now the cause."
    return f"The rank is right, but {because!r} does not explain its row. {seen[because]}"


def _times(run: Any) -> dict[int, list[Part]]:
    return {rank: _parts(run.trace, rank) for rank in range(run.trace.world_size)}


def _waits(times: Mapping[int, list[Part]]) -> dict[int, float]:
    return {rank: _sum(parts, "waiting") for rank, parts in times.items()}


def _sum(parts: list[Part], name: str) -> float:
    return sum(b - a for what, a, b in parts if what == name)


def _parts(trace: Any, rank: int) -> list[Part]:
    """What it did from when to when, in seconds since the first rank began. It waits until all have called the sum."""
    calls = [c for c in trace.collectives() if not c.nested]
    mine = next(c for c in calls if c.rank == rank)
    names = {"other": "other", "compute": "computing"}
    spans = sorted((s.start, s.end, s.rank, names[s.name]) for what in names for s in trace.spans(what))
    begun, all_there = spans[0][0], max(c.start for c in calls)
    parts: list[Part] = []
    for start, end, who, name in spans:
        if who != rank:
            continue
        if parts and parts[-1][0] == name and start - begun - parts[-1][2] < 1e-9:  # a kernel after a kernel
            parts[-1] = name, parts[-1][1], end - begun
        else:
            parts.append((name, start - begun, end - begun))
    waits = ("waiting", parts[-1][2], all_there - begun)
    return [*parts, *([waits] if waits[2] - waits[1] > 1e-9 else []), ("messages", all_there - begun, mine.end - begun)]
