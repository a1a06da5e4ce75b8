"""A schedule as a plotly figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from labkit.book.drawing.figure import axis, plotly_spec
from labkit.book.drawing.style import ON_COLOUR
from labkit.book.drawing.svg import text_width
from labkit.book.drawing.units import seconds_unit
from labkit.book.timelines.schedule_looks import colour, hatch

if TYPE_CHECKING:
    from labkit.book.timelines.schedule_runs import Run
    from labkit.book.timelines.schedules import Box, Scene

SIZE = 11  # of the text in boxes
NARROW_PLOT = 740.0  # pixels that the drawing has in a narrow notebook


def spec(scene: Scene, title: str, badge: str, names: Mapping[str, str]) -> dict[str, Any]:
    """One bar trace per kind, so that the legend switches kinds on and off."""
    unit, name = seconds_unit(scene.window[1]) if scene.seconds else (1.0, "units")
    row = {rank: index for index, rank in enumerate(scene.ranks)}
    thin = (scene.window[1] - scene.window[0]) / 240  # an outline would be most of a narrower box
    data: list[dict[str, Any]] = []
    for kind in scene.kinds:
        boxes = [b for b in scene.boxes if b.kind == kind]
        runs = [run for run in scene.runs if run.kind == kind]
        mine: Sequence[Box | Run] = boxes or runs
        fills = [colour(kind, b.chunk, scene.chunks) for b in boxes] if scene.chunks > 1 and boxes else colour(kind)
        tall = 0.9 if boxes else [_tidy(0.9 * run.share) for run in runs]
        when = [f"rank {b.rank}, {scene.time(b.start)} to {scene.time(b.end)}" for b in mine]
        data.append({
            "type": "bar", "orientation": "h", "name": names[kind],
            "base": [_tidy(b.start / unit) for b in mine], "x": [_tidy((b.end - b.start) / unit) for b in mine],
            "y": [row[b.rank] + 0.5 for b in boxes] or [_tidy(row[r.rank] + 0.95 - 0.45 * r.share) for r in runs],
            "width": tall,
            "hovertext": [f"{b.label}: {text}" for b, text in zip(boxes, when, strict=False)] or
                         [f"{names[kind]}: {text}, computing for {100 * run.share:.0f} % of it"
                          for run, text in zip(runs, when, strict=False)],
            "hoverinfo": "text",
            "text": [_fitting(scene, b) for b in boxes],
            "textposition": "inside", "insidetextanchor": "middle", "textangle": 0, "constraintext": "none",
            "textfont": {"color": ON_COLOUR, "size": SIZE},
            "marker": {
                "color": fills,
                "line": {"width": [0.5 if b.end - b.start > thin else 0 for b in mine], "color": ON_COLOUR},
                # A list of colours goes where `fillmode` says; one colour where it is asked to.
                "pattern": {"shape": hatch(kind), "size": 7, "solidity": 0.08}
                | ({"fillmode": "overlay"} if isinstance(fills, list) else {"bgcolor": fills, "fgcolor": ON_COLOUR}),
            },
        })  # fmt: skip
    count = len(scene.ranks)
    every = max(1, -(-count // 32))  # names of ranks do not overlap
    layout: dict[str, Any] = {
        "barmode": "overlay", "uniformtext": {"minsize": 8, "mode": "hide"}, "hovermode": "closest",
        "xaxis": axis(f"time ({name})", range=[_tidy(t / unit) for t in scene.window]),
        "yaxis": axis(range=[count, 0], tickmode="array", showgrid=False,
                      tickvals=[i + 0.5 for i in range(0, count, every)],
                      ticktext=[f"rank {r}" for r in scene.ranks[::every]]),
    }  # fmt: skip
    return plotly_spec(title, badge, data, int(scene.row_height * count), **layout)


def _fitting(scene: Scene, box: Box) -> str:
    """As much of a box's label as fits into it: stage, letter and microbatch, without the stage, the microbatch."""
    room = (box.end - box.start) / (scene.window[1] - scene.window[0]) * NARROW_PLOT
    short = f"{box.kind}{box.microbatch}"
    texts = [*([box.label] if scene.chunks > 1 else []), short, str(box.microbatch)]
    return next((text for text in texts if text_width(text, SIZE) <= room), "")


def _tidy(value: float) -> float:
    """Six decimals of the axis' unit."""
    return round(float(value), 6)
