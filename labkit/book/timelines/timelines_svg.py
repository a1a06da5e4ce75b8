"""The timeline as a small SVG."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from labkit.book.drawing.boxes import Box
from labkit.book.drawing.figure import WIDTH, heading, legend
from labkit.book.drawing.style import KINDS, ON_COLOUR
from labkit.book.drawing.svg import Svg, text_width
from labkit.book.drawing.units import seconds_unit

if TYPE_CHECKING:
    from labkit.book.timelines.timelines import Scene

LEFT, RIGHT = 62.0, 12.0
THIN = 6.0  # pixels; narrower boxes have no outline
MOST_HOVERS = 150  # a tooltip for each box, unless there are very many


def picture(scene: Scene, title: str, badge: str, sentence: str, names: Mapping[str, str]) -> str:
    """Rows of boxes, arrows, a time axis and a legend, 760 pixels wide."""
    svg = Svg(WIDTH, title, sentence)
    y = heading(svg, badge, sentence)
    items = [(names[kind], *_look(kind)) for kind in scene.kinds]
    top = legend(svg, y, items) + 4
    first, last = scene.window
    scale = (WIDTH - LEFT - RIGHT) / (last - first)
    height = scene.row_height

    def place(time: float) -> float:
        return LEFT + (time - first) * scale

    rows = {rank: top + index * height for index, rank in enumerate(scene.ranks)}
    bottom = top + height * len(scene.ranks)
    for tick, text in ticks(first - scene.zero, last - scene.zero):
        x = place(tick + scene.zero)
        svg.line(x, top, x, bottom, faint=True)
        svg.text(x, bottom + 15, text, size=11, anchor="middle")
    svg.text(WIDTH - RIGHT, bottom + 30, f"time ({seconds_unit(last - scene.zero)[1]})", size=11, anchor="end")
    for rank, row in rows.items():
        svg.line(LEFT, row, WIDTH - RIGHT, row, faint=True)
        svg.text(LEFT - 8, row + height / 2 + 4, f"rank {rank}", size=12 if height > 20 else 10, anchor="end")
    svg.line(LEFT, bottom, WIDTH - RIGHT, bottom)

    boxes = scene.boxes
    hovers = len(boxes) <= MOST_HOVERS
    for box in sorted(boxes, key=lambda b: (b.lane != "collective", b.kind != "span")):  # frames below their contents
        lane_top, lane_height = scene.lanes[box.lane]
        x, width = place(box.start), (box.end - box.start) * scale
        y, tall = rows[box.rank] + lane_top * height, lane_height * height
        if box.lane != "collective":  # a frame is as tall as what it frames
            y, tall = y + tall * (1 - box.share), tall * box.share
        colour, hatch, dash = _look(box.kind)
        thin = width < THIN and box.lane != "collective"  # an outline would be most of it
        plain = width < 2 and colour != "none"
        svg.rect(
            x, y, width, tall, fill=colour, hatch="" if plain else hatch, dash="" if thin else dash,
            stroke="none" if thin else None if colour == "none" else ON_COLOUR,
            stroke_width=0.6,
            radius=3 if box.lane == "collective" else 0, hover=box.hover if hovers else None,
        )  # fmt: skip
        _label(svg, box, x, y, width, tall, scene)
    for start, src, end, dst in map(scene.arrow, scene.arrows):
        x1, y1, x2, y2 = place(start), top + src * height, place(end), top + dst * height
        svg.line(x1, y1, x2, y2, width=0.9)
        svg.arrow_head(x2, y2, x2 - x1, y2 - y1)
    return svg.render(bottom + 38)


def _look(kind: str) -> tuple[str, str, str]:
    """(fill, hatch, dash of the outline) of a box."""
    if kind == "collective":
        return "none", "", "2 2"
    if kind == "native":
        return KINDS["span"].colour, "+", ""
    look = KINDS[kind]
    return look.colour, look.hatch, "3 2" if kind == "waiting" else ""


def _label(svg: Svg, box: Box, x: float, y: float, width: float, height: float, scene: Scene) -> None:
    """The name of a box inside it, where it fits; or its first letter, if that is wanted."""
    name, begin = box.label, 6.0
    if text_width(name, 10.5) + 8 > width:
        name = name[:1] if scene.initials and box.lane == "work" else ""
        begin = (width - text_width(name, 10.5)) / 2  # in the middle
    if not name or begin < 1:
        return
    if box.lane == "collective":
        if scene.roomy:
            svg.text(x + 5, y + 12, name, size=10.5)
    elif height >= 12:
        frame = min(3.0, begin)
        wide = text_width(name, 10.5) + 2 * frame
        svg.rect(x + begin - frame, y + height / 2 - 7, wide, 14, fill=_look(box.kind)[0], stroke="none")
        svg.text(x + begin, y + height / 2 + 4, name, size=10.5, on_colour=True)


def ticks(first: float, last: float) -> list[tuple[float, str]]:
    """Five to ten round times between `first` and `last`, with their text in the unit that suits `last`."""
    unit, _ = seconds_unit(last)
    span = (last - first) / unit
    power = 10.0 ** len(str(int(span))) / 10 if span >= 1 else 10.0 ** -len(f"{1 / span:.0f}")
    step = next(power * k for k in (0.1, 0.2, 0.5, 1, 2, 5, 10) if span / (power * k) <= 9)
    count = int(first / unit / step)
    found = []
    while count * step <= last / unit * 1.000001:
        if count * step >= first / unit * 0.999999:
            found.append((count * step * unit, f"{round(count * step, 9):g}"))
        count += 1
    return found
