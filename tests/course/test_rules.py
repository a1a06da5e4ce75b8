"""A chapter file that breaks a rule is refused, with file, entry and rule."""

from __future__ import annotations

from pathlib import Path

import pytest
from course.sample import SAMPLE, VALUES, chapter

from labkit.course.chapter_file import load_chapter, read_chapter
from labkit.course.errors import CourseError
from labkit.course.file import ROOMS

CHOICES = """choices = [
    { text = "alpha", right = true }, { text = "beta", why = "WHY-BETA" }, { text = "gamma", why = "WHY-GAMMA" },
]"""
BOX = '[[prediction]]\nid = "{}"\nkind = "number"\nprompt = "p"\nboxes = [ {{ label = "l", answer = "1" }} ]\n'


def test_the_sample_is_in_order(tmp_path: Path) -> None:
    loaded = chapter(tmp_path)
    assert list(loaded.predictions) == ["bytes", "who-waits", "bubble"]
    assert [loaded.question(id, VALUES).kind for id in loaded.questions] == [
        "choice",
        "several",
        "numeric",
        "order",
        "text",
    ]


@pytest.mark.parametrize(
    ("old", "new", "entry", "rule"),
    [
        (CHOICES, CHOICES.replace(', why = "WHY-BETA"', ""), "pick-one", "'beta' is wrong, and has no why"),
        (
            CHOICES,
            CHOICES.replace("right = true", 'right = true, why = "w"'),
            "pick-one",
            "'alpha' is right, and needs no why",
        ),
        (CHOICES, CHOICES.replace('why = "WHY-BETA"', "right = true"), "pick-one", "exactly one"),
        (CHOICES, CHOICES.replace("right = true", 'why = "w"'), "pick-one", "0 choices are right"),
        (CHOICES, CHOICES.replace('"beta"', '"alpha"'), "pick-one", "two choices are the same"),
        (CHOICES, CHOICES.replace('why = "WHY-BETA"', 'why = "w", missed = "m"'), "pick-one", "nobody can miss it"),
        (CHOICES, 'choices = [ { text = "alpha", right = true } ]', "pick-one", "at least two choices"),
        (CHOICES, CHOICES.replace("why", "because", 1), "pick-one, choices", "'because' means nothing here"),
        ('explanation = "EXPLAINED-ONE"\n', "", "pick-one", "explanation is missing"),
        ('explanation = "EXPLAINED-ONE"\n', 'explanation = " "\n', "pick-one", "explanation is empty"),
        ('prompt = "Which one', 'promt = "Which one', "pick-one", "prompt is missing"),
        ('id = "pick-one"', 'id = "pick-one"\nhint = "h"', "pick-one", "'hint' means nothing here"),
        ('id = "pick-one"', 'id = "bytes"', "number 1", "'bytes' stands in the file twice"),
        ('id = "pick-one"', 'id = "Pick One"', "number 1", "lower-case words"),
        ('kind = "several"', 'kind = "sevral"', "pick-some", "did you mean 'several'"),
        ("{world_size} ranks?", "{world_size ranks?", "pick-one, prompt", "never closed"),
        ("{world_size} ranks?", "{world size} ranks?", "pick-one, prompt", "no Python expression"),
        ("tolerance = 0.01", "tolerance = 1.5", "a-number", "tolerance 1.5"),
        ("tolerance = 0.01", 'tolerance = "1"', "a-number", "wrong type"),
        ('n = "5"', "n = 5", "a-number", "gives names to expressions"),
        ('n = "5"', 'n = "5 +"', "a-number, with n", "no Python expression"),
        ('answer = "cost.ring', 'answer = "cost..ring', "a-number, answer", "no Python expression"),
        ('before = "update"', 'before = "updating"', "in-order", "none of the items"),
        (
            'before = "update", after = "all-reduce"',
            'before = "forward", after = "update"',
            "in-order",
            "that is no slip",
        ),
        ('"forward", "backward"', '"forward", "forward"', "in-order", "all different"),
        ('["reduce-?scatter", "scatter-by-sum", "Scatter_And_Add"]', '["(reduce"]', "a-word", "no pattern"),
        ('["reduce-?scatter", "scatter-by-sum", "Scatter_And_Add"]', "[]", "a-word", "accept is empty"),
        ('{ label = "messages"', '{ label = "MB from each"', "bytes", "same label"),
        (
            'choices = ["nobody", "rank 0", "all but rank 0"]',
            'choices = [{ text = "nobody" }, "x"]',
            "who-waits",
            "plain texts",
        ),
        ('x = "[1, 2, 4, 8]"', "x = [1, 2, 4, 8]", "bubble", "x = [1, 2, 4, 8] is of the wrong type"),
    ],
)
def test_a_broken_rule_names_file_entry_and_rule(tmp_path: Path, old: str, new: str, entry: str, rule: str) -> None:
    assert old in SAMPLE
    with pytest.raises(CourseError) as told:
        chapter(tmp_path, SAMPLE.replace(old, new, 1))
    said = str(told.value)
    assert said.startswith("99_sample, ") and entry in said and rule in said


def test_a_fourth_prediction_is_refused(tmp_path: Path) -> None:
    three = "".join(BOX.format(f"p{n}") for n in range(3))
    assert len(chapter(tmp_path, three).predictions) == 3
    with pytest.raises(CourseError, match="99_sample, p3: a chapter has at most 3 predictions"):
        chapter(tmp_path, three + BOX.format("p3"))


@pytest.mark.parametrize(
    ("old", "new", "id", "rule"),
    [
        ('answer = "2"', 'answer = "3"', "who-waits", "no position among 3 choices"),
        ('answer = "2"', 'answer = "True"', "who-waits", "no position among 3 choices"),
        ("[81.125, 67.5, 43.25, 27.375]", "[81.125, 67.5]", "bubble", "one answer a column"),
        ("[0, 25, 50, 75, 100]", "[100, 0]", "bubble", "low to high"),
        ('answer = "617.25"', "answer = \"'many'\"", "bytes", "which is no number"),
        ('answer = "617.25"', 'answer = "inf"', "bytes", "a finite number"),
    ],
)
def test_a_wrong_key_is_found_when_the_question_is_asked(
    tmp_path: Path, old: str, new: str, id: str, rule: str
) -> None:
    loaded = chapter(tmp_path, SAMPLE.replace(old, new, 1))
    with pytest.raises(CourseError, match=f"99_sample, {id}: .*{rule}"):
        loaded.forecast(id, VALUES)


def test_an_unknown_name_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(CourseError, match="no question 'pick-won' .did you mean 'pick-one'.*a-word"):
        chapter(tmp_path).question("pick-won", VALUES)
    with pytest.raises(CourseError, match="no chapter '03_colectives' .did you mean '03_collectives'"):
        load_chapter("03_colectives")


def test_no_toml_is_said_with_the_line(tmp_path: Path) -> None:
    with pytest.raises(CourseError, match=r".*questions.toml is not valid TOML: .*line 1"):
        chapter(tmp_path, "id = \n")


@pytest.mark.parametrize("path", sorted(ROOMS.glob("c*/questions.toml")), ids=lambda p: p.parent.name)
def test_every_chapter_file_of_the_book_is_in_order(path: Path) -> None:
    loaded = read_chapter(path)
    assert loaded.questions
