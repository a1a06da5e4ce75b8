"""What links cost that are slower than others: a detour over a node, a shared expert meanwhile, experts in parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from labkit import book, cost
from labkit.book.drawing.figure import WIDTH, heading
from labkit.book.drawing.style import BLUE, GREEN, ON_COLOUR, ORANGE
from labkit.book.drawing.svg import Svg
from labkit.book.drawing.tables import Row
from labkit.chapters.c12_experts.travel import ON_NODE
from labkit.cost.units import US, format_bytes, format_seconds


def crossing(run: Any) -> book.Figure:
    """Which ranks send to which, inside two nodes and between them."""
    k, size = ON_NODE, run.trace.world_size
    sends = [m for m in run.trace.sends if m.step == 1]
    across = [m for m in sends if m.src // k != m.dst // k]
    partners = max(len({m.dst for m in across if m.src == r}) for r in range(size))
    said = (
        f"A rank talks to {partners} rank{'s' * (partners != 1)} of other nodes. Between the nodes go {len(across)} "
        f"messages in 4 exchanges, with {format_bytes(sum(m.nbytes for m in across), 3)}. There and back takes "
        f"{format_seconds(run.trace.duration, 3)}."
    )
    svg = Svg(WIDTH, "Who sends to whom", said)
    top = max(heading(svg, "emulated", said), 56.0) + 12
    wide, high = (WIDTH - 20) * k / size, 46.0
    at = {r: (10 + wide * (r // k + 0.5), top + 20 + high * (r % k + 0.5)) for r in range(size)}
    for node in range(size // k):
        svg.rect(10 + node * wide + 6, top, wide - 12, high * k + 28, dash="5 4", radius=6)
        svg.text(10 + node * wide + 14, top + 15, f"node {node}", 10.5)
    for one, other in sorted({(min(m.src, m.dst), max(m.src, m.dst)) for m in sends}):
        (x, y), (u, v) = at[one], at[other]
        if one // k != other // k:
            svg.line(x, y, u, v, width=1.8, colour=ORANGE)
        else:
            bow = 56 + 28 * (other - one)
            svg.add("path", d=f"M{x} {y} Q{x - bow} {(y + v) / 2} {u} {v}", fill="none", stroke=BLUE, stroke_width=1.6,
                    stroke_dasharray="4 3")  # fmt: skip
    for r, (x, y) in at.items():
        svg.rect(x - 26, y - 11, 52, 22, "#ffffff", stroke=ON_COLOUR, radius=4)
        svg.text(x, y + 4, f"rank {r}", 10.5, "middle", on_colour=True)
    svg.text(10, top + high * k + 46, "Solid: messages between two nodes. Dashed: inside a node.", 10.5)
    rows = [
        {"rank": r, "to other nodes": sum(m.src == r for m in across), "inside its node":
         sum(m.src == r for m in sends) - sum(m.src == r for m in across)} for r in range(size)
    ]  # fmt: skip
    return book.Figure("Who sends to whom", "emulated", said, list(rows), svg.render(top + high * k + 56))


def shared_expert(run: Any, overlap: bool) -> book.Figure:
    """For each rank what travels, and below it what computes; the shared expert works while rows travel, or later."""
    boxes, took = _boxes(run), format_seconds(run.trace.duration, 3)
    ends = {(rank, name): end for rank, _, name, _, end in boxes}
    late = [rank for rank in range(run.trace.world_size) if ends[rank, "shared expert"] > ends[rank, "rows"] + 1e-9]
    if not overlap:
        said = f"The shared expert works when the results are back. The layer takes {took}."
    elif late:
        said = f"When the rows have arrived, the shared expert still works. The layer takes {took}."
    else:
        said = f"When the rows have arrived, the shared expert has finished. The layer takes {took}."
    rows: list[Row] = [
        {"rank": rank, "works at": name, "from (µs)": round(start / US), "to (µs)": round(end / US)}
        for rank, _, name, start, end in boxes
    ]
    return book.Figure("A shared expert", "emulated", said, rows, _busy(run, boxes, said))


def free(run: Any) -> float:
    """For how many µs rows travel at every rank, as in the table: so long a shared expert makes the layer no slower."""
    return min(round(end / US) - round(start / US) for _, _, name, start, end in _boxes(run) if name == "rows")


Box = tuple[int, int, str, float, float]  # rank, lane (0: travels, 1: computes), name, start and end


def _boxes(run: Any) -> list[Box]:
    boxes: list[Box] = []
    for rank in range(run.trace.world_size):
        calls = [c for c in run.trace.collectives() if c.rank == rank]
        counts, (rows, results) = [c for c in calls if c.dtype == "int64"], [c for c in calls if c.dtype != "int64"]
        named = (("counts", counts[0].start, counts[-1].end), ("rows", rows.start, rows.end),
                 ("results", results.start, results.end))  # fmt: skip
        boxes += [(rank, 0, name, start, end) for name, start, end in named]
        spans = [s for s in run.trace.spans() if s.rank == rank]
        works = [s for s in spans if s.name == "experts"]
        boxes += [(rank, 1, "experts", s.start, s.end) for s in works]
        boxes += [(rank, 1, "shared expert", s.start, s.end) for s in spans if s.name == "compute"
                  and all(s.start != w.start for w in works)]  # fmt: skip
    return boxes


def _busy(run: Any, boxes: Sequence[Box], words: str) -> str:
    svg = Svg(WIDTH, "A shared expert", words)
    top, left, size = max(heading(svg, "emulated", words), 56.0) + 8, 62.0, run.trace.world_size
    longest = max(run.trace.duration, 1200 * US)  # one axis for all settings of four ranks
    unit = (WIDTH - left - 10) / longest
    for rank, lane, name, start, end in boxes:
        x, y, wide = left + start * unit, top + 48 * rank + 21 * lane, (end - start) * unit
        svg.rect(x, y, wide, 18, GREEN if name == "shared expert" else ORANGE if lane else BLUE, stroke=ON_COLOUR,
                 stroke_width=0.7)  # fmt: skip
        if wide > 6 * len(name):
            svg.text(x + wide / 2, y + 13, name, 10, "middle", on_colour=True)
    for rank in range(size):
        svg.text(8, top + 48 * rank + 13, f"rank {rank}", 11)
    low = top + 48 * size + 2
    for k in range(5):
        at = left + (WIDTH - left - 10) * k / 4
        svg.line(at, low - 6, at, low)
        svg.text(at, low + 12, format_seconds(longest * k / 4, 2) if k else "0", 10, "start" if not k else "end")
    note = "Upper lane of a rank: what travels. Lower lane, green: the shared expert. Orange: the experts."
    svg.text(8, low + 30, note, 10.5)
    return svg.render(low + 40)


def narrow(shapes: Mapping[str, tuple[int, int]], rows: int, degrees: Sequence[int] = (1, 2, 4, 8)) -> book.Figure:
    """name -> (width, hidden): operations a byte of an expert's first product when its columns are cut in t parts."""
    done = {name: [cost.product_intensity(rows, d, h // t) for t in degrees] for name, (d, h) in shapes.items()}
    needs, title = cost.machine_balance(), "An expert cut by tensor parallelism"
    told = ", and ".join(f"{found[-1]:.0f} operations a byte in {name}" for name, found in done.items())
    said = (
        f"Cut in {degrees[-1]} parts and with {rows} rows, an expert's first product does {told}. An H100 needs "
        f"{needs:.0f} to be busy."
    )
    svg = Svg(WIDTH, title, said)
    top, left, high, room = max(heading(svg, "simulated", said), 72.0) + 10, 20.0, 170.0, (WIDTH - 170) / len(shapes)
    unit = high / max(needs, *(n for found in done.values() for n in found))
    for k, (name, found) in enumerate(done.items()):
        wide = (room - 30) / len(degrees)
        for n, (t, value) in enumerate(zip(degrees, found, strict=True)):
            x, tall = left + k * room + n * wide, value * unit
            svg.rect(x, top + high - tall, wide - 10, tall, (BLUE, ORANGE)[k % 2], "/" if k % 2 else "", ON_COLOUR)
            svg.rect(x + wide / 2 - 19, top + high - 22, 28, 16, "#ffffff", radius=3)
            svg.text(x + wide / 2 - 5, top + high - 10, f"{value:.0f}", 10.5, "middle", on_colour=True)
            svg.text(x + wide / 2 - 5, top + high + 15, f"t = {t}", 10.5, "middle")
        svg.text(left + k * room, top + high + 34, name, 11.5, bold=True)
    svg.line(left, top + high, WIDTH - 150, top + high)
    svg.line(left, top + high - needs * unit, WIDTH - 140, top + high - needs * unit, width=2.2, dash="6 3")
    svg.text(WIDTH - 136, top + high - needs * unit + 4, f"an H100 needs {needs:.0f}", 11, bold=True)
    svg.text(left, top + high + 54, "A bar: operations for each byte, of an expert that is cut in t parts.", 10.5)
    table: list[Row] = [
        {"parts t": t, **{name: found[n] for name, found in done.items()}, "an H100 needs": needs}
        for n, t in enumerate(degrees)
    ]
    return book.Figure(title, "simulated", said, table, svg.render(top + high + 64))
