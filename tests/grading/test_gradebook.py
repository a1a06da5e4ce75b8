"""The gradebook: what each file says of a class, and what people decided about marks."""

import csv
import json
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from sample_class import EVIL, graded, result, small_class

from labkit.course import load
from labkit.grading.gradebook import GradebookOptions, PolicyError, read_options, write
from labkit.grading.gradebook.overrides import Override, read_overrides
from labkit.grading.gradebook.rubric import id_of
from labkit.grading.gradebook.weights import Weight, course_grade, weights_of
from labkit.grading.grader.results import TO_MARK, Given, to_json


def grades(out):
    with (out / "grades.csv").open(newline="", encoding="utf-8") as file:
        return {row["student_id"]: row for row in csv.DictReader(file)}


def sheet(out):
    with (out / "rubric.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def fill(path, rows, delimiter=","):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0], delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)
    return path


def override(*rows):
    return GradebookOptions(overrides=tuple(Override(*row, where="overrides.toml, override 1") for row in rows))


# -- grades.csv, grades.json, junit.xml -------------------------------------------------------------------------------


def test_a_row_a_student_and_a_column_an_exercise(tmp_path):
    write(tmp_path, small_class())
    rows = grades(tmp_path)
    assert list(rows) == ["ada", "bob", "cem"]
    columns = list(rows["ada"])
    assert columns[:6] == ["student_id", "ring", "tree", "why", "score", "max_score"]
    assert [rows["ada"][name] for name in columns[1:6]] == ["2", "4", "", "6", "6"]
    assert [rows["cem"][name] for name in columns[1:6]] == ["0", "0", "0", "0", "14"]


def test_a_response_that_waits_counts_neither_for_nor_against(tmp_path):
    written = write(tmp_path, small_class())
    assert (grades(tmp_path)["ada"]["to_mark"], grades(tmp_path)["cem"]["to_mark"]) == ("8", "0")
    assert "to mark by hand: 2 responses" in written.summary
    entry = json.loads((tmp_path / "grades.json").read_text())["students"][0]["notebooks"][0]["exercises"][2]
    assert (entry["state"], entry["points"]) == (TO_MARK, None)


def test_a_student_of_the_roster_who_handed_in_nothing_has_a_row_of_zeros(tmp_path):
    write(tmp_path, small_class(), GradebookOptions(roster=("zoe", "ada")))
    rows = grades(tmp_path)
    assert list(rows) == ["ada", "bob", "cem", "zoe"]
    assert [rows["zoe"][name] for name in ("ring", "tree", "why", "score", "max_score", "to_mark")] == \
        ["0", "0", "0", "0", "14", "0"]  # fmt: skip
    assert rows["zoe"]["notes"] == "No submission."


def test_an_exercise_without_a_record_is_zero(tmp_path):
    one, two = result("ada", graded("ring"), graded("tree", of=4.0)), result("bob", graded("ring"))
    write(tmp_path, [one, two])
    row = grades(tmp_path)["bob"]
    assert (row["tree"], row["score"], row["max_score"]) == ("0", "2", "6")


def test_exercises_of_one_name_go_with_their_notebooks_and_so_does_one_named_like_a_column(tmp_path):
    first = result("ada", graded("ring"), graded("score"), notebook="02_ranks_and_messages")
    write(tmp_path, [first, result("ada", graded("ring"), graded("tree"))])
    assert list(grades(tmp_path)["ada"])[1:5] == [
        "02_ranks_and_messages/ring", "02_ranks_and_messages/score", "03_collectives/ring", "tree",
    ]  # fmt: skip


def test_the_same_marks_give_the_same_bytes_in_any_order(tmp_path):
    first, second = tmp_path / "a", tmp_path / "b"
    more = [*small_class(), result("ada", graded("deadlock"), notebook="02_ranks_and_messages")]
    write(first, more)
    write(second, more[::-1])
    names = sorted(path.relative_to(first) for path in first.rglob("*") if path.is_file())
    assert names == sorted(path.relative_to(second) for path in second.rglob("*") if path.is_file())
    assert all((first / name).read_bytes() == (second / name).read_bytes() for name in names)


def test_what_no_file_can_hold_is_replaced(tmp_path):
    bad = graded("ring", "wrong", sentence="a\ud800\x00b\x1b[31m", detail="\ufffe\x08", output="\udfff")
    write(tmp_path, [result("e\x00v\u202ee", bad, graded("why", TO_MARK, text="\r\x00"))])
    ET.parse(tmp_path / "junit.xml")
    assert list(grades(tmp_path)) == ["e\ufffdv\ufffde"]
    assert "\x00" not in (tmp_path / "grades.json").read_text() + (tmp_path / "rubric.csv").read_text()


def test_junit_has_a_suite_a_student_and_says_what_is_wrong(tmp_path):
    write(tmp_path, small_class(), GradebookOptions(roster=("zoe",)))
    root = ET.parse(tmp_path / "junit.xml").getroot()
    suites = {suite.get("name"): suite for suite in root.iter("testsuite")}
    assert list(suites) == ["ada", "bob", "cem", "zoe"]
    counts = {name: [s.get(key) for key in ("tests", "failures", "errors", "skipped")] for name, s in suites.items()}
    assert counts == {
        "ada": ["3", "0", "0", "1"],
        "bob": ["3", "1", "1", "1"],
        "cem": ["3", "1", "0", "2"],
        "zoe": ["3", "3", "0", "0"],
    }
    assert suites["bob"].find(".//error").get("message") == EVIL
    assert root.get("tests") == "12" and root.get("failures") == "5"
    assert suites["bob"].find(".//property[@name='score']").get("value") == "1"


def test_a_record_of_a_file_that_was_not_there_is_no_submission(tmp_path):
    problem = "No 03_collectives.ipynb was handed in. There is 'ex3.ipynb': is that it? Then rename it."
    gone = result("bob", graded("ring", "unattempted"), problems=[problem])
    gone = replace(gone, submission=replace(gone.submission, file="", sha256=""))
    written = write(tmp_path, [result("ada", graded("ring")), gone])
    assert grades(tmp_path)["bob"]["notes"] == f"No submission. 03_collectives: {problem}"
    assert "no submission: 1" in written.summary
    page = (tmp_path / "feedback" / "bob.html").read_text()
    assert "nothing handed in" in page and "is that it?" in page


def test_where_the_grader_failed_there_are_no_points_yet_and_no_zero(tmp_path):
    trouble = Given("grader", "result", 0, 0, "This could not be graded: OSError", "error")
    failed = replace(graded("ring", "error"), marks=(trouble,), check_hash="")
    written = write(tmp_path, [result("ada", failed, graded("tree", of=4.0))])
    row = grades(tmp_path)["ada"]
    assert [row[name] for name in ("ring", "score", "max_score", "to_mark")] == ["", "4", "4", "2"]
    assert "ring: could not be graded yet." in row["notes"]
    assert "could not be graded: 1 answer" in written.summary and "to mark by hand" not in written.summary
    assert ET.parse(tmp_path / "junit.xml").getroot().get("errors") == "1"
    assert "could not be graded yet" in (tmp_path / "feedback" / "ada.html").read_text()
    write(tmp_path, [result("ada", failed)], override(("ada", "ring", 2.0, "Graded by hand")))
    assert grades(tmp_path)["ada"]["score"] == "2"


def test_other_chapters_of_earlier_runs_stay_in_the_gradebook(tmp_path):
    before = result("ada", graded("deadlock"), notebook="02_ranks_and_messages")
    same = result("bob", graded("ring"))  # of the notebook that is graded now: only what is given counts
    for one in (before, same):
        path = tmp_path / "results" / one.student / f"{one.notebook}.json"
        path.parent.mkdir(parents=True)
        path.write_text(to_json(one))
    (tmp_path / "results" / "ada" / "01_why_distribute.json").write_text("{}")
    written = write(tmp_path, [result("ada", graded("ring"))])
    assert list(grades(tmp_path)) == ["ada"]
    assert grades(tmp_path)["ada"]["score"] == "4" and grades(tmp_path)["ada"]["deadlock"] == "2"
    assert "results/ada/01_why_distribute.json: not a result" in written.summary


# -- overrides --------------------------------------------------------------------------------------------------------


def test_an_override_is_stronger_than_checks_and_its_reason_is_in_the_row(tmp_path):
    write(tmp_path, small_class(), override(("bob", "tree", 3.0, "The statement was unclear")))
    row = grades(tmp_path)["bob"]
    assert (row["tree"], row["score"]) == ("3", "4")
    assert "tree: set to 3. The statement was unclear." in row["notes"]


def test_an_override_settles_a_response_that_waits(tmp_path):
    write(tmp_path, small_class(), override(("ada", "why", 7.0, "Oral exam")))
    row = grades(tmp_path)["ada"]
    assert (row["why"], row["to_mark"], row["max_score"]) == ("7", "0", "14")


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (("zed", "tree", 3.0, "r"), "there is no student 'zed'"),
        (("bob", "treee", 3.0, "r"), "there is no exercise 'treee'"),
        (("bob", "tree", 5.0, "r"), "5 points for tree, which has 4"),
    ],
)
def test_an_override_that_fits_nothing_is_said_and_changes_nothing(tmp_path, row, said):
    written = write(tmp_path, small_class(), override(row))
    assert said in "".join(written.problems) and said in written.summary
    assert grades(tmp_path)["bob"]["tree"] == "0"


def test_overrides_are_read_from_toml_and_from_csv(tmp_path):
    toml = tmp_path / "o.toml"
    toml.write_text('[[override]]\nstudent = "ada"\nexercise = "ring"\npoints = 1.5\nreason = "Late bus"\n')
    (one,) = read_overrides(toml)
    assert (one.student, one.exercise, one.points, one.reason) == ("ada", "ring", 1.5, "Late bus")
    table = tmp_path / "o.csv"
    table.write_text("\ufeffstudent;exercise;points;reason\nada;ring;1,5;Late bus\n\n")
    assert replace(read_overrides(table)[0], where="") == replace(one, where="")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[[override]]\nstudent = "ada"\nexercise = "r"\npoints = 1', "override 1 has no reason: the student will"),
        ('[[override]]\nstudent = "ada"\nexercise = "r"\npoints = 1\nreason = " "', "has no reason"),
        ('[[override]]\npoints = 1\nreasn = "x"', "'reasn' is no setting (did you mean 'reason'?)"),
        ('[[override]]\nstudent = "a"\nexercise = "r"\npoints = "many"\nreason = "x"', "'many', which is no number"),
        ('[[override]]\nstudent = "a"\nexercise = "r"\npoints = -1\nreason = "x"', "a number from 0 up"),
        ('[[overide]]\nstudent = "a"', "'overide' is no setting (did you mean 'override'?)"),
        ("[override]\nstudent = 1", "two brackets"),
        ("[[override]\n", "is not valid TOML"),
    ],
)  # fmt: skip
def test_overrides_that_are_not_in_order_are_refused(tmp_path, text, said):
    path = tmp_path / "o.toml"
    path.write_text(text)
    with pytest.raises(PolicyError) as refused:
        read_overrides(path)
    assert said in str(refused.value)


def test_two_overrides_of_one_exercise_are_refused(tmp_path):
    path = tmp_path / "o.csv"
    path.write_text("student,exercise,points,reason\nada,ring,1,a\nada,ring,2,b\n")
    with pytest.raises(PolicyError, match="line 3: ada has an override of ring already, in line 2"):
        read_overrides(path)


# -- responses marked by hand -----------------------------------------------------------------------------------------


def test_points_that_were_filled_in_are_merged_also_from_the_folder_itself(tmp_path):
    write(tmp_path, small_class())
    rows = sheet(tmp_path)
    assert [row["student"] for row in rows] == ["ada", "bob"]
    assert rows[1]["response"].startswith("'=HYPERLINK")
    rows[0] |= {"points": "6,5", "comment": "Good."}
    marked = fill(tmp_path / "marked.csv", rows, ";")
    write(tmp_path, small_class(), read_options(rubric=marked))
    row = grades(tmp_path)["ada"]
    assert (row["why"], row["score"], row["max_score"], row["to_mark"]) == ("6.5", "12.5", "14", "0")
    write(tmp_path, small_class())  # the sheet in the folder keeps what was merged
    assert grades(tmp_path)["ada"]["why"] == "6.5"
    assert [(row["student"], row["points"]) for row in sheet(tmp_path)] == [("bob", ""), ("ada", "6.5")]


def test_a_sheet_without_notebooks_is_stronger_than_the_one_in_the_folder(tmp_path):
    write(tmp_path, small_class())
    (tmp_path / "mine.csv").write_text("student,exercise,points\nada,why,3\n")
    write(tmp_path, small_class(), read_options(rubric=tmp_path / "mine.csv"))
    (tmp_path / "mine.csv").write_text("student,exercise,points\nada,why,5\nbob,why,\n")
    write(tmp_path, small_class(), read_options(rubric=tmp_path / "mine.csv"))
    assert grades(tmp_path)["ada"]["why"] == "5" and grades(tmp_path)["bob"]["to_mark"] == "8"


def test_a_mark_by_hand_of_zero_is_a_mark(tmp_path):
    write(tmp_path, small_class())
    rows = sheet(tmp_path)
    rows[0]["points"] = "0"
    fill(tmp_path / "rubric.csv", rows)
    write(tmp_path, small_class())
    row = grades(tmp_path)["ada"]
    assert (row["why"], row["max_score"], row["to_mark"]) == ("0", "14", "0")


def test_a_response_that_changed_since_is_to_be_marked_again(tmp_path):
    write(tmp_path, small_class())
    rows = sheet(tmp_path)
    rows[0] |= {"points": "6", "comment": "Good."}
    fill(tmp_path / "rubric.csv", rows)
    ada = small_class()[0]
    changed = replace(ada, exercises=(*ada.exercises[:2], replace(ada.exercises[2], free_response="Nobody waits.")))
    for _ in range(2):  # the note stays until somebody marks
        write(tmp_path, [changed])
        assert grades(tmp_path)["ada"]["to_mark"] == "8"
        (row,) = sheet(tmp_path)
        assert row["points"] == "" and row["response_id"] == id_of("Nobody waits.")
        assert row["note"] == "The response changed since it was marked: 6 points. Good."


def test_marks_of_who_is_not_graded_now_are_kept_aside(tmp_path):
    write(tmp_path, small_class())
    rows = sheet(tmp_path)
    rows[1]["points"] = "5"
    fill(tmp_path / "rubric.csv", rows)
    written = write(tmp_path, small_class()[:1])
    assert "rubric.csv, line 4: there is no free response of bob to why" in written.summary  # bob's has two lines
    assert "bob" in (tmp_path / "rubric.before.csv").read_text()


def test_a_mark_above_what_there_is_stays_to_mark(tmp_path):
    write(tmp_path, small_class())
    rows = sheet(tmp_path)
    rows[0]["points"] = "80"
    fill(tmp_path / "rubric.csv", rows)
    written = write(tmp_path, small_class())
    assert "rubric.csv, line 2: 80 points for why, which has 8" in written.summary
    assert grades(tmp_path)["ada"]["to_mark"] == "8"


def test_a_sheet_that_cannot_be_read_is_refused_and_nothing_is_written(tmp_path):
    write(tmp_path, small_class())
    before = (tmp_path / "grades.csv").read_bytes()
    (tmp_path / "rubric.csv").write_text("student,exercise,pints\nada,why,3\n")
    with pytest.raises(PolicyError, match=r"has no column 'points' \(did you mean 'pints'\?\)"):
        write(tmp_path, small_class()[:1])
    assert (tmp_path / "grades.csv").read_bytes() == before
    assert "pints" in (tmp_path / "rubric.csv").read_text()


# -- pseudonyms -------------------------------------------------------------------------------------------------------


def shown(out):
    return "\n".join(p.name + p.read_text() for p in [out / "rubric.csv", *sorted((out / "feedback").glob("*.html"))])


def test_a_marker_sees_pseudonyms_only_and_they_stay(tmp_path):
    write(tmp_path, small_class(), GradebookOptions(anonymous=True))
    first = [row["student"] for row in sheet(tmp_path)]
    assert not any(name in shown(tmp_path) for name in ("ada", "bob", "cem"))
    key = tmp_path / ".pseudonyms.json"
    assert key.stat().st_mode & 0o777 == 0o600
    known = json.loads(key.read_text())["pseudonyms"]
    assert sorted(known) == ["ada", "bob", "cem"] and {known["ada"], known["bob"]} == set(first)
    rows = [row | {"points": "4"} for row in sheet(tmp_path) if row["student"] == known["ada"]]
    options = read_options(rubric=fill(tmp_path / "marked.csv", rows), anonymous=True)
    write(tmp_path, small_class(), options)
    assert sorted(row["student"] for row in sheet(tmp_path)) == sorted(first)
    assert list(grades(tmp_path)) == ["ada", "bob", "cem"] and grades(tmp_path)["ada"]["why"] == "4"
    students = json.loads((tmp_path / "grades.json").read_text())["students"]
    assert [row["student_id"] for row in students] == ["ada", "bob", "cem"]


def test_reports_are_in_the_order_of_names_under_pseudonyms_too(tmp_path):
    class_of_20 = [result(f"s{i:02}", graded("ring")) for i in range(20)]
    write(tmp_path, class_of_20, GradebookOptions(anonymous=True))
    students = json.loads((tmp_path / "grades.json").read_text())["students"]
    names = [f"s{i:02}" for i in range(20)]
    assert [row["student_id"] for row in students] == list(grades(tmp_path)) == names
    assert [suite.get("name") for suite in ET.parse(tmp_path / "junit.xml").iter("testsuite")] == names


def test_names_come_back_when_marking_is_over(tmp_path):
    write(tmp_path, small_class(), GradebookOptions(anonymous=True))
    rows = sheet(tmp_path)
    fill(tmp_path / "rubric.csv", [row | {"points": "3"} for row in rows])
    write(tmp_path, small_class())
    assert sorted(path.name for path in (tmp_path / "feedback").iterdir()) == [
        "ada.html", "bob.html", "cem.html", "index.html",
    ]  # fmt: skip
    assert [(row["student"], row["points"]) for row in sheet(tmp_path)] == [("ada", "3"), ("bob", "3")]
    assert rows[0]["student"] not in shown(tmp_path)


def test_a_key_that_cannot_be_read_is_not_replaced(tmp_path):
    (tmp_path / ".pseudonyms.json").write_text("{")
    with pytest.raises(PolicyError, match="restore it"):
        write(tmp_path, small_class(), GradebookOptions(anonymous=True))
    assert (tmp_path / ".pseudonyms.json").read_text() == "{"


# -- weights ----------------------------------------------------------------------------------------------------------


def test_the_course_grade_is_weighted_by_the_course_file(tmp_path):
    first = result("ada", graded("a", of=10.0), notebook="02_ranks_and_messages")
    second = result("ada", graded("b", "partly", 5.0, of=10.0))
    write(tmp_path, [first, second])
    two, three = load().chapter(2).weight, load().chapter(3).weight
    assert float(grades(tmp_path)["ada"]["course_grade"]) == pytest.approx(
        100 * (two + three / 2) / (two + three), abs=0.01
    )
    told = json.loads((tmp_path / "grades.json").read_text())["weights"]
    assert [each["assistant_minutes"] for each in told] == [load().chapter(2).assistant, load().chapter(3).assistant]
    assert sum(each["share_percent"] for each in told) == 100


def test_what_has_no_weight_has_no_course_grade():
    assert weights_of(["a_workshop"]) == ()
    assert course_grade({"a_workshop": 1.0}, ()) is None
    (start,) = weights_of(["00_start_here"])
    assert start.share == 0 and course_grade({"00_start_here": 1.0}, [start]) is None
    halves = [Weight("a", "A", 3, 60, 0), Weight("b", "B", 2, 40, 0)]
    assert course_grade({"a": 0.5, "b": None}, halves) == 50.0
