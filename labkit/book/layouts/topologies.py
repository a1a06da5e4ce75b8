"""A machine, level by level: what joins the parts of one unit, and which axes of a mesh need those wires.

One row of boxes for each level, the outermost at the top; the first box of a row is opened in the row below it. With a
mesh, a strip under the boxes shows where the first group of an axis lies: the number in a cell says how many of its
ranks are in that part. An axis has a strip only where its groups need the wires between the parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.book.drawing.figure import WIDTH, Figure, heading
from labkit.book.drawing.style import ON_COLOUR, series
from labkit.book.drawing.svg import Svg, text_width, wrap
from labkit.book.drawing.tables import Row
from labkit.book.drawing.units import listing, plural, seconds_text, short
from labkit.cost.topology import Axis, Level, Topology, place
from labkit.cost.units import US, format_bandwidth

MOST_BOXES = 16
LEFT, BOX, STRIP, GAP = 132.0, 24.0, 18.0, 14.0
KEY = "Each row opens the first box of the row above. In a strip: how many ranks of the first group are in each part."


@dataclass(frozen=True)
class _Row:
    """One level as it is drawn: the parts of its first unit."""

    level: Level
    part: str
    part_gpus: int
    gpus: int
    tier: str
    strips: list[tuple[str, Axis]]
    notes: list[str]

    @property
    def boxes(self) -> list[int | None]:
        """Numbers of the parts that are drawn; None for those left out."""
        parts = self.level.holds
        return list(range(parts)) if parts <= MOST_BOXES else [*range(MOST_BOXES - 2), None, parts - 1]


def topology(
    machine: Topology, mesh: Any = None, *, base: str | None = None, title: str | None = None, badge: str | None = None
) -> Figure:
    """The levels of a machine, and where the axes of a mesh lie on them.

    machine: a `labkit.cost.topology.Topology`. mesh: ranks by axis, outermost first, or a `labkit.parallel.Layout`.
    base: the level whose latency counts as 1; the innermost by default. badge: "quoted" for a machine alone,
    "simulated" with a mesh. Raises ValueError for a mesh that has more ranks than the machine has GPUs.
    """
    axes = {} if mesh is None else place(machine, mesh)
    title = title or (machine.name if mesh is None else f"A mesh on {machine.name}")
    badge = badge or ("quoted" if mesh is None else "simulated")
    drawn, sentence = _drawn(machine, axes, base), _sentence(machine, axes)
    return Figure(title, badge, sentence, _rows(machine, axes, base), svg=_picture(drawn, title, badge, sentence))


def _part(machine: Topology, index: int) -> str:
    return machine.levels[index - 1].name if index else "GPU"


def _drawn(machine: Topology, axes: Mapping[str, Axis], base: str | None) -> list[_Row]:
    rows = []
    tiers = _tiers(machine, base)
    for index in reversed(range(len(machine.levels))):
        level, gpus, part = machine.levels[index], machine.capacities[index], _part(machine, index)
        within = gpus // level.holds
        strips = [(name, axis) for name, axis in axes.items() if _touches(axis, within, gpus)]
        notes = []
        for name, axis in axes.items():
            out = axis.leaving[index - 1] if index else axis.groups
            if axis.size == 1 or out == axis.groups:
                continue
            if not out:
                notes.append(f"{name} stays inside one {part}")
            else:
                notes.append(f"{out:,} of {axis.groups:,} groups of {name} are in more than one {part}")
        rows.append(_Row(level, part, within, gpus, tiers.get(level.name, ""), strips, notes))
    return rows


def _touches(axis: Axis, part: int, unit: int) -> bool:
    """Whether the first group has ranks in more than the first part of the first unit."""
    beyond = -(-part // axis.stride)  # place of the first of its ranks outside the first part
    return beyond < axis.size and beyond * axis.stride < unit


def _tiers(machine: Topology, base: str | None) -> dict[str, str]:
    """Latency of each level as a multiple of the base level's, in words."""
    start = machine.levels[0].name if base is None else machine.level(base).name
    if not machine.level(start).latency:
        return {}
    return {
        name: "" if name == start else f"{short(tier)} times that in a {start}"
        for name, tier in machine.tiers(base).items()
    }


def _sentence(machine: Topology, axes: Mapping[str, Axis]) -> str:
    counts = [
        f"{plural(level.holds, _part(machine, index))} in a {level.name}"
        for index, level in reversed(list(enumerate(machine.levels)))
    ]
    first, last = machine.levels[0], machine.levels[-1]
    text = f"{machine.gpus:,} GPUs: {listing(counts)}. A GPU sends {format_bandwidth(first.bandwidth, 3)} in a "
    text += f"{first.name}"
    if last is not first:
        text += f" and {format_bandwidth(last.bandwidth, 3)} to another {_part(machine, len(machine.levels) - 1)}"
        if last.oversubscription > 1:
            text += f", {format_bandwidth(last.share, 3)} when all do"
    text += "."
    for name, axis in axes.items():
        crossed = axis.crosses
        if crossed is None:
            text += f" Along {name} every rank is alone."
            continue
        index = machine.index(crossed.name)
        part, leaving = _part(machine, index), axis.leaving[index - 1] if index else axis.groups
        if not index:
            text += f" Groups of {name} ({axis.size}) stay in a {crossed.name}."
        elif leaving == axis.groups:
            text += f" Groups of {name} ({axis.size}) go from {part} to {part} of a {crossed.name}."
        else:
            text += f" {leaving:,} of {axis.groups:,} groups of {name} ({axis.size}) go from {part} to {part}."
    return text


def _rows(machine: Topology, axes: Mapping[str, Axis], base: str | None) -> list[Row]:
    tiers = machine.tiers(base) if machine.levels[0].latency or base else {}
    rows: list[Row] = []
    for index, level in reversed(list(enumerate(machine.levels))):
        rows.append({
            "level": level.name, "units": machine.units(level.name), "holds": level.holds,
            "of": _part(machine, index), "GPUs": machine.capacities[index],
            "GB/s alone": level.bandwidth / 1e9, "GB/s all at once": level.share / 1e9,
            "oversubscription": level.oversubscription, "latency, µs": level.latency / US,
            "latency tier": tiers.get(level.name), **{name: _shared(axis, index) for name, axis in axes.items()},
            "source": level.source or None, "assumed": level.assumed or None,
        })  # fmt: skip
    return rows


def _shared(axis: Axis, index: int) -> str:
    """How many ranks of a group are in one unit of a level."""
    if not axis.leaving[index]:
        return f"all {axis.size}"
    fewest = axis.members[index]
    return f"{fewest} of {axis.size}" if axis.regular else f"{fewest} of {axis.size}, or more"


def _count(axis: Axis, row: _Row, part: int) -> int:
    """Ranks of the first group in a part of the first unit."""
    first, stop = (-(-edge * row.part_gpus // axis.stride) for edge in (part, part + 1))
    return min(axis.size, stop) - min(axis.size, first)


def _says(row: _Row) -> str:
    """The wires of a level in words."""
    text = f"{row.part} to {row.part}: {format_bandwidth(row.level.bandwidth, 3)}"
    if row.level.oversubscription > 1:
        over = short(row.level.oversubscription)
        text += f", {format_bandwidth(row.level.share, 3)} when all send ({over} : 1)"
    text += f"; {seconds_text(row.level.latency)}"
    return f"{text}, {row.tier}" if row.tier else text


def _picture(rows: Sequence[_Row], title: str, badge: str, sentence: str) -> str:
    svg = Svg(WIDTH, title, sentence)
    y = heading(svg, badge, sentence) + 10
    looks = {name: series(i) for i, name in enumerate(dict.fromkeys(n for row in rows for n, _ in row.strips))}
    for row in rows:
        wide = min(64.0, (WIDTH - LEFT - 12) / len(row.boxes))
        top = y + 34 + 13 * len(_assumed(row))
        name = f"{row.level.name}{'' if row is rows[0] else ' 0'}: {plural(row.level.holds, row.part)}"
        svg.text(8, y + 12, name if row.part == "GPU" else f"{name}, {row.gpus:,} GPUs", 12.5, bold=True)
        svg.text(8, y + 27, _says(row), 11.5)
        for number, line in enumerate(_assumed(row)):
            svg.text(8, y + 40 + 13 * number, line, 10)
        _boxes(svg, row, top, wide)
        y = top + BOX + 3
        for axis_name, axis in row.strips:
            _strip(svg, row, axis_name, axis, y, wide, looks[axis_name].colour)
            y += STRIP
        for line in wrap("; ".join(row.notes), WIDTH - LEFT - 12, 10.5) if row.notes else []:
            svg.text(LEFT, y + 11, line, 10.5)
            y += 14
        y += GAP
    svg.text(8, y + 8, KEY, 11)
    return svg.render(y + 18)


def _assumed(row: _Row) -> list[str]:
    return wrap(f"assumed: {row.level.assumed}", WIDTH - 20, 10) if row.level.assumed else []


def _boxes(svg: Svg, row: _Row, top: float, wide: float) -> None:
    for column, part in enumerate(row.boxes):
        x = LEFT + column * wide
        if part is None:
            svg.text(x + wide / 2, top + BOX / 2 + 4, "...", 12, "middle")
            continue
        where = f"{row.part} {part} of {row.level.holds} in the first {row.level.name}"
        svg.rect(x + 1.5, top, wide - 3, BOX, radius=4, stroke_width=2 if part == 0 else 1, hover=where)
        word = f"{row.part} {part}"
        svg.text(x + wide / 2, top + BOX / 2 + 4, word if text_width(word, 11) < wide - 6 else str(part), 11, "middle")


def _strip(svg: Svg, row: _Row, name: str, axis: Axis, y: float, wide: float, colour: str) -> None:
    label = f"{name} ({axis.size})"
    svg.text(LEFT - 10, y + 13, label, 11.5 if text_width(label, 11.5) < LEFT - 18 else 9.5, "end", bold=True)
    for column, part in enumerate(row.boxes):
        x = LEFT + column * wide
        if part is None:
            svg.text(x + wide / 2, y + 12, "...", 11, "middle")
            continue
        count = _count(axis, row, part)
        hover = f"{name}: {plural(count, 'rank')} of the first group in {row.part} {part}"
        svg.rect(x + 1.5, y, wide - 3, STRIP - 3, fill=colour if count else "none", stroke=ON_COLOUR if count else None,
                 dash="" if count else "2 3", stroke_width=0.7, radius=2, hover=hover)  # fmt: skip
        if count:
            word = f"{count:,}"
            size = 11 if text_width(word, 11) < wide - 6 else 8.5
            svg.text(x + wide / 2, y + 11.5, word, size, "middle", on_colour=True)
