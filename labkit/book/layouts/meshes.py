"""A mesh on its nodes: which ranks form the groups of each axis, and which of them need the wires between nodes.

One line of cells for each axis, one column for each rank, a frame around each node. `B1` in the line of "tp" is
place 1 of group B: the letter says with whom a rank works, the number where in the group it stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from string import ascii_uppercase
from typing import Any, Protocol

from labkit.book.drawing.figure import WIDTH, Figure, axis, heading, plotly_spec
from labkit.book.drawing.style import INK, ON_COLOUR, SERIES
from labkit.book.drawing.svg import Svg, text_width
from labkit.book.drawing.tables import Row
from labkit.book.drawing.units import listing, plural

PER_LINE = 16  # ranks beside each other
MOST_DRAWN = 64
LEFT, TALL, HEAD = 132.0, 26.0, 40.0
KEY = "Columns are ranks. The same letter in a line: one group; the number is the place in it."


class Layout(Protocol):
    """What is read of a `labkit.parallel.Layout`."""

    @property
    def sizes(self) -> dict[str, int]: ...
    @property
    def size(self) -> int: ...
    def coordinates(self, rank: int) -> dict[str, int]: ...
    def groups(self, *axes: str) -> list[list[int]]: ...
    def node_of(self, rank: int, ranks_per_node: int) -> int: ...


@dataclass(frozen=True)
class _Places:
    """All that is drawn: the node of each rank, and for each axis each rank's group and place in it."""

    sizes: dict[str, int]
    nodes: list[int]
    groups: dict[str, list[list[int]]]
    within: dict[str, list[tuple[int, int]]]

    def crossing(self, name: str) -> int:
        """How many groups of an axis have ranks on more than one node."""
        return sum(len({self.nodes[rank] for rank in group}) > 1 for group in self.groups[name])

    def where(self, name: str) -> str:
        crossing, groups = self.crossing(name), len(self.groups[name])
        if self.sizes[name] == 1:
            return "alone"
        return "inside a node" if not crossing else "across nodes" if crossing == groups else "some across nodes"

    def cell(self, name: str, rank: int) -> str:
        group, place = self.within[name][rank]
        return f"{_letter(group)}{place}"


def mesh(
    layout: Any, ranks_per_node: int | None = None, *, title: str = "A mesh on its nodes", badge: str = "simulated"
) -> Figure:
    """The groups of each axis of a mesh, and the nodes that their ranks are on.

    layout: a `labkit.parallel.Layout`, or a `Mesh`, which knows the nodes of its run. ranks_per_node: neighbouring
    ranks on each node; without it a layout stands on one node.
    """
    nodes = getattr(layout, "nodes", None) if ranks_per_node is None else None
    layout = getattr(layout, "layout", layout)
    if nodes is None:
        nodes = [layout.node_of(rank, ranks_per_node or layout.size) for rank in range(layout.size)]
    places = _places(layout, nodes)
    sentence = _sentence(places)
    return Figure(
        title, badge, sentence, _rows(layout, places),
        svg=_picture(places, title, badge, sentence), spec=_spec(places, title, badge),
    )  # fmt: skip


def _places(layout: Layout, nodes: Sequence[int]) -> _Places:
    groups = {name: layout.groups(name) for name in layout.sizes}
    within: dict[str, list[tuple[int, int]]] = {}
    for name, several in groups.items():
        found = {rank: (number, place) for number, group in enumerate(several) for place, rank in enumerate(group)}
        within[name] = [found[rank] for rank in range(layout.size)]
    return _Places(dict(layout.sizes), list(nodes), groups, within)


def _letter(number: int) -> str:
    """A, B, ... Z, AA, AB ..."""
    return (_letter(number // 26 - 1) if number >= 26 else "") + ascii_uppercase[number % 26]


def _sentence(places: _Places) -> str:
    ranks, nodes = len(places.nodes), len(set(places.nodes))
    sizes = " x ".join(f"{name} {size}" for name, size in places.sizes.items())
    text = f"{plural(ranks, 'rank')} on {plural(nodes, 'node')}: {sizes}."
    for name, size in places.sizes.items():
        crossing, groups = places.crossing(name), len(places.groups[name])
        if size == 1:
            text += f" Along {name} every rank is alone."
        elif not crossing:
            text += f" Groups of {name} stay inside a node."
        elif crossing == groups:
            text += f" Groups of {name} cross nodes."
        else:
            text += f" {crossing} of {groups} groups of {name} cross nodes."
    if ranks > MOST_DRAWN:
        text += f" The picture shows the first {MOST_DRAWN} ranks."
    return text


def _rows(layout: Layout, places: _Places) -> list[Row]:
    rows: list[Row] = []
    for rank, node in enumerate(places.nodes):
        groups = {f"{name} group": _members(places.groups[name][places.within[name][rank][0]]) for name in places.sizes}
        rows.append({"rank": rank, "node": node, **layout.coordinates(rank), **groups})
    return rows


def _members(group: list[int]) -> str:
    return " ".join(map(str, group if len(group) <= 8 else [*group[:4], "...", group[-1]]))


def _lines(places: _Places) -> list[range]:
    """Ranks beside each other: as many whole nodes as fit into a line."""
    drawn = min(len(places.nodes), MOST_DRAWN)
    lines: list[range] = []
    start = 0
    while start < drawn:
        stop = min(start + PER_LINE, drawn)
        ends = [
            r for r in range(start + 1, stop + 1) if r == len(places.nodes) or places.nodes[r] != places.nodes[r - 1]
        ]
        if stop < drawn and ends:
            stop = ends[-1]
        lines.append(range(start, stop))
        start = stop
    return lines


def _frames(places: _Places, line: range) -> list[tuple[int, int, int]]:
    """(node, first column, columns) of each node in a line."""
    frames: list[tuple[int, int, int]] = []
    for column, rank in enumerate(line):
        node = places.nodes[rank]
        if frames and frames[-1][0] == node:
            frames[-1] = (node, frames[-1][1], frames[-1][2] + 1)
        else:
            frames.append((node, column, 1))
    return frames


def _hover(places: _Places, name: str, rank: int) -> str:
    group, place = places.within[name][rank]
    members = listing([str(r) for r in places.groups[name][group]][:MOST_DRAWN])
    return f"rank {rank}, node {places.nodes[rank]}: {name} {place}, in group {_letter(group)} of ranks {members}"


def _picture(places: _Places, title: str, badge: str, sentence: str) -> str:
    svg = Svg(WIDTH, title, sentence)
    y = heading(svg, badge, sentence) + 4
    names, lines = list(places.sizes), _lines(places)
    wide = min(46.0, (WIDTH - LEFT - 12) / max(map(len, lines)))
    for line in lines:
        for below, name in enumerate(names):
            base = y + HEAD + below * TALL
            svg.text(LEFT - 10, base + 12, f"{name} ({places.sizes[name]})", 12, "end", bold=True)
            svg.text(LEFT - 10, base + 23, places.where(name), 9.5, "end")
        for column, rank in enumerate(line):
            x = LEFT + column * wide
            svg.text(x + wide / 2, y + HEAD - 5, str(rank), 11, "middle")
            for below, name in enumerate(names):
                look = SERIES[places.within[name][rank][0] % len(SERIES)]
                top = y + HEAD + below * TALL
                svg.rect(x + 3, top + 1, wide - 6, TALL - 4, fill=look.colour, stroke_width=0.7, radius=3,
                         stroke=ON_COLOUR, hover=_hover(places, name, rank))  # fmt: skip
                text = places.cell(name, rank)
                size = 11.5 if text_width(text, 11.5) < wide - 8 else 8.5
                svg.text(x + wide / 2, top + TALL / 2 + 3, text, size, "middle", on_colour=True)
        for node, first, columns in _frames(places, line):
            x, width = LEFT + first * wide, columns * wide
            svg.rect(x + 0.5, y, width - 1, HEAD + len(names) * TALL + 4, radius=5, stroke_width=1.4)
            word = f"node {node}"
            svg.text(x + width / 2, y + 15, word if text_width(word, 11) < width - 4 else str(node), 11, "middle",
                     bold=True)  # fmt: skip
        y += HEAD + len(names) * TALL + 16
    svg.text(8, y + 6, KEY, 11)
    return svg.render(y + 16)


def _spec(places: _Places, title: str, badge: str) -> dict[str, Any]:
    names, lines = list(places.sizes), _lines(places)
    deep = len(names) + 2  # a row for the ranks' numbers, and one apart
    cells = [
        (column, number * deep + below + 1, name, rank)
        for (number, line), (below, name) in product(enumerate(lines), enumerate(names))
        for column, rank in enumerate(line)
    ]
    height, width = len(lines) * deep - 1, max(map(len, lines))
    shades: list[list[float | None]] = [[None] * width for _ in range(height)]
    texts, hovers = [[""] * width for _ in range(height)], [[""] * width for _ in range(height)]
    for column, row, name, rank in cells:
        shades[row][column] = places.within[name][rank][0] % len(SERIES)
        texts[row][column] = places.cell(name, rank)
        hovers[row][column] = _hover(places, name, rank)
    steps = [(i / len(SERIES), (i + 1) / len(SERIES), look.colour) for i, look in enumerate(SERIES)]
    data = [{
        "type": "heatmap", "x": list(range(width)), "y": list(range(height)), "z": shades, "text": texts,
        "texttemplate": "%{text}", "textfont": {"color": ON_COLOUR}, "hovertext": hovers, "hoverinfo": "text",
        "hoverongaps": False, "zmin": -0.5, "zmax": len(SERIES) - 0.5, "showscale": False, "xgap": 4, "ygap": 3,
        "colorscale": [[edge, colour] for first, last, colour in steps for edge in (first, last)],
    }]  # fmt: skip
    notes, frames = [], []
    for number, line in enumerate(lines):
        for column, rank in enumerate(line):
            notes.append({"x": column, "y": number * deep, "text": str(rank), "showarrow": False, "yshift": -6})
        for node, first, columns in _frames(places, line):
            middle = first + (columns - 1) / 2
            notes.append({"x": middle, "y": number * deep - 0.5, "text": f"<b>node {node}</b>", "showarrow": False,
                          "font": {"color": INK, "size": 11}})  # fmt: skip
            frames.append({"type": "rect", "x0": first - 0.48, "x1": first + columns - 0.52,
                           "y0": number * deep - 0.8, "y1": number * deep + len(names) + 0.55,
                           "line": {"color": INK, "width": 1.5}})  # fmt: skip
    ticks = [(number * deep + below + 1, f"{name} ({places.sizes[name]}), {places.where(name)}")
             for number in range(len(lines)) for below, name in enumerate(names)]  # fmt: skip
    return plotly_spec(
        title, badge, data, 27 * height + 44, above=4, below=40, annotations=notes, shapes=frames,
        xaxis=axis(KEY, showgrid=False, showticklabels=False, ticks="", range=[-0.6, width - 0.4]),
        yaxis=axis(showgrid=False, range=[height - 0.2, -1.0], tickmode="array",
                   tickvals=[at for at, _ in ticks], ticktext=[word for _, word in ticks]),
    )  # fmt: skip
