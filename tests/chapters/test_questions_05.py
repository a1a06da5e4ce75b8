"""The questions of chapter 5: keys beside numbers worked out by hand, and what their texts claim."""

from __future__ import annotations

import pytest
import torch

from labkit.course.chapter_file import load_chapter
from labkit.course.questions import Question

CHAPTER = load_chapter("05_zero_and_fsdp")
QUESTIONS: dict[str, Question] = {id: CHAPTER.question(id, {}) for id in CHAPTER.questions}


@pytest.mark.parametrize(
    ("id", "typed"),
    [
        ("which-stage-fits", "13 * (2 + 14 / 32)"),
        ("sent-by-three", "3 * 7 / 8 * 14"),  # 14 GB of parameters in 16 bits
        ("whole-at-once", "2 * 0.4"),  # 0.2B parameters a block, 2 bytes each
        ("hybrid-bytes", "2 * 3 / 4 * 14 / 8"),
    ],
)
def test_a_key_is_what_a_hand_works_out(id: str, typed: str) -> None:
    assert QUESTIONS[id].mark(typed).right


@pytest.mark.parametrize(
    ("id", "typed", "word"),
    [
        ("which-stage-fits", "6.5", "ZeRO-3"),
        ("which-stage-fits", "26", "limit"),
        ("sent-by-three", "42", "limit of many ranks"),
        ("whole-at-once", "0.4", "one block"),
        ("hybrid-bytes", "21", "all 8 GPUs"),
    ],
)
def test_a_known_slip_is_told_its_reason(id: str, typed: str, word: str) -> None:
    told = QUESTIONS[id].mark(typed)
    assert not told.right and word in told.why


def test_predictions_declare_what_the_run_of_the_chapter_shows() -> None:
    params = 220_544  # of the chapter's model
    held = CHAPTER.forecast("held", {"params": params, "n": 4}).declared
    assert held == pytest.approx((7 * params / 1e6, 5.5 * params / 1e6, 4 * params / 1e6))
    assert CHAPTER.forecast("sent", {"n": 5}).declared == pytest.approx((2, 2, 3))
    assert CHAPTER.forecast("granularity", {"n": 4, "layers": 4}).declared == (9, 45)


def test_where_a_float16_vanishes() -> None:
    """Section 1: its smallest number is about 6e-8. What is below half of that becomes zero; what is above does not."""
    smallest = torch.finfo(torch.float16).smallest_normal * torch.finfo(torch.float16).eps
    assert smallest == pytest.approx(6e-8, rel=0.01)
    rounded = [torch.tensor(x).half().item() for x in (4e-8, 0.501 * smallest, 0.499 * smallest)]
    assert rounded == [smallest, smallest, 0] and 0.5 * smallest == pytest.approx(3e-8, rel=0.01)


def test_an_update_below_half_the_gap_is_lost_in_bfloat16() -> None:
    question = QUESTIONS["swallowed"]
    weight = torch.tensor(0.5, dtype=torch.bfloat16)
    assert weight + 0.0005 == weight and weight + 0.0039 > weight
    assert "0.5039" in question.explanation and "0.002" in question.explanation


@pytest.mark.parametrize(
    "typed", ["activations", "the activations", "Activation memory", "saved tensors", "attention activations"]
)
def test_what_fills_the_memory_may_be_named_in_many_ways(typed: str) -> None:
    assert QUESTIONS["still-out-of-memory"].mark(typed).right


@pytest.mark.parametrize(
    ("typed", "word"),
    [("optimizer state", "not touched"), ("gradients", "none yet"), ("the parameters", "shards"), ("batch", "Near")],
)
def test_what_else_is_in_memory_is_no_answer(typed: str, word: str) -> None:
    told = QUESTIONS["still-out-of-memory"].mark(typed)
    assert not told.right and word in told.why


def test_what_is_reserved_and_not_held_is_told_apart() -> None:
    question = QUESTIONS["reserved-not-held"]
    assert "76 GB" in question.prompt and "48 GB" in question.prompt
    assert "28 GB" in question.explanation  # 76 reserved, 48 held
    assert {c.why.count("56 GB") for c in question.choices if not c.right} == {0, 1}  # 48 held and 8 wanted
