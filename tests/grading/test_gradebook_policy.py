"""Deadlines, lateness, accommodations, rosters: what a file may say, and what follows from it."""

import csv
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sample_class import graded, result

from labkit.grading.gradebook import GradebookOptions, PolicyError, read_accommodations, read_options, write
from labkit.grading.gradebook.overrides import Override
from labkit.grading.gradebook.policy import Accommodation, LatePolicy, read_moment, read_policy
from labkit.grading.gradebook.rows import in_words

DUE = datetime(2026, 11, 20, 12, tzinfo=UTC)
FILE = """
opens = 2026-11-10T12:00:00Z
[deadlines]
03_collectives = 2026-11-20T12:00:00Z
[late]
percent_per_day = 10
grace_minutes = 15
most_percent = 25
[student.ada]
extra_time = 1.5
slow_factor = 2
[student.bob]
extra_minutes = 60
[student.cem]
deadline = 2026-12-01T12:00:00Z
deadlines = { 02_ranks_and_messages = 2026-12-02T12:00:00Z }
"""


@pytest.fixture
def policy(tmp_path):
    path = tmp_path / "class.toml"
    path.write_text(FILE)
    return path


def test_a_file_of_accommodations(policy):
    granted = read_accommodations(policy)
    assert (granted["ada"].extra_time, granted["ada"].slow_factor) == (1.5, 2.0)
    options = read_options(accommodations=policy, deadline="2026-01-01T00:00+00:00")
    due = {name: options.due(name, "03_collectives") for name in ("ada", "bob", "cem", "dan")}
    assert due["dan"] == DUE
    assert due["ada"] == DUE + timedelta(days=5)
    assert due["bob"] == DUE + timedelta(hours=1)
    assert due["cem"] == datetime(2026, 12, 1, 12, tzinfo=UTC)
    assert options.due("cem", "02_ranks_and_messages") == datetime(2026, 12, 2, 12, tzinfo=UTC)
    assert options.due("dan", "02_ranks_and_messages") == datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[student.ada]\nextra_tme = 2", "student 'ada': 'extra_tme' is no setting (did you mean 'extra_time'?)"),
        ("[students.ada]\nextra_time = 2", "'students' is no setting (did you mean 'student'?)"),
        ("[student.ada]\nextra_time = 1.5", "does not say when that began: add `opens"),
        ("[student.ada]\nslow_factor = 0.5", "slow_factor = 0.5: it must be a number from 1 up"),
        ("[student.ada]\nslow_factor = true", "slow_factor = True: it must be a number"),
        ("[student.ada]\nextra_minutes = nan", "extra_minutes = nan: it must be a number"),
        ("[student.ada]\ndeadline = 2026-11-20", "say the time too, like 2026-11-20T23:59:00"),
        ('[student.ada]\ndeadline = "2026-11-20T12:00:00"', "write a moment without quotes"),
        ("[late]\npercent = 10", "'percent' is no setting (did you mean 'most_percent'?)"),
        ("student = 3", "it must be a table"),
        ("[student", "is not valid TOML"),
    ],
)  # fmt: skip
def test_a_file_that_is_not_in_order_is_refused_in_words(tmp_path, text, said):
    path = tmp_path / "class.toml"
    path.write_text(text)
    with pytest.raises(PolicyError) as refused:
        read_policy(path)
    assert said in str(refused.value)
    assert str(refused.value).startswith("class.toml")


def test_files_that_are_not_there_or_in_another_encoding_are_refused(tmp_path):
    with pytest.raises(PolicyError, match="there is no such file"):
        read_options(accommodations=tmp_path / "none.toml")
    (tmp_path / "o.csv").write_bytes("student,exercise,points,reason\nZoé,a,1,x\n".encode("latin-1"))
    with pytest.raises(PolicyError, match="not in UTF-8"):
        read_options(overrides=tmp_path / "o.csv")


def test_moments_of_a_command_line():
    assert read_moment("2026-11-20T12:00+00:00") == DUE
    assert read_moment("2026-11-20T12:00").tzinfo is not None
    for wrong, said in (
        ("2026-11-20", "say the time too"),
        ("tomorrow", "is no moment"),
        ("2026-11-20T25:00", "is no moment"),
    ):
        with pytest.raises(PolicyError, match=said):
            read_moment(wrong)


@pytest.mark.parametrize(
    ("late", "percent"),
    [(-60, 0), (0, 0), (15 * 60, 0), (15 * 60 + 1, 10), (24 * 3600, 10), (24 * 3600 + 1, 20), (30 * 24 * 3600, 25)],
)
def test_lateness_costs_for_each_day_that_has_begun(policy, late, percent):
    assert read_policy(policy).late.percent(timedelta(seconds=late)) == percent


def test_by_default_lateness_is_said_and_costs_nothing():
    assert LatePolicy().percent(timedelta(days=3)) == 0 and LatePolicy().is_late(timedelta(seconds=1))


def rows(out):
    with (out / "grades.csv").open(newline="") as file:
        return {row["student_id"]: row for row in csv.DictReader(file)}


def test_late_is_marked_and_costs_only_what_is_configured(tmp_path):
    late = result("ada", graded("ring", of=10.0), received=(DUE + timedelta(hours=30)).isoformat())
    known = result("bob", graded("ring", of=10.0), received=(DUE - timedelta(hours=1)).isoformat())
    unknown = result("cem", graded("ring", of=10.0), received=None)
    free = GradebookOptions(deadline=DUE)
    write(tmp_path, [late, known, unknown], free)
    told = rows(tmp_path)
    assert [told[name]["late"] for name in ("ada", "bob", "cem")] == ["late", "", ""]
    assert (told["ada"]["score"], told["ada"]["late_penalty"]) == ("10", "0")
    assert told["ada"]["notes"] == "03_collectives: 2 days late."
    write(tmp_path, [late, known, unknown], replace(free, late=LatePolicy(percent_per_day=10)))
    told = rows(tmp_path)
    assert (told["ada"]["ring"], told["ada"]["score"], told["ada"]["late_penalty"]) == ("10", "8", "2")
    assert told["bob"]["score"] == "10"
    write(tmp_path, [late], replace(free, late=LatePolicy(grace_minutes=1800)))
    assert rows(tmp_path)["ada"]["late"] == ""
    granted = replace(free, accommodations={"ada": Accommodation(extra_minutes=1800)})
    write(tmp_path, [late, known, unknown], granted)
    assert rows(tmp_path)["ada"]["late"] == ""


def test_points_that_an_instructor_set_lose_nothing_by_lateness(tmp_path):
    late = result(
        "ada", graded("ring", of=10.0), graded("tree", of=10.0), received=(DUE + timedelta(hours=1)).isoformat()
    )
    set_by_hand = (Override("ada", "tree", 5.0, "Agreed"),)
    options = GradebookOptions(deadline=DUE, late=LatePolicy(percent_per_day=50), overrides=set_by_hand)
    write(tmp_path, [late], options)
    assert rows(tmp_path)["ada"]["score"] == "10"


def test_accommodations_of_somebody_unknown_are_said(tmp_path):
    options = GradebookOptions(accommodations={"adda": Accommodation(slow_factor=2)})
    assert "accommodations for adda" in write(tmp_path, [result("ada", graded("ring"))], options).summary


def test_rosters(tmp_path):
    path = tmp_path / "roster.csv"
    path.write_text("name,student_id\nAda L.,ada\nBob,bob\n,\nAda again,ada\n")
    assert read_options(roster=path).roster == ("ada", "bob")
    path.write_text("student\nzoe\n")
    assert read_options(roster=path).roster == ("zoe",)
    path.write_text("names\nzoe\n")
    with pytest.raises(PolicyError, match="has no column 'student_id'"):
        read_options(roster=path)


def test_times_in_words():
    told = [in_words(timedelta(seconds=s)) for s in (1, 60, 61, 3600, 3601, 86400, 86401)]
    assert told == ["1 minute", "1 minute", "2 minutes", "1 hour", "2 hours", "1 day", "2 days"]
