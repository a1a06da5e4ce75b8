"""What holds of the questions of every chapter: each slip, each swap and each wrong choice has a reason of its own."""

from __future__ import annotations

import pytest

from labkit.cost import wires
from labkit.course import load
from labkit.course.chapter_file import load_chapter
from labkit.course.questions import Choices, Numeric, Order, Question

CHAPTER_FILES = {chapter.name: load_chapter(chapter.name) for chapter in load().written()}
# Of a run, for the questions that need them.
VALUES = {"world_size": 8, "sum_of_parameters": 111_104, "wires": wires, "alpha": 60e-6, "beta": 1 / 5e9}
QUESTIONS = {
    f"{name}: {id}": file.question(id, VALUES) for name, file in CHAPTER_FILES.items() for id in file.questions
}


def of_kind(kind: type[Question]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("name", [name for name, q in QUESTIONS.items() if isinstance(q, kind)])


@of_kind(Numeric)
def test_every_slip_is_met_with_its_own_reason(name: str) -> None:
    question = QUESTIONS[name]
    assert isinstance(question, Numeric)
    for slip in question.slips:
        assert question.mark(repr(slip.value)).why == slip.why


@of_kind(Order)
def test_every_swap_is_met_with_its_own_reason(name: str) -> None:
    question = QUESTIONS[name]
    assert isinstance(question, Order)
    for slip in question.slips:
        order = [item for item in question.items if item != slip.before]
        order.insert(order.index(slip.after), slip.before)
        assert question.mark(order).why == slip.why


@of_kind(Choices)
def test_every_wrong_choice_has_its_own_reason(name: str) -> None:
    question = QUESTIONS[name]
    assert isinstance(question, Choices)
    reasons = [choice.why for choice in question.choices if not choice.right]
    assert reasons and all(reasons) and len(set(reasons)) == len(reasons)


@pytest.mark.parametrize("name", CHAPTER_FILES)
def test_a_chapter_asks_in_all_five_ways_and_not_too_much(name: str) -> None:
    asked = [q for where, q in QUESTIONS.items() if where.startswith(f"{name}: ")]
    assert {q.kind for q in asked} == {"choice", "several", "numeric", "order", "text"}
    assert 10 <= len(asked) <= 14
    assert CHAPTER_FILES[name].predictions
