"""The picture of a diagnosis: operations that wait for each other, and the ranks inside each of them.

First level: a box for each operation; below it stand those that it waits for. Second level: in a box a circle for each
member, by what it has done about the operation, with an arrow to the member that it waits for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from labkit.book.drawing.figure import WIDTH, Figure, heading, legend
from labkit.book.drawing.style import BLUE, GREEN, GREY, ON_COLOUR, ORANGE
from labkit.book.drawing.svg import Svg, number, text_width, wrap
from labkit.book.drawing.tables import Row

if TYPE_CHECKING:
    from labkit.resilience.diagnose.verdict import Verdict
    from labkit.resilience.diagnose.waits import Waits

RADIUS = 15.0
APART = 62.0  # between the middles of two circles
MARGIN, WIDEST = 70.0, 240.0  # left of the boxes, for the arrows of the first level: with few of them, and at most
MOST_DRAWN = 10  # operations
TITLE, BADGE = "Who holds up the job", "measured"
# What a member has done about an operation: colour, hatch, dash of the edge. Each differs from the others in print.
LOOKS = {
    "inside": (BLUE, "", ""),
    "posted": (GREEN, ".", "6 3"),
    "absent": ("none", "", "3 2"),
    "left": (GREY, "/", ""),
    "unknown": ("none", "x", "1 3"),
}
SAID = {
    "inside": "is in it", "posted": "has asked for it", "absent": "has not joined", "left": "is through with it",
    "unknown": "is not known",
}  # fmt: skip


def diagnosis(verdict: Verdict) -> Figure:
    """The two-level wait-for graph behind a verdict; suspects are orange and have a double edge.

    Text equivalent: the verdict with its evidence, and a row for each rank of each operation.
    """
    lines = str(verdict).splitlines()
    sentence = " ".join([lines[0], *(f"{line.strip()}." for line in lines[1:3])])
    if len(lines) > 3:
        sentence += f" {len(lines) - 3} more in the text."
    waits = verdict.waits
    if waits is None or not waits.operations:
        rows: list[Row] = [{"rank": r, "suspect": "yes"} for r in verdict.suspects]
        return Figure(TITLE, BADGE, sentence, rows, svg=_ranks_only(verdict, sentence))
    order = by_depth(waits)
    return Figure(TITLE, BADGE, sentence, _rows(verdict, waits, order), svg=_picture(verdict, waits, order, sentence))


def by_depth(waits: Waits) -> list[Any]:
    """Keys of the operations as the picture numbers them, from 1: each above those that it waits for, leaves last."""
    depth: dict[Any, int] = {}

    def of(key: Any, above: tuple[Any, ...] = ()) -> int:
        if key not in depth:
            below = [e.on for e in waits.edges if e.of == key and e.on not in above]
            value = 1 + max((of(on, (*above, key)) for on in below), default=-1)
            if above:
                return value
            depth[key] = value
        return depth[key]

    for key in waits.operations:
        of(key)
    return sorted(depth, key=lambda key: (-depth[key], str(key)))


def _rows(verdict: Verdict, waits: Waits, order: Sequence[Any]) -> list[Row]:
    rows: list[Row] = []
    for n, key in enumerate(order, 1):
        op = waits.operations[key]
        on = sorted({order.index(e.on) + 1 for e in waits.edges if e.of == key})
        for rank in op.members:
            inside = sorted(peer for r, peer in waits.between if r == rank and peer in op.members)
            does = waits.reports[rank].words() if rank in waits.reports else "was not heard of"
            rows.append({
                "operation": f"{n}: {op.name}", "waits for operation": ", ".join(map(str, on)) or "-", "rank": rank,
                "it": SAID[op.status(rank)], "and": does,
                "waits for rank": ", ".join(map(str, inside)) if inside and rank in op.inside else "-",
                "suspect": "yes" if rank in verdict.suspects else "no",
            })  # fmt: skip
    return rows


def _picture(verdict: Verdict, waits: Waits, order: Sequence[Any], sentence: str) -> str:
    svg = Svg(WIDTH, TITLE, sentence)
    y = heading(svg, BADGE, sentence)
    drawn = order[-MOST_DRAWN:]
    seen = [word for word in LOOKS if any(waits.operations[k].status(r) == word
                                          for k in drawn for r in waits.operations[k].members)]  # fmt: skip
    y = legend(svg, y, [("suspect", ORANGE, "", ""), *((SAID[word], *LOOKS[word]) for word in seen)]) + 6
    if waits.edges:
        svg.text(8, y + 6, "Arrow at the left: from an operation to one that it waits for, because the rank beside it "
                 "is there.")  # fmt: skip
        y += 20
    if len(order) > len(drawn):
        svg.text(8, y + 8, f"{len(order) - len(drawn)} operations that wait for these are left out: see the table")
        y += 22
    told: dict[tuple[Any, Any], set[int]] = {}
    for edge in waits.edges:
        if edge.of in drawn and edge.on in drawn:
            told.setdefault((edge.of, edge.on), set()).add(edge.rank)
    labels = [", ".join(map(str, sorted(ranks))) for ranks in told.values()]
    ways, left = _ways(labels)
    sides: dict[Any, tuple[float, float]] = {}
    for key in drawn:
        op = waits.operations[key]
        inner = [(r, p) for r, p in waits.between if r in op.inside and p in op.members]
        y, sides[key] = _box(svg, y, order.index(key) + 1, op, inner, verdict.suspects, left)
    for (of, on), label, way in zip(told, labels, ways, strict=True):
        _outer(svg, sides[of], sides[on], label, left - way, left)
    return svg.render(y + 6)


def _ways(labels: Sequence[str]) -> tuple[list[float], float]:
    """How far from the boxes each arrow runs, with room for its label beside it; and where the boxes begin."""
    ways, at = [], 14.0
    for label in labels:
        ways.append(at)
        at += text_width(label, 11) + 9
        if at > WIDEST - 30:  # too many for the page: begin again, and let them cross
            at = 18.0
    widest = max((way + text_width(label, 11) + 8 for way, label in zip(ways, labels, strict=True)), default=0.0)
    return ways, min(WIDEST, max(MARGIN, widest))


def _box(
    svg: Svg, y: float, n: int, op: Any, inner: Sequence[tuple[int, int]], suspects: Sequence[int], left: float
) -> tuple[float, tuple[float, float]]:  # fmt: skip
    """One operation; returns the y below it, and the top and the middle of its left side."""
    width = WIDTH - left - 10
    words = wrap(f"{n}: {op.name}", width - 20, 12)
    columns = max(1, int((width - 2 * RADIUS) // APART))
    lines = -(-len(op.members) // columns)
    arcs = 16.0 if inner else 0.0
    tall = 12 + 15 * len(words) + lines * (2 * RADIUS + 14 + arcs) + 4
    svg.rect(left, y, width, tall, radius=6)
    for k, line in enumerate(words):
        svg.text(left + 10, y + 17 + 15 * k, line, size=12, bold=k == 0)
    where = {}
    for k, rank in enumerate(op.members):
        row, column = divmod(k, columns)
        cy = y + 12 + 15 * len(words) + row * (2 * RADIUS + 14 + arcs) + arcs + RADIUS + 6
        where[rank] = left + 14 + RADIUS + column * APART, cy
    for rank, peer in inner:
        _inner(svg, where[rank], where[peer])
    for rank, (x, cy) in where.items():
        _circle(svg, x, cy, rank, op.status(rank), rank in suspects)
    return y + tall + 12, (y + 14, y + tall / 2)


def _circle(svg: Svg, x: float, y: float, rank: int, status: str, suspect: bool) -> None:
    colour, hatch, dash = LOOKS[status]
    fill = ORANGE if suspect else svg.hatched(colour, hatch) if hatch else colour
    edge: Mapping[str, Any] = {"stroke": ON_COLOUR} if fill != "none" else {"klass": "lk-line"}
    svg.add("circle", hover=f"rank {rank} {SAID[status]}", cx=x, cy=y, r=RADIUS, fill=fill, stroke_width=1.3,
            stroke_dasharray=dash, **edge)  # fmt: skip
    if suspect:
        svg.add("circle", cx=x, cy=y, r=RADIUS - 3.5, fill="none", stroke=ON_COLOUR, stroke_width=0.8)
    svg.text(x, y + 4, str(rank), size=12, anchor="middle", bold=True, on_colour=fill != "none")


def _inner(svg: Svg, start: tuple[float, float], end: tuple[float, float]) -> None:
    """An arc over the circles, from a member to the one that it waits for."""
    (x1, y1), (x2, y2) = start, end
    top = min(y1, y2) - RADIUS - 18
    svg.path(f"M{number(x1)} {number(y1 - RADIUS)} Q{number((x1 + x2) / 2)} {number(top)} {number(x2)} "
             f"{number(y2 - RADIUS - 1)}", width=1.3)  # fmt: skip
    svg.arrow_head(x2, y2 - RADIUS - 1, (x2 - x1) / 2, y2 - RADIUS - top, 7)


def _outer(
    svg: Svg, of: tuple[float, float], on: tuple[float, float], text: str, x: float, left: float
) -> None:  # fmt: skip
    """An arrow left of the boxes, from an operation to one that it waits for, with the ranks that are there."""
    y1, y2 = of[1], on[0]
    svg.path(f"M{number(left)} {number(y1)} H{number(x)} V{number(y2)} H{number(left - 2)}", width=1.3)
    svg.arrow_head(left - 1, y2, 1, 0, 8)
    svg.text(max(2.0, x - 4 - text_width(text, 11)), (y1 + y2) / 2 + 4, text, size=11)


def _ranks_only(verdict: Verdict, sentence: str) -> str:
    svg = Svg(WIDTH, TITLE, sentence)
    y = heading(svg, BADGE, sentence)
    for n, rank in enumerate(verdict.suspects):
        _circle(svg, 14 + RADIUS + n * APART, y + RADIUS + 4, rank, "inside", True)
    return svg.render(y + 2 * RADIUS + 12)
