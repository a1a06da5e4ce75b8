"""The case file on the page: nothing is told that was not bought, buttons, typed verdicts, the declared path."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from labkit import book
from labkit.course.casefile import Case, Evidence, Suspect
from labkit.course.errors import CourseError

CAUSES = {"frozen": "it froze", "lost": "it lost a message"}


def some(*pairs: tuple[int, str]) -> frozenset[Suspect]:
    return frozenset(Suspect(*pair) for pair in pairs)


@pytest.fixture
def board() -> book.CaseFile:
    evidence = [
        Evidence("log", "The log", 1, "- all the same\n- or so", some((0, "lost"), (1, "lost"), (1, "frozen"))),
        Evidence("ping", "Who answers", 5, "everybody answers", some((0, "lost"), (1, "lost"))),
        Evidence("card", "A test", 30, "the card of rank 1 fails", some((1, "lost"), (1, "frozen")), "emulated"),
    ]
    return book.case(Case("Case A", "It stands still.", CAUSES, 2, evidence, Suspect(1, "lost")))


def page(board: book.CaseFile) -> str:
    """All that a browser holds, and all that an output shows."""
    return json.dumps(board.form.items) + str(board._repr_mimebundle_()) + repr(board)


def test_nothing_is_in_the_page_that_was_not_bought(board: book.CaseFile) -> None:
    assert all(word not in page(board) for word in ("all the same", "everybody answers", "the card of"))
    board.form.act("ping", "buy")
    assert "everybody answers" in page(board) and "the card of" not in page(board)
    assert "It was rank" not in page(board)


def test_a_price_is_shown_and_paid_once(board: book.CaseFile) -> None:
    item = board.form.item("log")
    assert item["buttons"][0]["label"] == "Buy for 1 minute" and not item["locked"]
    item = board.form.act("log", "buy")
    assert item["state"] == "done" and item["locked"] and "<li>all the same</li>" in item["feedback"]
    board.form.act("log", "buy")
    assert "1 minute of the fleet so far: 273 GPU hours" in board.form.item("verdict")["feedback"]


@pytest.mark.parametrize("typed", [["1", "b"], ["rank 1", "(B)"], [" 1", "lost"]])
def test_a_verdict_may_be_typed_in_many_ways(board: book.CaseFile, typed: list[str]) -> None:
    item = board.form.act("verdict", "submit", typed)
    assert item["state"] == "right" and "It was rank 1: it lost a message." in item["feedback"]


@pytest.mark.parametrize(("typed", "said"), [(["one", "b"], "number from 0 to 1"), (["1", "z"], "letters a, b"),
                                             (["7", "b"], "0 to 1")])  # fmt: skip
def test_what_is_no_verdict_is_said_and_costs_nothing(board: book.CaseFile, typed: list[str], said: str) -> None:
    item = board.form.act("verdict", "submit", typed)
    assert item["state"] == "open" and said in item["feedback"]
    assert "0 minutes" in board._verdict()["feedback"]


def test_a_wrong_verdict_is_paid_and_another_may_be_given(board: book.CaseFile) -> None:
    item = board.form.act("verdict", "submit", ["0", "b"])
    assert item["state"] == "wrong" and "restarted" in item["feedback"] and "It was" not in item["feedback"]
    assert board.form.act("verdict", "submit", ["1", "b"])["state"] == "right"
    rows = board.story()
    assert [row["minutes"] for row in rows] == [0.0, 10.0, 0.0, 10.0, 35.0]


def test_who_gives_up_is_told(board: book.CaseFile) -> None:
    item = board.form.act("verdict", "reveal")
    assert item["state"] == "done" and "It was rank 1: it lost a message." in item["feedback"]
    board.require()
    assert board.story().caption == "Case A. rank 1, lost: it lost a message"


def test_after_the_verdict_all_else_may_be_seen_and_nothing_is_paid(board: book.CaseFile, capsys) -> None:
    board.form.act("log", "buy")
    board.form.act("verdict", "submit", ["1", "b"])
    item = board.form.item("ping")
    assert item["buttons"][0]["label"] == "Look at it now, for nothing" and "everybody answers" not in page(board)
    item = board.form.act("ping", "buy")
    assert item["state_text"] == "Seen, for nothing (measured)" and "everybody answers" in item["feedback"]
    assert board.form.item("log")["state_text"] == "Bought (measured)"
    board.buy("card")
    assert "the card of rank 1 fails" in board.form.item("card")["feedback"]
    assert "1 minute of the fleet" in board.form.item("verdict")["feedback"]
    assert [row["minutes"] for row in board.story()] == [0, 1, 0, 1, 35]


def test_with_a_reader_there_the_truth_waits_for_the_verdict(board, monkeypatch) -> None:
    monkeypatch.setenv("LABKIT_HEADLESS", "0")
    with pytest.raises(book.VerdictFirst, match="Case A waits for your verdict"):
        board.require()
    board.accuse(1, "b")
    board.require()


def test_headless_the_declared_path_is_followed(board, monkeypatch, capsys) -> None:
    monkeypatch.setenv("LABKIT_HEADLESS", "1")
    board.require()
    assert "declared path" in capsys.readouterr().out
    rows = board.story()
    assert [row.get("(rank, cause) pairs left") for row in rows][:4] == [4, 3, 2, 1]
    assert [row.get("what it showed") for row in rows][:4] == [
        "2 ranks, 2 causes", "all the same; or so", "everybody answers", "the card of rank 1 fails",
    ]  # fmt: skip
    assert rows[-1]["paid for"] == "in hindsight enough: Who answers and A test" and rows[-1]["minutes"] == 35
    assert "Right. It was rank 1: it lost a message." in repr(board)


def test_evidence_may_be_bought_from_a_cell(board, capsys) -> None:
    board.buy("card")
    assert "A test, 30 min [emulated]\nthe card of rank 1 fails" in capsys.readouterr().out


def test_a_case_like_an_earlier_one_is_told_in_a_line_until_something_is_bought(board, monkeypatch) -> None:
    monkeypatch.setenv("LABKIT_HEADLESS", "1")
    old = board._case
    new = Case("Case B", old.symptom, old.causes, old.size, old.evidence.values(), Suspect(1, "lost"))
    file = book.case(new, like=old)
    assert repr(file) == "Case B. The symptom, the offers, the prices and the causes are those of Case A."
    assert "Who answers" not in str(file._repr_mimebundle_()) and "Who answers" in json.dumps(file.form.items)
    file.buy("log")
    assert "all the same" in repr(file) and "Who answers" in str(file._repr_mimebundle_())


def test_a_case_with_other_offers_is_not_like_the_earlier_one(board) -> None:
    old = board._case
    evidence = [replace(e, minutes=e.minutes + 1) for e in old.evidence.values()]
    with pytest.raises(CourseError, match="not those of 'Case A'"):
        book.case(Case("Case B", old.symptom, old.causes, old.size, evidence, Suspect(1, "lost")), like=old)
