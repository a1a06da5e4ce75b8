"""`labkit progress`: what was done, of how many, and what to do next."""

import json

import pytest
from small_books import cell, write

from labkit.commands.progress import NOTHING, what_next
from labkit.course import load
from labkit.course.chapter_file import load_chapter
from labkit.course.progress import Progress

NAME = "03_collectives"


@pytest.fixture
def reader(notebooks):
    """The reader's progress; there are chapters 3, which asks questions, and 5, a stranger to the course."""
    (notebooks / "03_tiny.ipynb").rename(notebooks / f"{NAME}.ipynb")
    return Progress.of_reader()


def rows(labkit):
    code, out, err = labkit("progress", "--json")
    assert code == 0, err
    told = json.loads(out)
    return {row["chapter"]: row for row in told["chapters"]}, told


def test_what_was_done_is_counted(labkit, reader):
    reader.opened(NAME)
    reader.predicted(NAME, "a", [1])
    reader.skipped(NAME, "b")
    reader.answered(NAME, "q1", "x", False)
    reader.answered(NAME, "q1", "y", True)
    reader.answered(NAME, "q2", "y", True)
    reader.revealed(NAME, "q3")
    found, told = rows(labkit)
    row = found[NAME]
    assert (row["predicted"], row["skipped"], row["right"], row["right_at_once"], row["revealed"]) == (1, 1, 2, 1, 1)
    asked = load_chapter(NAME)
    assert (row["predictions"], row["questions"]) == (len(asked.predictions), len(asked.questions))
    assert row["title"] == load().chapter(3).title and row["opened"] and not row["read"]
    assert told["file"] == str(reader.path)
    assert found["05_other"]["questions"] is None
    code, out, err = labkit("progress")
    line = next(line for line in out.splitlines() if line.startswith(NAME))
    assert f"1 of {len(asked.predictions)}" in line and f"2 of {len(asked.questions)}" in line
    assert "Next: go on with chapter 3, Collectives: labkit lab 3" in out and err == ""


def test_nothing_was_done_yet(labkit, reader):
    found, told = rows(labkit)
    assert [row["opened"] for row in found.values()] == [None, None]
    assert told["next"] == "begin chapter 3, Collectives: labkit lab 3"
    assert not reader.path.exists()  # asking leaves nothing behind


def test_progress_in_a_chapter_that_is_gone_is_still_told(labkit, reader):
    reader.read("07_gone")
    found, _ = rows(labkit)
    assert found["07_gone"]["read"] and not found["07_gone"]["here"]


def test_a_broken_file_is_said_and_not_fatal(labkit, reader):
    reader.path.parent.mkdir(parents=True, exist_ok=True)
    reader.path.write_text("{")
    code, out, err = labkit("progress", "--json")
    assert code == 0 and "could not be read" in err and json.loads(out)["chapters"]


def test_without_any_notebook_the_courses_chapters_count(labkit, reader, notebooks):
    for path in notebooks.glob("*.ipynb"):
        path.unlink()
    assert set(rows(labkit)[0]) == {chapter.name for chapter in load().written()}


def row(name, **more):
    return {**NOTHING, "chapter": name, "title": name, "core": True, "here": True, "questions": 2, **more}


READ = {"opened": "2026-01-01", "read": "2026-01-02"}
CASES = {
    "go on with what was begun last": ([row("01_a", opened="x"), row("02_b", opened="x")], "go on with chapter 2"),
    "answer what is open": ([row("01_a", **READ, right=0), row("02_b")], "2 questions are not answered right"),
    "one question": ([row("01_a", **READ, right=1)], "a question is not answered right yet in chapter 1"),
    "begin the next": ([row("01_a", **READ, right=2), row("02_b"), row("03_c")], "begin chapter 2"),
    "core first": ([row("01_a", core=False), row("02_b")], "begin chapter 2"),
    "only optional is left": ([row("01_a", **READ, right=2), row("02_b", core=False)], "begin chapter 2"),
    "a chapter that is not here": ([row("01_a", here=False), row("02_b")], "begin chapter 2"),
    "all done": ([row("01_a", **READ, right=2)], "every chapter that there is"),
    "no questions known": ([row("01_a", **READ, questions=None)], "every chapter that there is"),
}


@pytest.mark.parametrize("case", CASES)
def test_one_thing_to_do_next(case):
    given, expected = CASES[case]
    assert expected in what_next(given)


def test_a_new_chapter_appears_at_once(labkit, reader, notebooks):
    write(notebooks / "01_why_distribute.ipynb", cell("a", "1"))
    assert rows(labkit)[1]["next"].startswith("begin chapter 1, Why distribute")
