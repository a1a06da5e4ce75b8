"""The picture of matrices and how ranks share them."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from labkit import book

PAIR = [
    ("x", "whole", (96, 16)), "x", ("A", "columns", (16, 64)), "GELU", ("h", "columns", (96, 64)), "x",
    ("B", "rows", (64, 16)), "=", ("y", "sum", (96, 16)),
]  # fmt: skip


def drawn(svg: str) -> list[ET.Element]:
    return [e for e in ET.fromstring(svg).iter() if e.tag.endswith("rect") and "fill" in e.attrib]


def test_words_say_what_each_rank_holds() -> None:
    figure = book.cuts(PAIR, 4)
    assert [row["on each rank"] for row in figure.rows] == ["96 x 16", "16 x 16", "96 x 16", "16 x 16", "96 x 16"]
    assert "A (by columns) then GELU: h (by columns) times B (by rows) gives y (sum" in figure.sentence


def test_a_part_that_does_not_divide_is_named_by_its_largest() -> None:
    rows = book.cuts([("A", "columns", (16, 65)), ("B", "rows", (65, 16))], 4).rows
    assert [row["on each rank"] for row in rows] == ["16 x 17", "17 x 16"]


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_strips_tile_a_matrix_and_cards_are_of_full_size(ranks: int) -> None:
    boxes = drawn(book.cuts([("A", "columns", (16, 64)), ("B", "rows", (64, 16)), ("y", "sum", (16, 16))], ranks).svg)
    boxes = [b for b in boxes if b.find("{http://www.w3.org/2000/svg}title") is not None]
    assert len(boxes) == 3 * ranks
    a, b, y = (boxes[i * ranks : (i + 1) * ranks] for i in range(3))
    end = float(a[0].attrib["x"]) + ranks * float(a[0].attrib["width"])
    assert end == pytest.approx(float(a[-1].attrib["x"]) + float(a[-1].attrib["width"]), abs=1)
    assert len({e.attrib["y"] for e in a}) == 1 and len({e.attrib["x"] for e in b}) == 1
    assert len({(e.attrib["width"], e.attrib["height"]) for e in y}) == 1
    assert len({e.attrib["x"] for e in y}) == ranks


def test_what_is_alike_on_all_ranks_has_one_colour_and_partial_sums_have_several() -> None:
    def colours(way: str) -> set[str]:
        boxes = drawn(book.cuts([("y", way, (16, 16))], 4).svg)
        return {b.attrib["fill"] for b in boxes if b.find("{http://www.w3.org/2000/svg}title") is not None}

    assert len(colours("whole")) == 1 and len(colours("sum")) == 4


@pytest.mark.parametrize(("chain", "ranks"), [([("A", "diagonally", (2, 2))], 2), (["x"], 2), (PAIR, 9), (PAIR, 0)])
def test_what_cannot_be_drawn_is_refused(chain: list, ranks: int) -> None:
    with pytest.raises(ValueError):
        book.cuts(chain, ranks)


def test_the_picture_fits_its_column() -> None:
    boxes = drawn(book.cuts([*PAIR, "all-reduce", ("y", "whole", (96, 16))], 8).svg)
    assert max(float(b.attrib["x"]) + float(b.attrib["width"]) for b in boxes) <= 760


def test_both_forms_draw_the_same_boxes_and_words() -> None:
    figure = book.cuts(PAIR, 4)
    layout = figure.plotly().layout  # raises on a property that plotly does not know
    boxes = [b for b in drawn(figure.svg) if b.find("{http://www.w3.org/2000/svg}title") is not None]
    assert [s.fillcolor for s in layout.shapes] == [b.attrib["fill"] for b in boxes]
    assert [round(s.x1 - s.x0, 1) for s in layout.shapes] == pytest.approx([float(b.attrib["width"]) for b in boxes])
    texts = {e.text for e in ET.fromstring(figure.svg).iter() if e.tag.endswith("text")}
    assert {a.text.removeprefix("<b>").removesuffix("</b>") for a in layout.annotations} <= texts
