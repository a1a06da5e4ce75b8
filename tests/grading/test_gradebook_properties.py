"""Sheets and differences for any text and any marks: nothing is lost, and nothing is a formula."""

import csv
import io
import json
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st
from sample_class import graded, result, small_class

from labkit.grading.gradebook import GradebookOptions, write
from labkit.grading.gradebook.book import make_book
from labkit.grading.gradebook.changes import changes_csv, changes_txt, differences
from labkit.grading.gradebook.names import Names
from labkit.grading.gradebook.overrides import Override
from labkit.grading.gradebook.policy import LatePolicy, read_moment
from labkit.grading.gradebook.report import grades_json
from labkit.grading.gradebook.rubric import sheet
from labkit.grading.gradebook.sheets import guarded, read, unguarded, written
from labkit.grading.gradebook.tables import grades_csv
from labkit.grading.gradebook.text import clean
from labkit.grading.grader.results import TO_MARK

texts = st.one_of(st.text(), st.text(alphabet="=+-@' \t\n\r,;\"a＝"))
FORMULA = set("=+-@＝＋－＠\t\n\r")


@given(texts)
def test_a_guarded_text_comes_back_and_is_no_formula(text):
    cell = guarded(text)
    assert unguarded(cell) == clean(text)
    assert cell.strip(" ")[:1] not in FORMULA


@given(st.lists(st.fixed_dictionaries({"student": texts, "b": texts, "c": st.one_of(st.none(), st.floats(0, 100))})))
def test_what_is_written_is_read(tmp_path_factory, rows):
    path = tmp_path_factory.getbasetemp() / "sheet.csv"
    path.write_text(written(["student", "b", "c"], rows), encoding="utf-8", newline="")
    back = [row for _, row in read(path, ["student", "b", "c"])]
    assert [(row["student"], row["b"]) for row in back] == [
        (clean(row["student"]), clean(row["b"]))
        for row in rows
        if row["c"] is not None or (guarded(row["student"]) + guarded(row["b"])).strip()  # an empty row is none
    ]


@given(texts)
def test_no_cell_of_any_sheet_is_a_formula(text):
    one = result(text, graded("ring", "wrong", sentence=text), graded("why", TO_MARK, text=text), problems=[text])
    book = make_book([one], GradebookOptions(), Names({}, False))
    for table in (grades_csv(book), sheet(book.responses, book.marks, Names({}, False))):
        for row in csv.reader(io.StringIO(table, newline="")):
            assert all(cell.strip(" ")[:1] not in FORMULA for cell in row if cell)


marks = st.dictionaries(
    st.sampled_from(["ada", "bob", "cem", "=dan"]),
    st.dictionaries(st.sampled_from(["ring", "tree", "why"]), st.integers(0, 8).map(lambda n: n / 2), min_size=1),
)


def report(points):
    results = [
        result(
            student,
            *(graded(id, "partly" if n else "wrong", n, of=4.0) for id, n in sorted(each.items())),
            sha256=student,
        )
        for student, each in points.items()
    ]
    return grades_json(make_book(results, GradebookOptions(), Names({}, False)))


@given(marks, marks)
def test_differences_add_up_to_what_the_scores_changed_by(before, after):
    a, b = report(before), report(after)
    found = differences(a, b)
    assert differences(a, a) == []
    scores = [{row["student_id"]: row["score"] for row in json.loads(each)["students"]} for each in (a, b)]
    for student in {*scores[0], *scores[1]}:
        moved = sum(change.change for change in found if change.student == student)
        assert moved == pytest.approx(scores[1].get(student, 0) - scores[0].get(student, 0))
    assert [(c.student, c.notebook, c.exercise, -c.change) for c in found] == \
        [(c.student, c.notebook, c.exercise, c.change) for c in differences(b, a)]  # fmt: skip
    assert len(list(csv.DictReader(io.StringIO(changes_csv(found), newline="")))) == len(found)
    assert len(changes_txt(found).splitlines()) == 1 + sum(c.state_before != "not there" for c in found)


def test_a_difference_says_why(tmp_path):
    assert write(tmp_path, small_class()).changes == ()
    assert not (tmp_path / "changes.csv").exists()
    assert write(tmp_path, small_class()).summary.count("No mark changed.") == 1
    ada, bob, cem = small_class()
    fixed = replace(bob, exercises=(graded("ring", check_hash="beef"), *bob.exercises[1:]))
    again = replace(
        cem, exercises=(graded("ring"), *cem.exercises[1:]), submission=replace(cem.submission, sha256="f" * 64)
    )
    options = GradebookOptions(overrides=(Override("ada", "tree", 1.0, "Copied"),))
    found = write(tmp_path, [ada, fixed, again], options).changes
    assert [(c.student, c.exercise, c.before, c.after, c.why) for c in found] == [
        ("ada", "tree", 4.0, 1.0, "set by the instructor"),
        ("bob", "ring", 1.0, 2.0, "other checks"),
        ("cem", "ring", 0.0, 2.0, "another submission"),
    ]
    assert "ada, 03_collectives, tree: 4 (right) -> 1 (partly) (-3; set by the instructor)" in \
        (tmp_path / "changes.txt").read_text()  # fmt: skip
    with (tmp_path / "changes.csv").open(newline="") as file:
        assert [row["change"] for row in csv.DictReader(file)] == ["-3", "1", "2"]


def test_lateness_is_a_change_of_its_own_and_what_is_new_is_only_counted(tmp_path):
    late = result("ada", graded("ring", of=10.0), graded("tree", of=10.0))
    write(tmp_path, [late])
    options = GradebookOptions(deadline=read_moment("2026-11-20T12:00+00:00"), late=LatePolicy(percent_per_day=10))
    found = write(tmp_path, [late, result("bob", graded("ring", of=10.0))], options).changes
    assert [(c.student, c.exercise, c.change) for c in found if c.student == "ada"] == [("ada", "(lateness)", -2.0)]
    told = (tmp_path / "changes.txt").read_text().splitlines()
    assert told == [
        "1 mark changed, of 1 student. 3 marks of what was not there before.",
        "ada, 03_collectives, (lateness): 0 (0 percent) -> -2 (10 percent) (-2; deadline, time of receipt, or points)",
    ]


def test_a_report_that_cannot_be_read_is_said_and_replaced(tmp_path):
    write(tmp_path, small_class())
    (tmp_path / "grades.json").write_text('{"schema": 99}')
    written = write(tmp_path, small_class())
    assert "cannot be compared with: its schema is 99" in written.summary
    assert write(tmp_path, small_class()).problems == ()
