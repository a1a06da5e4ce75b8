"""The picture of a machine: its levels, what is assumed, and where the groups of a mesh lie, all in words too."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import Any

import pytest

from labkit import book
from labkit.book.drawing.figure import PLOTLY
from labkit.cost import topology as T
from labkit.parallel.layout import Layout

SVG = "{http://www.w3.org/2000/svg}"
CLOS = T.clos_buildings()
PICTURES = {
    "a machine alone": (T.hpn_paper(), None),
    "one level": (T.nvl72(), {"dp": 9, "tp": 8}),
    "four axes": (CLOS, {"replica": 12, "pp": 16, "dp": 64, "tp": 8}),
    "groups cut by nodes": (T.dgx_node(4), {"dp": 5, "tp": 6}),
    "an axis of one rank": (T.dgx_node(4), {"dp": 4, "cp": 1, "tp": 8}),
    "a million GPUs": (T.hpn_first(), {"dp": 128, "pp": 1024, "tp": 8}),
}
every_picture = pytest.mark.parametrize("machine, mesh", PICTURES.values(), ids=PICTURES.keys())


def texts(figure: Any) -> list[str]:
    return [t.text or "" for t in ET.fromstring(figure.svg).iter(f"{SVG}text")]


def hovers(figure: Any) -> list[str]:
    return [t.text or "" for t in ET.fromstring(figure.svg).iter(f"{SVG}title")]


def test_the_words_say_what_joins_what_and_which_axis_needs_it() -> None:
    figure = book.topology(CLOS, {"replica": 12, "pp": 16, "dp": 64, "tp": 8}, base="rack")
    assert figure.sentence == (
        "98,304 GPUs: 4 buildings in a campus, 3 zones in a building, 512 racks in a zone, 2 nodes in a rack and 8 "
        "GPUs in a node. A GPU sends 450 GB/s in a node and 50 GB/s to another building, 17.9 GB/s when all do. Groups "
        "of replica (12) go from building to building of a campus. Groups of pp (16) go from rack to rack of a zone. "
        "Groups of dp (64) go from rack to rack of a zone. Groups of tp (8) stay in a node."
    )
    cut = book.topology(T.dgx_node(4), {"dp": 5, "cp": 1, "tp": 6}).sentence
    assert "2 of 5 groups of tp (6) go from node to node." in cut and "Along cp every rank is alone." in cut


def test_the_table_has_the_tiers_and_how_many_of_a_group_share_a_unit() -> None:
    rows = book.topology(CLOS, {"replica": 12, "inside": 8192}, base="rack").table()
    assert [row["level"] for row in rows] == ["campus", "building", "zone", "rack", "node"]
    assert [row["latency tier"] for row in rows][:4] == pytest.approx([30, 15, 7, 1])
    assert [row["replica"] for row in rows] == ["all 12", "3 of 12", "1 of 12", "1 of 12", "1 of 12"]
    assert [row["inside"] for row in rows][1:] == ["all 8192", "all 8192", "16 of 8192", "8 of 8192"]
    assert [row["oversubscription"] for row in rows] == [2.8, 2.8, 1, 1, 1]
    uneven = book.topology(T.dgx_node(4), {"dp": 5, "tp": 6}).table()
    assert uneven[1]["tp"] == "2 of 6, or more" and uneven[0]["tp"] == "all 6"


@every_picture
def test_every_level_has_its_numbers_and_what_is_assumed(machine: T.Topology, mesh: Any) -> None:
    words = texts(book.topology(machine, mesh))
    for index, level in enumerate(machine.levels):
        part = machine.levels[index - 1].name if index else "GPU"
        line = next(t for t in words if re.match(rf"{level.name}( 0)?: {level.holds} {part}", t))
        assert index == 0 or f"{machine.capacities[index]:,} GPUs" in line
        assert any(t.startswith(f"{part} to {part}: ") for t in words)
        assert f"assumed: {level.assumed}" in words
    over = [level for level in machine.levels if level.oversubscription > 1]
    assert sum("when all send" in t for t in words) == len(over)


@every_picture
def test_the_strips_without_colours_give_the_first_group_back(machine: T.Topology, mesh: Any) -> None:
    """Every cell says its number; added up over all parts that are drawn, they are the ranks of the first group."""
    figure = book.topology(machine, mesh)
    found: dict[tuple[str, str], dict[int, int]] = {}
    for hover in hovers(figure):
        match = re.match(r"(\w+): (\d+) ranks? of the first group in (\w+) (\d+)$", hover)
        if match:
            axis, count, part, number = match.groups()
            found.setdefault((axis, part), {})[int(number)] = int(count)
    assert bool(found) == (mesh is not None)
    placed = T.place(machine, mesh) if mesh else {}
    shown = [t for t in texts(figure) if re.fullmatch(r"[\d,]+", t)]
    for (axis, part), counts in found.items():
        group = list(placed[axis].first_group())
        index = 0 if part == "GPU" else machine.index(part) + 1
        capacity = 1 if part == "GPU" else machine.capacity(part)
        for number, count in counts.items():
            unit = [rank for rank in group if rank < machine.capacities[index]]
            assert count == sum(rank // capacity == number for rank in unit)
            assert not count or f"{count:,}" in shown
        assert sum(1 for count in counts.values() if count) >= 1 and f"{axis} ({placed[axis].size})" in texts(figure)
    for name, axis in placed.items():  # a strip wherever the first group has ranks in two parts, and only there
        for index in range(len(machine.levels)):
            part, capacity = (machine.levels[index - 1].name, machine.capacities[index - 1]) if index else ("GPU", 1)
            parts = {rank // capacity for rank in axis.first_group() if rank < machine.capacities[index]}
            assert ((name, part) in found) == (len(parts) > 1)


def test_what_has_no_strip_is_said_in_words() -> None:
    words = texts(book.topology(T.dgx_node(4), {"dp": 4, "cp": 1, "tp": 8}))
    assert "tp stays inside one node" in words
    assert not any("cp" in t for t in words if "stays" in t)
    assert "2 of 5 groups of tp are in more than one node" in texts(book.topology(T.dgx_node(4), {"dp": 5, "tp": 6}))


def test_a_long_row_shows_its_first_and_last_parts() -> None:
    figure = book.topology(T.hpn_paper())
    assert "node 127 of 128 in the first segment" in hovers(figure) and "..." in texts(figure)
    assert "node 20 of 128 in the first segment" not in hovers(figure)
    assert sum("in the first pod" in t for t in hovers(figure)) == 15


def test_a_layout_is_a_mesh_and_the_marks_say_where_numbers_come_from() -> None:
    sizes = {"dp": 4, "tp": 8}
    by_layout, by_sizes = book.topology(T.dgx_node(4), Layout(sizes)), book.topology(T.dgx_node(4), sizes)
    assert by_layout.svg == by_sizes.svg and by_layout.text == by_sizes.text
    assert by_sizes.badge == "simulated" and book.topology(T.nvl72()).badge == "quoted"
    assert book.topology(T.nvl72(), title="A rack", badge="simulated").text.startswith("A rack (simulated)")


def test_without_a_plot_a_page_has_the_picture_with_words() -> None:
    bundle = book.topology(T.nvl72()).bundle()
    assert PLOTLY not in bundle and 'alt="NVL72 (quoted). 72 GPUs' in bundle["text/html"]


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="= 144 ranks, and NVL72 has 72 GPUs"):
        book.topology(T.nvl72(), {"dp": 18, "tp": 8})
    with pytest.raises(ValueError, match="level must be one of 'rack', not 'pod'"):
        book.topology(T.nvl72(), base="pod")
    with pytest.raises(ValueError, match="at most 8 series"):
        book.topology(T.dgx_node(64), {f"a{i}": 2 for i in range(9)})
