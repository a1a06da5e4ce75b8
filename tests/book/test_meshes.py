"""The picture of a mesh on its nodes: all that it shows is in words and in the table too."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import Any

import plotly.graph_objects as go
import pytest

from labkit.book import mesh
from labkit.parallel.layout import Layout
from labkit.wire.errors import RefusedError

SVG = "{http://www.w3.org/2000/svg}"
EIGHT = Layout({"dp": 2, "pp": 2, "tp": 2})
MESHES = {
    "eight ranks": (EIGHT, 4),
    "one rank": (Layout({"dp": 1}), 1),
    "no nodes given": (EIGHT, None),
    "nodes that are not full": (Layout({"dp": 3, "tp": 4}), 5),
    "four axes": (Layout({"dp": 2, "pp": 3, "cp": 2, "tp": 2}), 6),
    "a node wider than a line": (Layout({"tp": 40}), 36),
    "more ranks than are drawn": (Layout({"dp": 16, "pp": 8, "tp": 8}), 8),
}
every_mesh = pytest.mark.parametrize("layout, per_node", MESHES.values(), ids=MESHES.keys())


def texts(figure: Any) -> list[str]:
    return [t.text or "" for t in ET.fromstring(figure.svg).iter(f"{SVG}text")]


def test_the_words_say_which_axes_cross_nodes() -> None:
    assert mesh(EIGHT, 4).sentence == (
        "8 ranks on 2 nodes: dp 2 x pp 2 x tp 2. Groups of dp cross nodes. Groups of pp stay inside a node. Groups of "
        "tp stay inside a node."
    )
    assert "8 ranks on 1 node" in mesh(EIGHT).sentence and "cross" not in mesh(EIGHT).sentence
    assert "1 of 4 groups of tp cross nodes" in mesh(EIGHT, 3).sentence
    assert "Along cp every rank is alone" in mesh(Layout({"cp": 1, "tp": 2}), 1).sentence
    assert mesh(Layout({"dp": 100}), 8).sentence.endswith("The picture shows the first 64 ranks.")


def test_the_table_has_every_rank_its_node_its_coordinates_and_its_groups() -> None:
    rows = mesh(EIGHT, 4).table()
    assert rows[5] == {
        "rank": 5, "node": 1, "dp": 1, "pp": 0, "tp": 1, "dp group": "1 5", "pp group": "5 7", "tp group": "4 5",
    }  # fmt: skip
    assert len(rows) == 8 and "4 5" in mesh(EIGHT, 4).text
    long = mesh(Layout({"dp": 100}), 8).table()
    assert len(long) == 100 and long[0]["dp group"] == "0 1 2 3 ... 99"


@every_mesh
def test_every_cell_says_group_and_place_in_letters_and_numbers(layout: Layout, per_node: int | None) -> None:
    """So no group is told from another by its colour alone: the picture without colours gives the groups back."""
    figure = mesh(layout, per_node)
    drawn = min(layout.size, 64)
    cells = [text for text in texts(figure) if re.fullmatch(r"[A-Z]+\d+", text)]
    assert len(cells) == drawn * len(layout.axes)
    root = ET.fromstring(figure.svg)
    hovers = [t.text or "" for t in root.iter(f"{SVG}title") if (t.text or "").startswith("rank ")]
    assert len(hovers) == len(cells)
    letters: dict[str, dict[str, set[int]]] = {axis: {} for axis in layout.axes}
    for cell, hover in zip(cells, hovers, strict=True):
        found = re.match(r"rank (\d+), node (\d+): (\w+) (\d+), in group ([A-Z]+) of ranks", hover)
        assert found is not None
        rank, node, axis, place, letter = found.groups()
        assert cell == f"{letter}{place}" and int(place) == layout.coordinates(int(rank))[axis]
        assert int(node) == layout.node_of(int(rank), per_node or layout.size)
        letters[axis].setdefault(letter, set()).add(int(rank))
    for axis, groups in letters.items():
        expected = [{r for r in group if r < drawn} for group in layout.groups(axis)]
        assert sorted(groups.values(), key=min) == [group for group in expected if group]


def test_frames_are_nodes() -> None:
    for layout, per_node, nodes in ((EIGHT, 4, 2), (EIGHT, 3, 3), (Layout({"dp": 3, "tp": 4}), 5, 3)):
        figure = mesh(layout, per_node)
        assert [t for t in texts(figure) if t.startswith("node ")] == [f"node {n}" for n in range(nodes)]
        spec = figure.spec
        assert spec is not None
        widths = [round(s["x1"] - s["x0"] + 0.04) for s in spec["layout"]["shapes"]]
        assert widths == [per_node] * (nodes - 1) + [layout.size - per_node * (nodes - 1)]


def test_a_line_ends_where_a_node_does() -> None:
    """24 ranks on nodes of 6: two lines of 12, and no node is broken. A node wider than a line goes on in the next."""
    words = texts(mesh(Layout({"dp": 4, "tp": 6}), 6))
    assert [t for t in words if t.startswith("node ")] == ["node 0", "node 1", "node 2", "node 3"]
    assert words.count("tp (6)") == 2
    wide = texts(mesh(Layout({"tp": 40}), 36))
    assert [t for t in wide if t.startswith("node ")] == ["node 0", "node 0", "node 0", "node 1"]
    assert {"A0", "A39"} <= set(wide)


def test_letters_after_z() -> None:
    words = texts(mesh(Layout({"dp": 2, "tp": 30}), 6))
    assert {"Z0", "AA0", "AD1"} <= set(words) and "AE0" not in words


@every_mesh
def test_the_plot_has_the_same_cells(layout: Layout, per_node: int | None) -> None:
    figure = mesh(layout, per_node)
    assert figure.spec is not None
    (heat,) = figure.spec["data"]
    go.Figure(data=[heat])
    shown = [text for row in heat["text"] for text in row if text]
    assert sorted(shown) == sorted(t for t in texts(figure) if re.fullmatch(r"[A-Z]+\d+", t))
    assert len(heat["colorscale"]) == 16 and heat["zmin"] == -0.5


def test_a_layout_draws_itself() -> None:
    assert EIGHT.draw(4).svg == mesh(EIGHT, 4).svg
    assert EIGHT.draw(4, title="Where they are", badge="quoted").text.startswith("Where they are (quoted)")


def test_nodes_of_no_ranks_are_refused() -> None:
    with pytest.raises(RefusedError, match="ranks_per_node=-1"):
        mesh(EIGHT, -1)
