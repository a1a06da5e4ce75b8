"""The questions of chapter 18: keys beside numbers worked out by hand or drawn at random, and what they claim."""

from __future__ import annotations

import math

import pytest

from labkit import cost
from labkit.course.chapter_file import load_chapter
from labkit.course.questions import Choices, Order, Question

CHAPTER = load_chapter("18_checkpoints")
QUESTIONS: dict[str, Question] = {id: CHAPTER.question(id, {}) for id in CHAPTER.questions}


@pytest.mark.parametrize(
    ("id", "typed"),
    [
        ("fifteen-minutes-to-write", "296.46"),
        ("what-is-destroyed", "2.277"),
        ("bytes-of-70b", "12 * 70 / 64"),
        ("a-tenth-of-the-stall", "509.1"),
        ("which-stretches", "2"),
        ("step-of-the-sampler", "100 * 4 * 4"),
        ("wait-or-shrink", "6 + 2 * 4 / 3"),
        ("crossing", "100 / 6"),
    ],
)
def test_a_key_is_what_a_hand_works_out(id: str, typed: str) -> None:
    assert QUESTIONS[id].mark(typed).right


@pytest.mark.parametrize(
    ("id", "typed", "word"),
    [
        ("fifteen-minutes-to-write", "171.16", "5 minutes"),
        ("fifteen-minutes-to-write", "513.5", "square root"),
        ("what-is-destroyed", "3", "Half the interval"),
        ("what-is-destroyed", "2", "appears nowhere"),
        ("bytes-of-70b", "840", "one writer"),
        ("bytes-of-70b", "17.5", "16 bytes"),
        ("a-tenth-of-the-stall", "1247", "does not wait"),
        ("step-of-the-sampler", "0", "further on"),
        ("wait-or-shrink", "8", "as long to earn"),
        ("crossing", "44.44", "before it grew"),
    ],
)
def test_a_known_slip_is_told_its_reason(id: str, typed: str, word: str) -> None:
    told = QUESTIONS[id].mark(typed)
    assert not told.right and word in told.why


def test_what_a_failure_destroys_is_what_a_drawn_one_destroys() -> None:
    from random import Random

    draw, interval, mtbf, lost = Random(0), 6.0, 4.0, []
    while len(lost) < 100_000:
        at = draw.expovariate(1 / mtbf)
        if at < interval:
            lost.append(at)
    assert math.fsum(lost) / len(lost) == pytest.approx(2.277, rel=0.01)


def test_four_times_the_fleet_halves_the_interval_and_doubles_the_tax() -> None:
    one, four = cost.young_interval(1, 1000), cost.young_interval(1, 250)
    assert one == pytest.approx(2 * four)
    taxes = cost.first_order_tax(one, 1, 1000).of_useful, cost.first_order_tax(four, 1, 250).of_useful
    assert taxes[1] == pytest.approx(2 * taxes[0])


def test_a_tenth_of_the_stall_leaves_more_than_two_fifths_of_the_loss() -> None:
    often, best = CHAPTER.forecast("behind", {"write": 300.0, "mtbf": 14400.0}).declared
    assert often == pytest.approx(100 * (0.5 / 48.990 + (48.990 / 2 + 0.5 + 5) / 240), rel=1e-4)
    assert best == pytest.approx(100 * (0.5 / 15.492 + (15.492 / 2 + 0.5 + 5) / 240), rel=1e-4)


def test_the_stretches_that_a_rank_needs_lie_in_two_files() -> None:
    need = set(range(400, 800))
    assert sum(bool(need & set(range(300 * r, 300 * (r + 1)))) for r in range(4)) == 2


def test_kinds_of_questions() -> None:
    assert isinstance(QUESTIONS["order-of-a-save"], Order) and isinstance(QUESTIONS["when-no-peer-helps"], Choices)
