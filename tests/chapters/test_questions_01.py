"""The questions of chapter 1: keys beside numbers worked out by hand, and words that readers use."""

from __future__ import annotations

import pytest

from labkit.course.chapter_file import load_chapter
from labkit.course.questions import Choices, Numeric, Question

CHAPTER = load_chapter("01_why_distribute")
VALUES = {"world_size": 4}
QUESTIONS: dict[str, Question] = {id: CHAPTER.question(id, VALUES) for id in CHAPTER.questions}


@pytest.mark.parametrize(
    ("id", "typed"),
    [
        ("thirteen-billion", "208 GB"),
        ("gpus-for-seventy", "8"),  # 70 x 16 = 1120 GB, over 141 GB
        ("thirty-percent", "11.2"),
    ],
)
def test_a_key_is_what_a_hand_works_out(id: str, typed: str) -> None:
    assert QUESTIONS[id].mark(typed).right


def test_predictions_declare_what_the_run_of_the_chapter_shows() -> None:
    assert CHAPTER.forecast("training-state", {"params": 1_000_000}).declared == (4, 16)
    job = {"compute": 0.16, "nbytes": 1_000_000, "bandwidth": 100e6, "latency": 1e-4, "sizes": [1, 2, 4, 8, 16]}
    sketch = CHAPTER.forecast("efficiency", VALUES | job).declared
    # 16 ranks: 10 ms of kernel, 30 latencies of 0.1 ms, and 15/8 of the 10 ms that 1 MB takes.
    assert sketch == pytest.approx((100, 80 / 90.2 * 100, 40 / 55.6 * 100, 20 / 38.9 * 100, 10 / 31.75 * 100))
    assert CHAPTER.forecast("layers-alone", VALUES).declared == (1,)


def test_the_questions_choices_are_right() -> None:
    right = {id: {c.text for c in q.choices if c.right} for id, q in QUESTIONS.items() if isinstance(q, Choices)}
    assert right["cut-a-matrix"] == {"tensor parallelism"}
    assert right["signals-of-speech"] == {"It takes too long.", "It has too much data."}
    assert right["batch-doubled"] == {"activations", "activations at the borders of checkpointed layers"}
    # A step computes 60 ms and communicates 100 ms, of which 0 to 60 ms are hidden.
    assert right["what-hides"] == {f"a step of {ms} ms" for ms in (160, 120, 100, 60, 40) if 160 - 60 <= ms <= 160}


@pytest.mark.parametrize("typed", ["synchronization", "Synchronisation", "sync", "T_sync", "coordination", "waiting"])
def test_the_term_of_the_slowest_may_be_named_in_many_ways(typed: str) -> None:
    assert QUESTIONS["slow-rank-term"].mark(typed).right


@pytest.mark.parametrize("typed", ["computing", "T_compute", "communication", "T_comm", "overlap"])
def test_another_term_is_told_apart(typed: str) -> None:
    told = QUESTIONS["slow-rank-term"].mark(typed)
    assert not told.right and not told.why.endswith("is not it.")


def test_no_key_depends_on_the_number_of_ranks() -> None:
    for size in (2, 3, 5):
        for id, question in QUESTIONS.items():
            other = CHAPTER.question(id, {"world_size": size})
            if isinstance(question, Numeric) and isinstance(other, Numeric):
                assert other.answer == question.answer
