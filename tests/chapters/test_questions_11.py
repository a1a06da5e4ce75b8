"""The questions of chapter 11: keys beside numbers worked out by hand, words that readers use, and what is claimed."""

from __future__ import annotations

import pytest

from labkit.chapters.c11_context_parallelism import drawings, triangle
from labkit.course.chapter_file import load_chapter
from labkit.course.questions import Question
from labkit.parallel.context.layouts import positions_of
from labkit.parallel.context.masks import Mask

CHAPTER = load_chapter("11_context_parallelism")
QUESTIONS: dict[str, Question] = {id: CHAPTER.question(id, {}) for id in CHAPTER.questions}


@pytest.mark.parametrize(
    ("id", "typed"),
    [
        ("two-parts", "4"),  # a quarter of 10 and three quarters of 2
        ("ring-bytes-of-16", "15 * 2 * 8 * 128 * 8192 * 2 / 1e6"),
        ("slowdown-of-16", "2 - 1/16"),
    ],
)
def test_a_key_is_what_a_hand_works_out(id: str, typed: str) -> None:
    assert QUESTIONS[id].mark(typed).right


@pytest.mark.parametrize(
    ("id", "typed", "why"),
    [
        ("two-parts", "6", "the plain average"),
        ("two-parts", "8", "The shares have changed places"),
        ("ring-bytes-of-16", "536.87", "in all rounds"),
        ("ring-bytes-of-16", "33.55", "That is one block"),
        ("slowdown-of-16", "31", "over the *first* one"),
    ],
)
def test_a_known_slip_has_a_sentence_of_its_own(id: str, typed: str, why: str) -> None:
    told = QUESTIONS[id].mark(typed)
    assert not told.right and why in told.why


@pytest.mark.parametrize("typed", ["positions", "the positions of its tokens", "position ids", "token positions"])
def test_the_missing_thing_may_be_named_in_many_ways(typed: str) -> None:
    assert QUESTIONS["seventh-thing"].mark(typed).right and not QUESTIONS["seventh-thing"].mark("order").right
    assert "The attention was tested" in QUESTIONS["seventh-thing"].mark("the mask").why


@pytest.mark.parametrize("world_size", [2, 3, 7, 8])
def test_predictions_declare_what_the_run_shows(world_size: int) -> None:
    each, twice = CHAPTER.forecast("ring-bytes", {"world_size": world_size, "nbytes": 4200 * world_size}).declared
    assert each == pytest.approx(4.2 * (world_size - 1)) and twice == pytest.approx(2.1 * (2 * world_size - 1))
    about = {"world_size": world_size, "length": 512 * world_size}
    pace, limit = CHAPTER.forecast("contiguous-slowdown", about).declared
    assert pace == pytest.approx(2 - 1 / 3, rel=5e-3) and limit == 2


@pytest.mark.parametrize(("layout", "rounds"), [("contiguous", 2), ("zigzag", 8)])
def test_what_is_said_of_the_window_is_so(layout: str, rounds: int) -> None:
    of, mask = [positions_of(r, 8, 512, layout) for r in range(8)], Mask(window=32)
    meet = [i for i in range(8) for r in range(8) if not mask.none(of[r], of[(r - i) % 8])]
    assert max(meet) + 1 == rounds


@pytest.mark.parametrize("size", [2, 3, 8])
def test_zigzag_is_even_in_every_round_of_the_picture_and_contiguous_is_not(size: int) -> None:
    for layout, even in (("zigzag", True), ("contiguous", False)):
        of = [positions_of(r, size, 48, layout) for r in range(size)]
        player = triangle.rounds(of, Mask(), size, "emulated", "Pairs")
        assert len(player.frames) == size and all(" nothing to compute" in w for _, w in player.frames[1:]) is not even
        assert ("every rank computes" in player.frames[1][1]) is even


def test_a_round_tells_of_those_too_that_have_less() -> None:
    of = [positions_of(r, 8, 48, "striped") for r in range(8)]
    words = [said for _, said in triangle.rounds(of, Mask(), 8, "emulated", "Pairs").frames]
    assert words[4].startswith("Round 4 (the last is 7): 4 of 8 ranks compute 21 pairs each, and others 15")


def test_a_round_may_have_no_work_for_anybody() -> None:
    of = [positions_of(r, 4, 48, "zigzag") for r in range(4)]
    player = triangle.rounds(of, Mask(window=6), 4, "emulated", "Pairs")
    assert [i for i, (_, words) in enumerate(player.frames) if "no rank has anything to compute" in words] == [2]


def test_the_halves_give_one_mean_wherever_they_are_cut_and_the_tiles_finish_every_row() -> None:
    assert len({round(float(row["joined"]), 6) for row in drawings.halves().still.rows}) == 1
    rows = drawings.tiles().still.rows
    assert len(rows) == 10 and [row["share of the sum"] == pytest.approx(1, abs=1e-5) for row in rows].count(True) == 4
