"""The picture of a fault-tolerant run: throughput, loss and membership over one axis of time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from labkit.book.drawing.figure import WIDTH, heading, legend
from labkit.book.drawing.line_chart import _range, _ticks
from labkit.book.drawing.style import BLUE, GREEN, INK, ORANGE, RED
from labkit.book.drawing.svg import Svg, number
from labkit.book.drawing.units import short
from labkit.book.fault_tolerant.story import TRAINS, ZEROS, Mark, Story, Told

LEFT, RIGHT = 84.0, WIDTH - 16.0
BAND, LANE, GAP = 84.0, 20.0, 34.0  # heights of a band, of a replica's lane, and between two bands
MARK = 14.0  # width of a mark


def picture(story: Story, title: str, badge: str, said: str) -> str:
    """SVG. Three bands: samples a second, the loss, a lane for each replica; standstills run through all of them."""
    svg = Svg(WIDTH, title, said)
    top = heading(svg, badge, said) + 6
    top = legend(svg, top, [("trains", BLUE, "", ""), ("gives zeros", ORANGE, "/", ""), ("is away", "none", "", "2 3"),
                            ("all stand still", "none", ".", "")])  # fmt: skip
    svg.marker(470, top - 17, "x", RED, 5)
    svg.text(482, top - 12, "a rank is lost", 11.5)
    svg.marker(590, top - 17, "triangle-up", GREEN, 5)
    svg.text(602, top - 12, "started again", 11.5)
    if story.lost:
        top = legend(svg, top, [("was trained, and is lost with all who had it", "none", "\\", "")])
    rate, loss, lanes = top + 16, top + 16 + BAND + GAP, top + 16 + 2 * (BAND + GAP)
    bottom = lanes + LANE * story.replicas
    begin = min(s.at for s in [*story.steps, *story.lost]) - (story.usual or 0.0) if story.steps else 0.0
    end = max([story.steps[-1].at if story.steps else 1.0, begin + 1e-3] + ([] if story.over else [story.now]))

    def across(at: float) -> float:
        return LEFT + (min(max(at, begin), end) - begin) / (end - begin) * (RIGHT - LEFT)

    for a, b in story.stills():
        svg.rect(across(a), rate, across(b) - across(a), bottom - rate, fill="none", hatch=".", stroke="none",
                 hover=f"all stand still for {b - a:.2f} s")  # fmt: skip
    _band(svg, rate, "samples a second", across, _rates(story.steps), _rates(story.lost), GREEN, least=0.0)
    _band(svg, loss, "loss", across, _losses(story.steps), _losses(story.lost), RED)
    svg.text(8, lanes - 8, "replica", 11.5)
    for r in range(story.replicas):
        _lane(svg, story, r, lanes + LANE * r, across)
    for m, x in _side_by_side([m for m in story.marks if begin <= m.at <= end], across):
        _mark(svg, m.kind, x, lanes + LANE * m.replica, f"{m.at:.2f} s: {m.text}")
    for at in _ticks(begin, end, 8):
        svg.line(across(at), rate, across(at), bottom, faint=True)
        svg.text(across(at), bottom + 16, short(at), 11, "middle")
    svg.text((LEFT + RIGHT) / 2, bottom + 34, "seconds since the run began", 11.5, "middle")
    return svg.render(bottom + 42)


Points = Sequence[tuple[float, float]]


def _rates(steps: Sequence[Told]) -> Points:
    found = [(s.at - (s.seconds or 0.0), s.at, s.rate) for s in steps if s.rate is not None]
    return [p for a, b, r in found for p in ((a, r), (b, r))]


def _losses(steps: Sequence[Told]) -> Points:
    return [(s.at, s.loss) for s in steps if s.loss is not None]


def _band(
    svg: Svg, top: float, name: str, across: Callable[[float], float], points: Points, gone: Points, colour: str,
    least: float | None = None,
) -> None:  # fmt: skip
    """A line over time, with an axis of its own; dashed, what is lost."""
    svg.text(8, top - 8, name, 11.5)
    if not points:
        return
    low, high = _range([y for _, y in [*points, *gone]] + ([] if least is None else [least]))

    def up(y: float) -> float:
        return top + BAND - (y - low) / (high - low) * BAND

    for y in _ticks(low, high, 4):
        svg.line(LEFT, up(y), RIGHT, up(y), faint=True)
        svg.text(LEFT - 6, up(y) + 4, short(y), 11, "end")
    for line, dash in ((gone, "4 3"), (points, "")):
        if line:
            drawn = "M" + " L".join(f"{number(across(x))} {number(up(y))}" for x, y in line)
            svg.path(drawn, colour=INK if dash else colour, width=1.6 if dash else 2.2, dash=dash)


def _lane(svg: Svg, story: Story, replica: int, y: float, across: Callable[[float], float]) -> None:
    """What one replica did: a box for each stretch of steps."""
    svg.text(LEFT - 6, y + 14, str(replica), 11.5, "end")
    for role, first, last in story.lost_phases(replica):
        x = across(first.at - (first.seconds or story.usual or 0.0))
        if role == TRAINS:
            svg.rect(x, y + 2, across(last.at) - x, LANE - 4, hatch="\\",
                     hover=f"replica {replica} trained steps {first.step} to {last.step}, which are lost")  # fmt: skip
    for role, first, last in story.phases(replica):
        begin = first.at - (first.seconds or story.usual or 0.0)
        said = f"replica {replica} {role}: steps {first.step} to {last.step}"
        if role not in (TRAINS, ZEROS):
            svg.rect(across(begin), y + 2, across(last.at) - across(begin), LANE - 4, dash="2 3", hover=said)
            continue
        fill, hatch = (BLUE, "") if role == TRAINS else (ORANGE, "/")
        for a, b in _moving(story, begin, last.at):
            svg.rect(across(a), y + 2, across(b) - across(a), LANE - 4, fill=fill, hatch=hatch, hover=said)


def _moving(story: Story, begin: float, end: float) -> list[tuple[float, float]]:
    """What standstills leave of the time from `begin` to `end`: each ends with a usual step, which is trained."""
    found = []
    for a, b in story.stills():
        if begin < b and a < end:
            if a > begin:
                found.append((begin, a))
            begin = min(max(begin, b - (story.usual or 0.0)), end)
    return [*found, (begin, end)]


def _side_by_side(marks: Sequence[Mark], across: Callable[[float], float]) -> list[tuple[Mark, float]]:
    """Each mark and where it is drawn: a little to the right of its moment where it would cover the one before it."""
    found: list[tuple[Mark, float]] = []
    last: dict[int, float] = {}
    for m in marks:
        last[m.replica] = x = max(across(m.at), last.get(m.replica, -MARK) + MARK)
        found.append((m, x))
    return found


def _mark(svg: Svg, kind: str, x: float, y: float, said: str) -> None:
    """A cross where a replica was lost, a triangle where it was started again."""
    shape, fill = ("x", RED) if kind == "lost" else ("triangle-up", GREEN)
    svg.marker(x, y + LANE / 2, shape, fill, 6)
    svg.rect(x - 6, y, 12, LANE, stroke="none", hover=said)
