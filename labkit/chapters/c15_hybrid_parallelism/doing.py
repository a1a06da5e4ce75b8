"""What each rank does in a step: it computes, or waits for messages of one axis, or does nothing; and its picture."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from labkit import book
from labkit.book.drawing.figure import WIDTH, heading
from labkit.book.drawing.style import ON_COLOUR
from labkit.book.drawing.svg import Svg, text_width
from labkit.chapters.c15_hybrid_parallelism import small
from labkit.chapters.c15_hybrid_parallelism.drawings import PARTS
from labkit.wire.recording.breakdown import TICK, Interval, length, subtract, union

KINDS = ("computing", "tensor", "context", "pipeline", "data", "numbers")  # of one moment, the first that is true
PASS = re.compile(r"\d+([FB])(\d+)")  # such as 2F1: the forward pass of microbatch 1 in stage 2
LEFT, ROW = 62.0, 34.0  # pixels: left of the bands, and from one to the next


@dataclass(frozen=True)
class Rank:
    """A rank in a step. does: stretches of time by kind, no two at once. beneath: messages on the way meanwhile."""

    does: dict[str, list[Interval]]
    beneath: dict[str, list[Interval]]

    def seconds(self, kind: str) -> float:
        """Of one kind."""
        return length(self.does.get(kind, []))


def of_ranks(run: Any, step: int = 2) -> list[Rank]:
    """By rank, what it does in a step. A message lasts until both sides have it, so waiting for a partner is in it."""
    trace, size = run.trace, run.trace.world_size
    found: list[dict[str, list[Interval]]] = [{kind: [] for kind in KINDS} for _ in range(size)]
    moving: list[dict[str, list[Interval]]] = [{kind: [] for kind in KINDS} for _ in range(size)]
    for s in trace.spans():
        if s.step == step and (s.name == "compute" or s.attrs.get("kind") == "compute"):
            found[s.rank]["computing"].append((s.start, s.end))
    for m, axis in small.messages(run, step):
        found[m.src][axis].append((m.start, m.end))
        moving[m.src][axis].append((m.start, m.end))
    for m, axis in small.messages(run, step, received=True):
        sent = trace.sent_at.get((m.src, m.dst, m.group, m.lane, m.seq), m.start)
        found[m.dst][axis].append((m.start, m.end))
        moving[m.dst][axis].append((min(max(m.start, sent), m.end), m.end))
    ranks = []
    for one, moves in zip(found, moving, strict=True):
        does: dict[str, list[Interval]] = {}
        before: list[Interval] = []
        for kind in KINDS:
            mine = union(one[kind])
            does[kind] = subtract(mine, before)
            before = union([*before, *mine])
        idle = subtract([(-1.0, trace.duration + 1)], does["computing"])
        ranks.append(Rank(does, {axis: subtract(union(moves[axis]), idle) for axis in KINDS[1:]}))
    return ranks


def _means(ranks: Sequence[Rank]) -> dict[str, float]:
    return {kind: sum(one.seconds(kind) for one in ranks) / len(ranks) for kind in KINDS}


def shares(run: Any, step: int = 2) -> dict[str, float]:
    """Seconds of a step by kind, on average over all ranks; "idle" is what is left of it."""
    ranks = of_ranks(run, step)
    told = _means(ranks)
    told["data"] += told.pop("numbers")  # the loss and the norm of the gradient: numbers of all ranks
    idle = small.seconds(run, step) - sum(told.values())
    return told | {"idle": idle if idle > TICK else 0.0}


def bands(run: Any, shown: Sequence[int], title: str, step: int = 2) -> book.Figure:
    """A band for each of some ranks, and below it a thin one: the messages that travel while the rank computes."""
    begin, end = run.trace.during_step(step)
    ranks, mean = of_ranks(run, step), shares(run, step)
    parts = {kind: f"{s / (end - begin):.0%}" for kind, s in _means(ranks).items() if kind in WHOSE}
    waits = [f"{part} for {WHOSE[kind]}" for kind, part in parts.items() if part != "0%"]
    said = f"On average a rank computes for {mean['computing'] / (end - begin):.0%} of the step"
    said += f", and waits {', '.join(waits[:-1])}{' and ' if waits[1:] else ''}{waits[-1]}" if waits else ""
    said += ". Time that messages are on the way counts as waiting." if waits else "."
    passes: dict[int, list[Any]] = {}  # a pipeline says when it begins and ends a pass
    for s in run.trace.spans():
        if s.step == step and PASS.fullmatch(s.name):
            passes.setdefault(s.rank, []).append(s)
    svg = Svg(WIDTH, title, said)
    top, x = heading(svg, "emulated", said), 8.0
    present = [kind for kind in KINDS if any(one.seconds(kind) > 0 for one in ranks)]
    for kind in present:
        svg.rect(x, top, 16, 11, PARTS[kind].colour, PARTS[kind].hatch, ON_COLOUR, stroke_width=0.7)
        svg.text(x + 21, top + 10, LEGEND.get(kind, kind), 11)
        x += 36 + text_width(LEGEND.get(kind, kind), 11)
    top += 24
    scale = (WIDTH - LEFT - 12) / (end - begin)
    for n, rank in enumerate(shown):
        y = top + ROW * n
        svg.text(LEFT - 8, y + 15, f"rank {rank}", 11.5, "end")
        svg.rect(LEFT, y, (end - begin) * scale, 20, stroke_width=0.5)
        for kind in present:
            look = PARTS[kind]
            for a, b in ranks[rank].does[kind]:
                wide = (b - a) * scale
                svg.rect(LEFT + (a - begin) * scale, y, wide, 20, look.colour, look.hatch, ON_COLOUR,
                         stroke_width=0.3 if wide > 4 else 0, hover=f"{kind}: {1e3 * (b - a):.3g} ms")  # fmt: skip
            for a, b in ranks[rank].beneath.get(kind, []):
                svg.rect(LEFT + (a - begin) * scale, y + 22, (b - a) * scale, 5, look.colour, "", ON_COLOUR,
                         stroke_width=0.3, hover=f"{kind}, while it computes: {1e3 * (b - a):.3g} ms")  # fmt: skip
        for s in passes.get(rank, []):
            middle, name = LEFT + ((s.start + s.end) / 2 - begin) * scale, PASS.sub(r"\1\2", s.name)
            if (s.end - s.start) * scale > 17:
                svg.rect(middle - 8, y + 3, 16, 14, "#ffffff", "", ON_COLOUR, stroke_width=0.5, radius=3)
                svg.text(middle, y + 13.5, name, 9, "middle", True, on_colour=True)
    bottom = top + ROW * len(shown)
    for k in range(6):
        at = LEFT + (end - begin) * scale * k / 5
        svg.line(at, top - 4, at, bottom - 4, faint=True)
        ms, place = 1e3 * (end - begin) * k / 5, {0: "start", 5: "end"}.get(k, "middle")
        svg.text(at, bottom + 10, f"{ms:,.0f}" if ms >= 100 else f"{ms:.3g}", 10.5, place)
    svg.text(WIDTH - 12, bottom + 25, "time (ms)", 10.5, "end")
    thin = THIN if any(any(ranks[r].beneath.values()) for r in shown) else ""
    svg.text(LEFT, bottom + 25, ("White: idle. " if mean["idle"] > 0.002 * (end - begin) else "") + thin, 10.5)
    if passes:
        svg.text(LEFT, bottom + 40, "F0, B0: forward and backward of the first microbatch.", 10.5)
    rows = [
        {"rank": r, **{f"{COLUMNS.get(kind, kind)} (ms)": round(1e3 * ranks[r].seconds(kind), 2) for kind in present},
         "hidden (ms)": round(1e3 * sum(map(length, ranks[r].beneath.values())), 2)}
        for r in shown
    ]  # fmt: skip
    return book.Figure(title, "emulated", said, list(rows), svg=svg.render(bottom + 47))


THIN = "Thin, below a band: messages on the way while the rank computes."
WHOSE = {"tensor": "messages of tensor parallelism", "context": "messages of context parallelism",
         "pipeline": "its pipeline (bubble and messages)", "data": "messages of data parallelism",
         "numbers": "the loss and the norm"}  # fmt: skip
COLUMNS = {"numbers": "loss and norm"}  # in the table
LEGEND = {"tensor": "waits for tensor", "context": "waits for context", "pipeline": "waits for its pipeline",
          "data": "waits for gradients", "numbers": "waits for loss and norm"}  # fmt: skip
