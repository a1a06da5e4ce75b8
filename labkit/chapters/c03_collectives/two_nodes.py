"""Section 7 of chapter 3: the same all-reduce on two nodes, flat and hierarchical, and what crosses between them."""

from __future__ import annotations

import math
from typing import Any

from labkit import book, cost
from labkit.book.drawing.figure import WIDTH, heading
from labkit.book.drawing.style import ORANGE
from labkit.book.drawing.svg import Svg, number, text_width
from labkit.book.drawing.tables import Row
from labkit.book.drawing.units import plural
from labkit.cost.units import format_bytes, format_seconds

Between = dict[tuple[int, int], int]  # (from rank, to rank) -> bytes
ROW, RADIUS, SIDE = 50, 12, 66  # pixels: from rank to rank, of a rank, and the width of a node
MOST = 8  # ranks of a node in the picture


def sent_by(trace: Any) -> dict[str, Between]:
    """What each algorithm of the run sent from rank to rank, with the collectives that it calls inside itself."""
    outer: dict[int, str] = {}  # rank -> the algorithm of its latest call that was not nested
    ways = []
    for call in trace.collectives():
        if not call.nested:
            outer[call.rank] = call.algorithm
        ways.append(outer[call.rank])
    sent: dict[str, Between] = {call.algorithm: {} for call in trace.calls("all_reduce")}
    for message in trace.sends:
        between = sent.get(ways[message.collective]) if message.collective >= 0 else None
        if between is not None:
            link = message.src, message.dst
            between[link] = between.get(link, 0) + int(message.nbytes)
    return sent


def leaving(between: Between, ranks_per_node: int) -> Between:
    """Only what goes from one node to another."""
    return {link: n for link, n in between.items() if link[0] // ranks_per_node != link[1] // ranks_per_node}


def total(between: Between) -> int:
    return sum(between.values())


def busiest(between: Between) -> int:
    """The most that one rank sends."""
    each: dict[int, int] = {}
    for (rank, _), nbytes in between.items():
        each[rank] = each.get(rank, 0) + nbytes
    return max(each.values(), default=0)


def gain(nbytes: float, size: int, ranks_per_node: int, fast: float, slow: float) -> float:
    """How many times faster the hierarchical way is, by the formulas; links in bytes per second, without latency."""
    links = 0, 1 / fast, ranks_per_node, 0, 1 / slow
    return float(
        cost.flat_ring_all_reduce_time(nbytes, size, *links) / cost.hierarchical_all_reduce_time(nbytes, size, *links)
    )


def times(run: Any, ranks_per_node: int) -> str:
    """How long each way took, and what left the nodes."""
    sent, told = sent_by(run.trace), []
    for call in run.trace.calls("all_reduce"):
        slow = leaving(sent[call.algorithm], ranks_per_node)
        told.append(
            f"{named(call.algorithm)} takes {format_seconds(call.seconds, 3)} ({run.trace.badge}): between the nodes "
            f"go {format_bytes(total(slow), 3)} in all, {format_bytes(busiest(slow), 3)} from the busiest rank."
        )
    return " ".join(told)


def named(way: str) -> str:
    return {"ring": "The flat ring", "hierarchical": "The hierarchical way"}[way]


def picture(run: Any, ranks_per_node: int) -> book.Figure:
    """Two nodes as boxes, once for each way; thick arrows for what goes between them, thin ones inside."""
    k, size, sent = ranks_per_node, run.trace.world_size, sent_by(run.trace)
    if size != 2 * k or k > MOST:
        slow = {named(way): leaving(between, k) for way, between in sent.items()}
        bars = {"busiest rank": busiest, "all ranks together": total}
        return book.bars(
            {name: {way: of(links) for way, links in slow.items()} for name, of in bars.items()},
            title=f"What goes between the nodes ({size // k} with {plural(k, 'rank')} each)",
        )
    most = max(n for between in sent.values() for n in leaving(between, k).values())
    sentence = (
        f"Ranks 0 to {k - 1} are the left node, the others the right one." if k > 1 else "Each node has one rank."
    )
    sentence += " Thin lines stay inside a node. Thick arrows cross, each with the bytes that its rank sends over it."
    title = "Who uses the links between the nodes"
    svg = Svg(WIDTH, title, sentence)
    top = heading(svg, "measured", sentence)
    for panel, (way, between) in enumerate(sent.items()):
        left = 14 + panel * WIDTH / 2
        svg.text(left, top + 14, named(way), 13, bold=True)
        _nodes(svg, left, top + 28, between, k, most)
    rows: list[Row] = [
        {"way": way, "from": f"rank {a}", "to": f"rank {b}", "bytes": n}
        for way, between in sent.items()
        for (a, b), n in sorted(leaving(between, k).items())
    ]
    return book.Figure(title, "measured", sentence, rows, svg.render(top + 28 + k * ROW + 22))


def _nodes(svg: Svg, left: float, top: float, between: Between, k: int, most: int) -> None:
    """Two boxes of `k` ranks, and arrows as thick as what goes over them."""
    width = WIDTH / 2 - 40
    for node in (0, 1):
        svg.rect(left + node * (width - SIDE), top, SIDE, k * ROW + 10, radius=8)

    def place(rank: int) -> tuple[float, float]:
        return left + SIDE / 2 + (rank // k) * (width - SIDE), top + 5 + (rank % k + 0.5) * ROW

    slow = leaving(between, k)
    for a, b in between:
        if (a, b) not in slow:
            _inside(svg, *place(a), *place(b), -1 if a < k else 1)
    for (a, b), nbytes in slow.items():
        _across(svg, *place(a), *place(b), 2 + 7 * nbytes / most)
    for (a, b), nbytes in slow.items():
        _label(svg, *place(a), *place(b), format_bytes(nbytes, 3))
    for rank in range(2 * k):
        x, y = place(rank)
        svg.add("circle", cx=x, cy=y, r=RADIUS, fill="#ffffff", klass="lk-line", stroke_width=1.3)
        svg.text(x, y + 4, str(rank), 12, "middle", bold=True, on_colour=True)


def _inside(svg: Svg, x: float, y1: float, _: float, y2: float, side: int) -> None:
    """A thin arc from rank to rank, on the outer side of the node."""
    bend = side * min(30.0, 8 + abs(y2 - y1) / 8)
    svg.path(f"M{number(x)} {number(y1)} Q{number(x + bend)} {number((y1 + y2) / 2)} {number(x)} {number(y2)}", width=1)


def _ends(x1: float, y1: float, x2: float, y2: float) -> tuple[float, float, float, float, float, float]:
    """Where an arrow begins and ends, a little to its right so that the way back has room; and its direction."""
    length = math.hypot(x2 - x1, y2 - y1)
    ux, uy = (x2 - x1) / length, (y2 - y1) / length
    aside, away = 7, RADIUS + 3
    return (
        x1 + away * ux - aside * uy, y1 + away * uy + aside * ux,
        x2 - away * ux - aside * uy, y2 - away * uy + aside * ux, ux, uy,
    )  # fmt: skip


def _across(svg: Svg, x1: float, y1: float, x2: float, y2: float, width: float) -> None:
    sx, sy, ex, ey, ux, uy = _ends(x1, y1, x2, y2)
    svg.line(sx, sy, ex - 10 * ux, ey - 10 * uy, width=width, colour=ORANGE)
    svg.arrow_head(ex, ey, ux, uy, 8 + width)


def _label(svg: Svg, x1: float, y1: float, x2: float, y2: float, text: str) -> None:
    """The bytes, on a plate a fifth of the way along the arrow."""
    sx, sy, ex, ey, _, _ = _ends(x1, y1, x2, y2)
    x, y, width = sx + 0.21 * (ex - sx), sy + 0.21 * (ey - sy), text_width(text, 11) + 8
    svg.rect(x - width / 2, y - 8, width, 16, fill="#ffffff", stroke="none", radius=4)
    svg.text(x, y + 4, text, 11, "middle", on_colour=True)
