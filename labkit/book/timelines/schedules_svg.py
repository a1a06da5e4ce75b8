"""A schedule as a small SVG."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from labkit.book.drawing.figure import WIDTH, heading, legend
from labkit.book.drawing.style import ON_COLOUR
from labkit.book.drawing.svg import Svg, text_width
from labkit.book.drawing.units import seconds_unit
from labkit.book.timelines.schedule_looks import colour, hatch
from labkit.book.timelines.timelines_svg import ticks

if TYPE_CHECKING:
    from labkit.book.timelines.schedules import Box, Scene

LEFT, RIGHT = 62.0, 12.0
LETTER, NUMBER = 8.5, 10.0  # font sizes in a box: its kind above, its microbatch below
MOST_HOVERS = 300


def picture(scene: Scene, title: str, badge: str, sentence: str, names: Mapping[str, str]) -> str:
    """Rows of boxes, a time axis and a legend, 760 pixels wide."""
    svg = Svg(WIDTH, title, sentence)
    y = heading(svg, badge, sentence)
    first, last = scene.window
    scale, height = (WIDTH - LEFT - RIGHT) / (last - first), scene.row_height
    lettered = height >= 24 and bool(scene.boxes) and _narrowest(scene) * scale >= text_width("F", LETTER) + 2
    items = [(names[kind], colour(kind), "" if lettered else hatch(kind), "") for kind in scene.kinds]
    top = legend(svg, y, items) + 4
    bottom = top + height * len(scene.ranks)
    for tick, text in ticks(first, last):
        svg.line(LEFT + (tick - first) * scale, top, LEFT + (tick - first) * scale, bottom, faint=True)
        svg.text(LEFT + (tick - first) * scale, bottom + 15, text, size=11, anchor="middle")
    unit = seconds_unit(last)[1] if scene.seconds else "units"
    svg.text(WIDTH - RIGHT, bottom + 30, f"time ({unit})", size=11, anchor="end")
    rows = {rank: top + index * height for index, rank in enumerate(scene.ranks)}
    named = -(10.0**6)
    for rank, row in rows.items():
        if row - named >= 12:
            svg.text(LEFT - 8, row + height / 2 + 4, f"rank {rank}", size=12 if height > 20 else 10, anchor="end")
            named = row
    gap = min(2.0, height / 8)
    hovers = len(scene.boxes) <= MOST_HOVERS
    for box in scene.boxes:
        x = LEFT + (max(box.start, first) - first) * scale
        width = (min(box.end, last) - max(box.start, first)) * scale
        svg.rect(
            x, rows[box.rank] + gap, width, height - 2 * gap, fill=colour(box.kind, box.chunk, scene.chunks),
            hatch="" if lettered or width < 2 else hatch(box.kind), stroke="none" if width < 3 else ON_COLOUR,
            stroke_width=0.6, hover=hover(scene, box) if hovers else None,
        )  # fmt: skip
        _label(svg, box, x, rows[box.rank] + gap, width, height - 2 * gap, scene.chunks, lettered)
    for run in scene.runs:
        x, width = LEFT + (run.start - first) * scale, (run.end - run.start) * scale
        tall = (height - 2 * gap) * run.share
        svg.rect(x, rows[run.rank] + height - gap - tall, width, tall, fill=colour(run.kind),
                 hatch=hatch(run.kind) if width >= 4 and tall >= 4 else "", stroke="none")  # fmt: skip
    svg.line(LEFT, bottom, WIDTH - RIGHT, bottom)
    return svg.render(bottom + 38)


def hover(scene: Scene, box: Box) -> str:
    """What stands beside a box when one points at it."""
    return f"{box.label}: rank {box.rank}, {scene.time(box.start)} to {scene.time(box.end)}"


def _narrowest(scene: Scene) -> float:
    """Width that nineteen of twenty boxes have."""
    widths = sorted(box.end - box.start for box in scene.boxes if box.end > box.start)
    return widths[len(widths) // 20] if widths else 0.0


def _label(
    svg: Svg, box: Box, x: float, y: float, width: float, height: float, chunks: int, lettered: bool
) -> None:  # fmt: skip
    """The letter (behind the stage, if a rank has several) and the microbatch, where they fit."""
    centre, number = x + width / 2, str(box.microbatch)
    if lettered:
        above = f"{box.stage}{box.kind}" if chunks > 1 else box.kind
        for text in (above, box.kind):
            if text_width(text, LETTER) + 1 <= width:
                svg.text(centre, y + 11, text, size=LETTER, anchor="middle", on_colour=True)
                break
        size = next((s for s in (NUMBER, LETTER) if text_width(number, s) + 0.6 <= width), None)
        if size is not None:
            svg.text(centre, y + height - 6, number, size=size, anchor="middle", on_colour=True)
    elif height >= 12 and text_width(number, LETTER) + 4 <= width:
        wide = text_width(number, LETTER) + 3
        fill = colour(box.kind, box.chunk, chunks)
        svg.rect(centre - wide / 2, y + height / 2 - 6, wide, 12, fill=fill, stroke="none")
        svg.text(centre, y + height / 2 + 3, number, size=LETTER, anchor="middle", on_colour=True)
