"""The picture of the two layouts, and the board on which shards are dealt out by hand."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any

import pytest
from hypothesis import given, strategies as st

from labkit import book
from labkit.book.drawing.style import ON_COLOUR
from labkit.book.drawing.svg import text_width
from labkit.resilience.ntp import shard_map

SVG = "{http://www.w3.org/2000/svg}"


def cells(figure: Any) -> list[ET.Element]:
    """The boxes of the picture that say something."""
    return [r for r in ET.fromstring(figure.svg).iter(f"{SVG}rect") if r.find(f"{SVG}title") is not None]


def said(cell: ET.Element) -> str:
    found = cell.find(f"{SVG}title")
    assert found is not None
    return found.text or ""


def frames(figure: Any) -> list[ET.Element]:
    """The frames around shards that move: boxes without words, with an outline and no filling."""
    boxes = [r for r in ET.fromstring(figure.svg).iter(f"{SVG}rect") if r.find(f"{SVG}title") is None]
    return [r for r in boxes if r.get("stroke") == ON_COLOUR and r.get("fill") == "none"]


def lies_in(frame: ET.Element, cell: ET.Element) -> bool:
    """Whether the whole frame, with the width of its line, lies on the box."""
    inner, outer = ([float(box.get(name) or 0) for name in ("x", "y", "width", "height")] for box in (frame, cell))
    line = float(frame.get("stroke-width") or 1) / 2
    return all(outer[i] < inner[i] - line and inner[i] + inner[i + 2] + line < outer[i] + outer[i + 2] for i in (0, 1))


def test_the_words_say_who_gives_how_many_to_whom() -> None:
    assert book.shard_layouts(shard_map(32, 8, 7)).sentence == (
        "32 shards on 8 ranks, of which 7 ranks sum them over the replicas. 4 shards move, 12.5% of all. Rank 7 gives "
        "4 to ranks 0, 1, 2 and 3."
    )
    assert book.shard_layouts(shard_map(5, 2, 1)).sentence.endswith(
        "2 shards move, 40.0% of all. Rank 1 gives 2 to rank 0."
    )
    assert book.shard_layouts(shard_map(3, 3, 2)).sentence.endswith(
        "1 shard moves, 33.3% of all. Rank 2 gives 1 to rank 0."
    )
    assert book.shard_layouts(shard_map(8, 4, 4)).sentence.endswith(
        "Each shard is summed where it is computed: none moves."
    )


def test_the_table_has_a_row_for_each_shard() -> None:
    rows = book.shard_layouts(shard_map(32, 8, 7)).table()
    assert [row["shard"] for row in rows] == list(range(32))
    assert rows[9] == {"shard": 9, "computed by": "rank 7", "summed by": "rank 1", "moves": "yes"}
    assert [row["shard"] for row in rows if row["moves"] == "yes"] == [4, 9, 14, 19]


def test_what_moves_is_told_by_frame_and_arrow_and_not_by_colour_alone() -> None:
    figure = book.shard_layouts(shard_map(32, 8, 7))
    texts = [t.text for t in ET.fromstring(figure.svg).iter(f"{SVG}text")]
    for shard, owner in ((4, 0), (9, 1), (14, 2), (19, 3)):
        assert f"{shard} \u2192 {owner}" in texts and f"{shard} \u2190 7" in texts
    framed = [said(cell) for cell in cells(figure) if any(lies_in(frame, cell) for frame in frames(figure))]
    assert len(framed) == len(frames(figure)) == 8 and all(", which rank " in words for words in framed)
    assert "compute: rank 7 has shard 19, which rank 3 sums" in framed
    assert "sync: rank 3 has shard 19, which rank 7 computes" in framed
    assert "sync: rank 7 has no shard" in [said(cell) for cell in cells(figure)]
    assert any(text is not None and text.startswith("Frame and arrow: ") for text in texts)


def test_the_frame_lies_inside_of_its_box_where_a_dark_page_shows_it_too() -> None:
    for frame in frames(book.shard_layouts(shard_map(12, 4, 3))):
        assert frame.get("fill") == "none" and frame.get("stroke") == ON_COLOUR
        assert sum(lies_in(frame, cell) for cell in cells(book.shard_layouts(shard_map(12, 4, 3)))) == 1


def test_every_shard_is_drawn_once_in_each_layout() -> None:
    for name in ("compute", "sync"):
        drawn = [
            said(c) for c in cells(book.shard_layouts(shard_map(61, 8, 5))) if said(c).startswith(f"{name}: rank ")
        ]
        assert len([words for words in drawn if "has shard" in words]) == 61


def test_the_words_of_a_shard_fit_into_its_frame_also_with_the_most_ranks() -> None:
    for sizes in ((12, 4, 3), (160, 12, 10)):
        figure = book.shard_layouts(shard_map(*sizes))
        words = [t for t in ET.fromstring(figure.svg).iter(f"{SVG}text") if {"\u2190", "\u2192"} & {*(t.text or "")}]
        room = min(float(frame.get("width") or 0) for frame in frames(figure))
        assert len(words) == 2 * shard_map(*sizes).moved
        assert all(8.5 <= float(t.get("font-size") or 0) <= 10.5 for t in words)
        assert max(text_width(t.text or "", 1.1 * float(t.get("font-size") or 0)) for t in words) < room


@pytest.mark.parametrize("sizes", [(13, 13, 3), (60, 3, 2), (34, 3, 2)], ids=str)
def test_too_many_to_draw_is_refused(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="12 ranks with 16 shards can be drawn"):
        book.shard_layouts(shard_map(*sizes))


def test_sixteen_shards_on_a_rank_are_still_drawn() -> None:
    assert max(map(len, shard_map(32, 3, 2).sync)) == 16
    assert len(book.shard_layouts(shard_map(32, 3, 2)).table()) == 32


# -- the board -----------------------------------------------------------------------------------------------------


def test_a_board_says_what_is_wrong_with_a_layout_and_what_is_right() -> None:
    board = book.shard_board(12, healthy=4, reduced=3)
    assert board.verdict == "Rank 3 has nothing to compute with."
    assert board.move([9, 10, 11], to=3).verdict == "Ranks hold 1 to 4 shards: all wait for the one with 4."
    assert board.move([0, 4], to=3).verdict == "Ranks hold 2 to 4 shards: all wait for the one with 4."
    stretches = book.shard_board(12, 4, 3, compute=[[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]])
    assert stretches.verdict == "Even. But 6 shards move, where 3 would do."
    for three in ([3, 7, 11], [0, 4, 8], [1, 6, 9]):
        assert board.move(three, to=3).verdict == "Even, and no fewer than 3 shards could move."
    assert board.move(3, to=3).compute[3] == (3,) and board.compute[3] == ()  # the first board is as it was


def test_a_shard_can_be_given_to_any_rank_also_to_one_before() -> None:
    board = book.shard_board(12, 4, 3).move(4, to=0)
    assert board.compute == ((0, 1, 2, 3, 4), (5, 6, 7), (8, 9, 10, 11), ())
    assert board.moved == 1 and "Rank 0 gives 1 to rank 1." in repr(board)
    assert board.move(4, to=1) == book.shard_board(12, 4, 3)  # and back


def test_shards_of_a_rank_stay_in_order_however_they_came() -> None:
    assert book.shard_board(12, 4, 3).move(0, to=3).move(4, to=3).compute[3] == (0, 4)


def test_ranks_that_wait_for_shards_may_get_them_one_after_the_other() -> None:
    board = book.shard_board(8, 4, 2).move(3, to=2)
    assert board.compute == ((0, 1, 2), (4, 5, 6, 7), (3,), ()) and board.verdict.startswith("Rank 3 has nothing")
    assert book.shard_board(8, 4, 2).verdict == "Ranks 2 and 3 have nothing to compute with."


def test_the_row_of_a_board_counts() -> None:
    row = book.shard_board(12, 4, 3).move([9, 10, 11], to=3).row("mine")
    assert row == {"layout": "mine", "most on a rank": 4, "slower than even": "1.33", "moved": 3, "of all": "25.0%"}


def test_a_board_shows_itself_as_the_picture_with_its_verdict() -> None:
    board = book.shard_board(12, 4, 3).move([3, 7, 11], to=3)
    assert board.figure().sentence.startswith(board.verdict) and board.figure().text == repr(board)
    assert "Rank 3 gives 3 to ranks 0, 1 and 2." in repr(board)


@given(st.integers(1, 12).flatmap(lambda n: st.tuples(st.integers(n, 60), st.just(n), st.integers(1, n))))
def test_the_shard_map_is_as_good_as_a_layout_by_hand_can_be(sizes: tuple[int, int, int]) -> None:
    k, healthy, reduced = sizes
    m = shard_map(k, healthy, reduced)
    board = book.shard_board(k, healthy, reduced, m.compute)
    assert [list(mine) for mine in board.sync] == m.sync
    assert board.moved == m.moved == board.fewest and board.pace == m.pace
    assert board.verdict == f"Even, and no fewer than {m.moved} shard{'s' if m.moved != 1 else ''} could move."


REFUSED = {
    "no such shard": (lambda: book.shard_board(4, 2, 1).move(4, to=1), "no shard 4: they are 0 to 3"),
    "no such rank": (lambda: book.shard_board(4, 2, 1).move(0, to=2), "no rank 2: the replica has ranks 0 to 1"),
    "a rank without shards": (lambda: book.shard_board(4, 2, 2).move([2, 3], to=0), "rank 1 would be left without"),
    "too few shards": (lambda: book.shard_board(3, 4, 3), "3 shards, 4 ranks"),
    "more left than there were": (lambda: book.shard_board(8, 2, 3), "no more ranks left than there were"),
    "no ranks": (lambda: book.shard_board(8, 2, 0), "reduced=0: a whole number"),
    "a shard twice": (lambda: book.shard_board(4, 2, 1, [[0, 1, 2], [2]]), "each once"),
    "another number of ranks": (lambda: book.shard_board(4, 2, 1, [[0, 1, 2, 3]]), "needs 2 lists"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_dealt_is_refused(case: str) -> None:
    make, words = REFUSED[case]
    with pytest.raises(ValueError, match=words):
        make()
