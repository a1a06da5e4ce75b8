"""Marking: right is right, and wrong has a reason."""

from __future__ import annotations

from pathlib import Path

import pytest
from course.sample import SAMPLE, VALUES, chapter
from hypothesis import given, strategies as st

from labkit.course.questions import Choices, Feedback, Order, Question


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Question]:
    loaded = chapter(tmp_path_factory.mktemp("chapter"))
    return {id: loaded.question(id, VALUES) for id in loaded.questions}


def picked(question: Question, *texts: str) -> list[int]:
    assert isinstance(question, Choices)
    return [[c.text for c in question.choices].index(text) for text in texts]


def letters(at: list[int]) -> str:
    return " ".join("abcdefgh"[i] for i in at)


def test_a_choice_is_told_why_it_is_wrong_and_explained_only_when_right(questions: dict[str, Question]) -> None:
    q = questions["pick-one"]
    right, beta = picked(q, "alpha"), picked(q, "beta")
    for value in (right[0], right, letters(right), letters(right).upper() + ")", "alpha"):
        assert q.mark(value) == Feedback(True, "Right.", "EXPLAINED-ONE")
    for value in (beta[0], beta, letters(beta), "beta"):
        assert q.mark(value) == Feedback(False, "WHY-BETA", "")


@pytest.mark.parametrize("value", ["", "z", "a b", 7, -1, [], None, True, 1.0, {}, "alphabet", [[0]], ["a", None]])
def test_what_is_no_pick_is_not_counted(questions: dict[str, Question], value: object) -> None:
    told = questions["pick-one"].mark(value)
    assert not told.right and not told.counted and "Pick one: a to c." in told.why


def test_several_has_a_reason_for_each_wrong_tick_and_a_hint_for_what_was_missed(
    questions: dict[str, Question],
) -> None:
    q = questions["pick-some"]
    assert q.mark(picked(q, "gamma", "alpha")).right
    assert q.mark(letters(picked(q, "alpha", "gamma"))).right
    told = q.mark(picked(q, "gamma", "beta")).why
    assert (
        "1 of 2 found" in told
        and "WHY-BETA" in told
        and "1 more is to be found. A hint for it:\n\nMISSED-ALPHA" in told
    )
    alone = q.mark(picked(q, "gamma")).why
    assert "1 more is to be found. A hint for it:\n\nMISSED-ALPHA" in alone
    assert "WHY-DELTA" not in told and "alpha" not in told.replace("MISSED-ALPHA", "")
    told = q.mark(picked(q, "alpha")).why
    assert told.startswith("1 of 2 found") and "MISSED" not in told
    told = q.mark(picked(q, "beta", "delta")).why
    assert (
        "None of them found yet" in told
        and "WHY-BETA" in told
        and "WHY-DELTA" in told
        and "2 more are to be found. A hint for one of them:" in told
    )
    assert not q.mark(picked(q, "alpha", "beta", "gamma", "delta")).right
    assert not q.mark([]).counted


@pytest.mark.parametrize(
    ("typed", "right", "said"),
    [
        ("64", True, "Right."),
        (64, True, "Right."),
        (["64"], True, "Right."),
        ("0.064 GB", True, "Right."),
        ("2*4/5*40", True, ""),
        ("64.6", True, "Right."),
        ("63.4", True, "Right."),
        ("64.7", False, "64.7 MB is not it."),
        ("63.3", False, "is not it"),
        ("40", False, "WHY-WHOLE"),
        ("32 MB", False, "WHY-HALF"),
        ("32.1", False, "WHY-HALF"),
        ("33", False, "33 MB is not it."),
        ("64 GB", False, "1,000 times too large"),
        ("0.064", False, "1,000 times too small"),
        ("64 MiB", False, "MiB"),
        ("61.035", False, "MiB"),
        ("512", False, "bits and bytes"),
        ("8", False, "bits and bytes"),
        ("-64", False, "The sign is wrong"),
        ("0", False, "0 MB is not it."),
    ],
)
def test_a_number_right_or_wrong(questions: dict[str, Question], typed: object, right: bool, said: str) -> None:
    told = questions["a-number"].mark(typed)
    assert told.right is right and said in told.why and told.counted
    assert told.explanation == ("EXPLAINED-NUMBER" if right else "")


@pytest.mark.parametrize("typed", ["", "many", "64 s", None, [], ["64", "65"], "64 mb", True])
def test_what_is_no_number_is_not_counted(questions: dict[str, Question], typed: object) -> None:
    told = questions["a-number"].mark(typed)
    assert not told.right and not told.counted and told.why


def test_a_slip_that_happens_to_be_right_is_right(tmp_path: Path) -> None:
    text = SAMPLE.replace('n = "5"', 'n = "2"')  # a ring of two sends the whole tensor, as the first slip does
    assert chapter(tmp_path, text).question("a-number", VALUES).mark("40").right


def test_an_answer_of_zero_is_not_met_by_a_small_number_of_anything(tmp_path: Path) -> None:
    text = SAMPLE.replace('answer = "cost.ring_all_reduce_bytes(size, n) / MB"', 'answer = "0"')
    q = chapter(tmp_path, text).question("a-number", VALUES)
    assert q.mark("0").right and not q.mark("0.5").right and not q.mark("64").right


def test_an_order_is_told_the_first_pair_that_stands_the_wrong_way_round(questions: dict[str, Question]) -> None:
    q = questions["in-order"]
    assert isinstance(q, Order)
    assert q.shown_items != q.items and sorted(q.shown_items) == sorted(q.items)
    at = q.shown_items.index
    assert q.mark([at(i) for i in q.items]).right
    assert q.mark(letters([at(i) for i in q.items])).right and q.mark(list(q.items)).right
    told = q.mark([at(i) for i in ("forward", "backward", "update", "all-reduce")])
    assert told == Feedback(False, "WHY-UPDATE")
    told = q.mark(["forward", "all-reduce", "backward", "update"])
    assert told == Feedback(False, "The first 1 is right. “all-reduce” cannot come before “backward”.")
    told = q.mark(["backward", "forward", "all-reduce", "update"])
    assert told == Feedback(False, "“backward” cannot come before “forward”.")


@pytest.mark.parametrize("value", ["", "a b c", "a a b c", [0, 1, 2, 2], [0, 1, 2, 9], None, 3, ["forward"] * 4])
def test_what_is_no_order_is_not_counted(questions: dict[str, Question], value: object) -> None:
    told = questions["in-order"].mark(value)
    assert not told.right and not told.counted and "a b c d" in told.why


@pytest.mark.parametrize(
    "typed", ["reduce-scatter", "Reduce-Scatter!", " reduce   scatter ", "ReduceScatter", "reduce_scatter.", ["x"]]
)
def test_case_space_and_punctuation_of_a_word_do_not_matter(questions: dict[str, Question], typed: object) -> None:
    assert questions["a-word"].mark(typed).right is (typed != ["x"])


@pytest.mark.parametrize(
    ("typed", "said", "counted"),
    [
        ("Scatter", "WHY-SCATTER", True),
        ("reduce scatters", "“reduce scatters” is not it.", True),
        ("...", "Type a word", False),
        ("", "Type a word", False),
        (3, "Type a word", False),
        ("reduce-scatter" * 40, "too long", False),
    ],
)
def test_a_wrong_word(questions: dict[str, Question], typed: object, said: str, counted: bool) -> None:
    told = questions["a-word"].mark(typed)
    assert not told.right and said in told.why and told.counted is counted


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.text(alphabet="abcd ,;"),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=2) | st.tuples(inner),
    max_leaves=6,
)


@given(ANYTHING, st.sampled_from(["pick-one", "pick-some", "a-number", "in-order", "a-word"]))
def test_marking_is_total(questions: dict[str, Question], value: object, id: str) -> None:
    question = questions[id]
    told = question.mark(value)
    assert isinstance(told, Feedback) and told.why
    assert told.counted or not told.right
    assert bool(told.explanation) is told.right
    if told.counted:  # what was counted can be kept, shown again, and is marked alike
        again = question.restored(question.stored(value))
        assert again is not None and question.mark(again) == told


def test_joints_and_capitals_of_a_pattern_do_not_matter_either(questions: dict[str, Question]) -> None:
    assert questions["a-word"].mark("Scatter by sum").right and questions["a-word"].mark("scatter and add").right


def test_an_order_is_never_shown_right(tmp_path: Path) -> None:
    loaded = chapter(
        tmp_path, SAMPLE.replace('"forward", "backward", "all-reduce", "update"', '"all-reduce", "update"')
    )
    for seed in range(20):
        assert loaded.question("in-order", VALUES, seed).shown()["items"] == ["update", "all-reduce"]


def test_the_order_shown_depends_on_the_seed_alone(tmp_path: Path) -> None:
    loaded = chapter(tmp_path)

    def shown(seed: int) -> list[str]:
        return loaded.question("pick-some", VALUES, seed).shown()["choices"]

    assert shown(3) == shown(3)
    assert len({tuple(shown(seed)) for seed in range(20)}) > 5
    assert shown(0) == ["gamma", "alpha", "delta", "beta"]  # on every machine


def test_choices_keep_their_order_where_the_file_says_so(tmp_path: Path) -> None:
    text = SAMPLE.replace('id = "pick-some"', 'id = "pick-some"\nkeep_order = true')
    shown = [chapter(tmp_path, text).question("pick-some", VALUES, seed).shown()["choices"] for seed in range(9)]
    assert all(one == ["alpha", "beta", "gamma", "delta"] for one in shown)
